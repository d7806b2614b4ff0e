"""The process that stays while attempts come and go: it imports torch and reprokit once, and forks each attempt.

Most of a small attempt is imports, and a fork has them. It has everything else of its parent as well, so the parent
does nothing else. It runs no tensor operation: OpenMP's threads would stay behind, and a child waits for them for ever.
It never touches CUDA, which does not survive a fork. And it never sees the user's code, which each child imports.

Between the parent and an attempt stands a keeper, forked for it alone: what the attempt starts cannot get away from it
(`below`), so that all of that ends when the attempt does or must. If a keeper is killed, the parent takes its place.

Requests come in a FIFO, a line each: `run N` for the case in the folder N, `kill N`. In that folder the attempt writes
its outcome and what it prints; `ended.json` is the last to come. Where nobody holds the FIFO's other end any more, or
the process that started this one is gone, everything ends.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import NoReturn

from reprokit.step import below, memory, serve
from reprokit.step.ends import shell_code

FIFO, READY, CASE, OUTCOME, LOG, ENDED = "requests", "ready", "case.json", "outcome.json", "log.txt", "ended.json"
COMMAND = ("-m", "reprokit.step.forks", "--folder")
_TICK, _IDLE = 0.005, 0.5  # seconds between looks at keepers, and at our own parent while there are none
PATIENCE = 20.0  # seconds for keepers to end what they keep, and for us to end what they did not
_IMPORTED_LATE = ("torch._inductor",)  # takes longer than the rest of torch, when an optimizer or a switch needs it
_FIRST_TO_GO = 500  # of the kernel, when memory ends: an attempt, and not what keeps it


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m reprokit.step.forks", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="where requests come and answers go")
    parser.add_argument("--match", help="a regular expression that a failure's message must match to be the same one")
    arguments = parser.parse_args()
    _Parent(arguments.folder.absolute(), arguments.match).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    number: str
    kills: int  # of the kernel, for memory, before it began


class _Parent:
    """Forks keepers and tells how they ended. It has one thread: a fork beside another one's work copies its locks."""

    def __init__(self, folder: Path, match: str | None) -> None:
        self._folder, self._match = folder, match
        self._keepers: dict[int, _Kept] = {}
        self._above = os.getppid()
        self._requests = os.open(folder / FIFO, os.O_RDONLY | os.O_NONBLOCK)  # who asks may be gone by now

    def run(self) -> None:
        below.adopt_orphans()
        for name in _IMPORTED_LATE:
            with suppress(ImportError):
                importlib.import_module(name)
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page of these objects
        (self._folder / READY).touch()
        rest = b""
        while os.getppid() == self._above:
            if (read := self._read()) is None:
                break
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                self._obey(line.decode())
            self._reap()
            select.select([self._requests], [], [], _TICK if self._keepers else _IDLE)
        self._end()

    def _read(self) -> bytes | None:
        """What was asked since the last look; None once nobody can ask. `select` does not tell that of a FIFO whose
        other end was closed before we came."""
        try:
            return os.read(self._requests, 1 << 16) or None
        except BlockingIOError:
            return b""

    def _obey(self, line: str) -> None:
        verb, _, number = line.partition(" ")
        if not number.isdecimal():  # whoever can write here can do worse than that
            return
        if verb == "run":
            self._begin(number)
        for pid, kept in self._keepers.items():
            if verb == "kill" and kept.number == number:
                os.kill(pid, signal.SIGTERM)

    def _begin(self, number: str) -> None:
        kills, parent = memory.kills(), os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell(number, {"code": None, "why": f"no process could be started: {error.strerror}"})
            return
        if pid == 0:
            os.close(self._requests)
            _keep(parent, self._folder / number, self._match)
        self._keepers[pid] = _Kept(number=number, kills=kills)

    def _reap(self) -> None:
        while self._keepers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if kept := self._keepers.pop(pid, None):
                code = os.waitstatus_to_exitcode(status)
                if code < 0:  # it could not do its work any more
                    below.end_all(self._keepers, seconds=PATIENCE)
                    self._tell(kept.number, {"code": None, "why": "what watched over the attempt was killed"})
                else:
                    self._tell(kept.number, {"code": code, "starved": memory.kills() > kept.kills})

    def _tell(self, number: str, ended: dict[str, object]) -> None:
        with suppress(OSError):  # whoever asked has cleared up already
            serve.write(self._folder / number / ENDED, ended)

    def _end(self) -> None:
        for pid in self._keepers:
            os.kill(pid, signal.SIGTERM)
        until = monotonic() + PATIENCE
        while self._keepers and monotonic() < until:
            self._reap()
            select.select([], [], [], _TICK)
        below.end_all(seconds=PATIENCE)


def _keep(parent: int, folder: Path, match: str | None) -> NoReturn:
    """In the keeper: start the attempt, wait, end what is left of it; exits as a shell would."""
    code = 1
    try:
        below.adopt_orphans()
        own = Path(tempfile.mkdtemp(prefix="attempt-"))
        try:
            code = _waited(parent, folder, own, match)
        finally:
            below.end_all(seconds=PATIENCE)
            shutil.rmtree(own, ignore_errors=True)
    finally:
        os._exit(code)  # nothing of the parent's, such as what it has to do at its end, is ours


def _waited(parent: int, folder: Path, own: Path, match: str | None) -> int:
    """The exit code of the attempt, which a SIGTERM to us kills."""
    keeper, attempt = os.getpid(), 0
    told = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        told = True
        if attempt:
            os.kill(attempt, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    below.end_with_parent(parent, signal.SIGTERM)
    attempt = os.fork()
    if attempt == 0:
        _exit_with(lambda: _attempt(keeper, folder, own, match))
    if told:
        os.kill(attempt, signal.SIGKILL)
    ended, status = 0, 0
    while ended != attempt:  # others are orphans of it
        ended, status = os.waitpid(-1, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return shell_code(os.waitstatus_to_exitcode(status))


def _exit_with(work: Callable[[], None]) -> NoReturn:
    """Whatever happens, this process is not the parent and must not go on as if it were."""
    code = 1
    try:
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _attempt(keeper: int, folder: Path, own: Path, match: str | None) -> None:
    """In the attempt's own process: as if it had been started for this case."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    below.end_with_parent(keeper)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_GO))
    log = os.open(folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ["TMPDIR"] = tempfile.tempdir = str(own)
    os.chdir(own)
    assert threading.active_count() == 1
    serve.serve_file(folder / CASE, folder / OUTCOME, match)


if __name__ == "__main__":
    main()
