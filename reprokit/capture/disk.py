"""How much incidents may take, and what is left out where there is less room.

A recorder that fills the disk ends the run that it was to watch. So bytes are counted before anything is written, and
parts are left out in the order of what they are worth: the history, which few failures need; the donor, which `reduce`
can make up; then what makes the step run at all, the larger of state and batch first. Logs, code and the evidence of
the failure are always kept. Pure but for the question to the file system.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from reprokit.errors import BadInput

OPTIONAL = ("history", "donor")
REST = 32 << 20  # bytes of all that is no tensor: code, logs, telemetry; most take less
_SHARE = 0.05  # of a disk, where that is less than the reserve: a small one is meant to be filled further


@dataclass(frozen=True, kw_only=True, slots=True)
class Disk:
    """What the incidents of one run may take."""

    max_incident_bytes: int = 32 << 30  # state, optimizer and anchor of a model of a billion parameters
    max_run_bytes: int = 128 << 30
    max_incidents: int = 32  # different failures: past that, somebody should have looked
    reserve: int = 1 << 30  # bytes that stay free, for logs and checkpoints of the run itself
    write_within: float = 300.0  # seconds that a step waits for its incident; NCCL's watchdog ends a run after 600

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise BadInput(f"Disk: {name}={value!r}; expected a number, 0 or more")


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """Bytes that the next incident may take, and what to do for more."""

    bytes: int
    limit: str


def room(disk: Disk, out: Path, written: int) -> Room:
    """For an incident below `out`, after so many bytes of this run."""
    place = next(folder for folder in (out, *out.parents) if folder.exists())
    usage = shutil.disk_usage(place)
    reserve = min(disk.reserve, int(_SHARE * usage.total))
    free = f"{size(usage.free)} are free on the disk of {out}, and {size(reserve)} of them stay so; make room there"
    rooms = [
        Room(bytes=usage.free - reserve, limit=free),
        Room(bytes=disk.max_incident_bytes, limit=_raise("max_incident_bytes")),
        Room(bytes=disk.max_run_bytes - written, limit=_raise("max_run_bytes")),
    ]
    return min(rooms, key=lambda one: one.bytes)


def _raise(name: str) -> str:
    return f"raise Recorder(disk=Disk({name}=...))"


def spared(needs: Mapping[str, int], bytes: int) -> list[str] | None:
    """Parts to leave out so that the others fit, in their order; None where not even the rest fits.

    needs: bytes of history, donor, state and batch; those that are not there take none.
    """
    left, gone = REST + sum(needs.values()), []
    for part in (*OPTIONAL, *sorted(("state", "batch"), key=lambda part: -needs.get(part, 0))):
        if left <= bytes:
            break
        if needs.get(part):
            gone.append(part)
            left -= needs[part]
    return gone if left <= bytes else None


def size(count: float) -> str:
    """As people say it."""
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def listed(parts: Collection[str]) -> str:
    """ "history, donor and state"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last
