"""Stand beside a training process: when it dies in a step, make an incident of what its black box holds.

The process is a child with this one's streams and signals, and its exit code is ours. What it dies of by itself is a
failure: a fault, an abort, an exit from within a step, the kernel's killer. What somebody asked for is none: a signal
that was passed on, or SIGTERM, SIGINT and SIGHUP. A process that ends well has removed its box. Boxes lie in shared
memory, in a folder that is locked while its supervisor lives; where one was killed itself, the next removes its folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from reprokit import _files
from reprokit.capture.black_box import DUMP, PLACE, WANTED
from reprokit.capture.remains import Death, finish, in_step
from reprokit.errors import BadInput
from reprokit.step import memory

PREFIX = "reprokit-box-"
_SHARED = Path("/dev/shm")  # noqa: S108  # memory that outlives a process
_FRESH = 60.0  # seconds in which a folder may be there and not yet locked
_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCONT")
_ASKED_FOR = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # somebody ended the process: no failure


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How the command ended."""

    code: int  # as a shell has it: 128 + n for signal n
    incident: Path | None = None


def run(
    command: Sequence[str],
    *,
    say: Callable[[str], None] = lambda line: None,
    place: Path | None = None,
    stdout: IO[str] | None = None,
) -> Ended:
    """Run a command, and make an incident where it, or a process that it started, dies in a step.

    say: gets a line on that. place: for the boxes. stdout: the command's, instead of ours. Raises BadInput where there
    is no such command.
    """
    with _folder(place or _shared()) as folder:
        environment = {WANTED: "1"} | os.environ | {PLACE: str(folder)}
        kills, signals = memory.kills(), _Signals()
        with signals:
            try:
                child = subprocess.Popen(command, env=environment, stdout=stdout)
            except OSError as error:
                cannot = f"{command[0]}: cannot be started ({error.strerror}); check the command after --"
                raise BadInput(cannot) from error
            signals.go_to(child)
            core = _waited(child)
        code = child.returncode
        death = Death(
            signal=-code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else None,
            code=code if code >= 0 else None,
            out_of_memory=memory.kills() > kills,
            core=core,
        )
        incident = None
        if not signals.ended and death.signal not in _ASKED_FOR:
            incident = _incident(folder, death, say)
        return Ended(code=code if code >= 0 else 128 - code, incident=incident)


def _incident(folder: Path, death: Death, say: Callable[[str], None]) -> Path | None:
    """Of the process that died first, as far as one sees: others may have been ended for its sake."""
    since = {box: when for box in folder.iterdir() if not _lives(box) and (when := _changed(box)) is not None}
    for box in sorted(since, key=lambda box: (not _has_dump(box), since[box])):
        try:
            step = in_step(box)
            if step is None:
                say(f"the process {death.words()} between two steps: there is no step to capture")
                continue
            path = finish(box, death)
        except Exception as trouble:
            reason = " ".join(str(trouble).split())
            say(f"the process {death.words()}; no incident could be made: {type(trouble).__name__}: {reason}")
            continue
        say(f"the process {death.words()} in step {step}; captured in {path}; next: reprokit show {path}")
        return path
    return None


def _changed(box: Path) -> float | None:
    """When; None where its owner has removed it meanwhile, and so has ended well."""
    try:
        return box.stat().st_mtime
    except FileNotFoundError:
        return None


def _lives(box: Path) -> bool:
    """Whether its owner does: a process that its parent left behind. One that nobody has waited for yet is dead."""
    try:
        return psutil.Process(int(box.name.split("-")[1])).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except (ValueError, LookupError, psutil.Error):
        return False


def _has_dump(box: Path) -> bool:
    return (box / DUMP).exists() and (box / DUMP).stat().st_size > 0


def _waited(child: subprocess.Popen[bytes]) -> str:
    """Wait for its end; where its core went, if it left one."""
    status = None
    with suppress(ChildProcessError):  # who passed a signal on to it found it dead, and took its code already
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    child.wait()
    if status is None or status.si_code != os.CLD_DUMPED:
        return ""
    with suppress(OSError):  # of a folder that was removed, too
        for core in (Path.cwd() / f"core.{child.pid}", Path.cwd() / "core"):
            if core.is_file():
                return str(core)
    with suppress(OSError):
        return f"as {Path('/proc/sys/kernel/core_pattern').read_text().strip()} says"
    return ""


class _Signals:
    """Within it, what is sent to us goes to the child as well, and what comes before there is one once there is.
    `ended`: those that ask it to end. From a terminal, the child has SIGINT already."""

    def __init__(self) -> None:
        self.ended: list[int] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> None:
        numbers = [getattr(signal, name) for name in (*_PASSED_ON, "SIGINT") if hasattr(signal, name)]
        self._before = {number: found for number in numbers if (found := signal.getsignal(number)) is not None}
        self._take(lambda found: found is not signal.SIG_IGN)  # what is ignored the child ignores, as under nohup

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def go_to(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        while self._early:
            child.send_signal(self._early.pop(0))
        self._take(lambda found: found is signal.SIG_IGN)

    def _take(self, wanted: Callable[[signal._HANDLER], bool]) -> None:
        for number, found in self._before.items():
            if wanted(found):
                signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, frame: object) -> None:
        if number in _ASKED_FOR:
            self.ended.append(number)
        if self._child is None:
            self._early.append(number)
        elif number != signal.SIGINT or not os.isatty(0):
            self._child.send_signal(number)


def _shared() -> Path:
    return _SHARED if os.access(_SHARED, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


@contextmanager
def _folder(place: Path) -> Iterator[Path]:
    """A folder that is ours, and removed in the end."""
    sweep(place)
    folder = place / f"{PREFIX}{secrets.token_hex(8)}"
    folder.mkdir(mode=0o700)
    claim = _files.claim(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if claim is not None:
            os.close(claim)


def sweep(place: Path) -> None:
    """Remove the folders of supervisors that were killed."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError):
            young = time.time() - folder.stat().st_mtime < _FRESH
            claim = None if young else _files.claim(folder)
            if claim is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(claim)
