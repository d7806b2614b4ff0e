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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

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
        kills = memory.kills()
        try:
            child = subprocess.Popen(command, env=environment, stdout=stdout)
        except OSError as error:
            raise BadInput(f"{command[0]}: cannot be started ({error.strerror}); check the command after --") from error
        with _passing_on(child) as passed:
            core = _waited(child)
        code = child.returncode
        death = Death(
            signal=-code if code < 0 else code - 128 if 128 < code < 128 + signal.NSIG else None,
            code=code if code >= 0 else None,
            out_of_memory=memory.kills() > kills,
            core=core,
        )
        incident = None
        if not passed and death.signal not in _ASKED_FOR:
            incident = _incident(folder, death, say)
        return Ended(code=code if code >= 0 else 128 - code, incident=incident)


def _incident(folder: Path, death: Death, say: Callable[[str], None]) -> Path | None:
    """Of the process that died first, as far as one sees: others may have been ended for its sake."""
    boxes = [box for box in sorted(folder.iterdir(), key=lambda box: box.stat().st_mtime) if not _lives(box)]
    for box in sorted(boxes, key=lambda box: not _has_dump(box)):
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


def _lives(box: Path) -> bool:
    """Whether its owner does: a process that its parent left behind."""
    try:
        os.kill(int(box.name.split("-")[1]), 0)
    except (ValueError, LookupError, OSError):
        return False
    return True


def _has_dump(box: Path) -> bool:
    return (box / DUMP).exists() and (box / DUMP).stat().st_size > 0


def _waited(child: subprocess.Popen[bytes]) -> str:
    """Wait for its end; where its core went, if it left one."""
    status = None
    with suppress(ChildProcessError):  # who passed a signal on to it found it dead, and took its code already
        status = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    cwd, dumped = Path.cwd(), status is not None and status.si_code == os.CLD_DUMPED
    child.wait()
    if not dumped:
        return ""
    for name in (f"core.{child.pid}", "core"):
        if (cwd / name).is_file():
            return str(cwd / name)
    with suppress(OSError):
        return f"as {Path('/proc/sys/kernel/core_pattern').read_text().strip()} says"
    return ""


@contextmanager
def _passing_on(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """What is sent to us goes to the child as well; yields those that ask it to end. From a terminal, the child has
    SIGINT already."""
    passed: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        if number in _ASKED_FOR:
            passed.append(number)
        if number != signal.SIGINT or not os.isatty(0):
            child.send_signal(number)

    names = [name for name in (*_PASSED_ON, "SIGINT") if hasattr(signal, name)]
    before: Mapping[int, signal._HANDLER] = {
        number: signal.signal(number, pass_on) for number in (getattr(signal, name) for name in names)
    }
    try:
        yield passed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
