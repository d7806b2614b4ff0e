"""Whose container it is, and whether they are still there to remove it.

A process that is killed removes nothing: its containers run to their deadline, and then stay in the engine's list. So
each says who made it, and whoever starts containers next removes those of the dead. An engine may be shared, so only a
process that sees the same processes judges whether one lives. What others made goes long after it has ended by itself:
by then nobody reads what came of it.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import time

from docker import DockerClient

from reprokit.replay import daemon
from reprokit.replay.container import LABEL

OWNER, UNTIL = f"{LABEL}.owner", f"{LABEL}.until"
_LATE = 3600  # seconds after its deadline: clocks of two machines differ by less
_ENDED = ("created", "exited", "dead")
_PROC = Path("/proc")


def mark(seconds: float) -> dict[str, str]:
    """Labels of a container that ends by itself within so many seconds."""
    return {OWNER: me(), UNTIL: str(ceil(time() + seconds))}


def sweep(client: DockerClient) -> None:
    """Remove what was left behind. Somebody else may be sweeping as well."""
    with suppress(*daemon.Silent):
        for about in client.api.containers(all=True, filters={"label": OWNER}):
            if left(about["Labels"], about["State"], time()):
                with suppress(*daemon.Silent):
                    client.api.remove_container(about["Id"], v=True, force=True)


def left(labels: Mapping[str, str], state: str, now: float) -> bool:
    """Whether nobody will remove a container with these labels."""
    if (gone := _gone(labels[OWNER])) is not None:
        return gone
    until = labels.get(UNTIL, "")
    return until.isdecimal() and state in _ENDED and now > int(until) + _LATE


def me() -> str:
    """This process, told from every other one that ever was; empty where there is no /proc."""
    pid = os.getpid()
    return " ".join([*where, str(pid), _begun(pid)]) if (where := _here()) else ""


def _gone(owner: str) -> bool | None:
    """None where that cannot be seen from here."""
    words = owner.split()
    if not words or words[:-2] != _here() or not words[-2].isdecimal():
        return None
    return _begun(int(words[-2])) != words[-1]


def _here() -> list[str]:
    """Where numbers of processes mean what they mean to us."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return [platform.node() or "-", boot, os.readlink(_PROC / "self/ns/pid")]
    except OSError:
        return []


def _begun(pid: int) -> str:
    """When a process began, in ticks of its boot; empty where there is none."""
    try:
        told = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return ""
    return told.rpartition(")")[2].split()[19]
