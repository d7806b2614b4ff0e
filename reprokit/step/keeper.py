"""The process between us and one that runs the user's code: what that starts cannot get away, and ends with it.

The keeper reads one JSON line (words, cwd, env) from a pipe, runs nothing else, imports nothing large, and exits as a
shell would of its command. The pipe is its lifeline: once we close our end of it, or are gone, however that came, the
keeper ends all that is below it and then itself. So it does when the command ends, or at a SIGTERM. Its own folder and
variables are not the command's: a module of the user's that is called `signal` is none of ours.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NoReturn

from reprokit.step import below

_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # as shells say it
_PATIENCE = 20.0  # seconds for all that was started to be gone
_LOOK = 1.0  # seconds between looks at whether who asked lives: a fork of that one may hold its end of the pipe
# The package by its place, wherever that is: nothing of the user's comes before it.
_KEEP = f"import sys; sys.path.append(sys.argv.pop(1)); from {__name__} import main; main()"
_PACKAGE = str(Path(__file__).resolve().parents[2])

Stream = int | IO[Any] | None
"""As `subprocess` takes it."""


class Kept:
    """A command that runs below a keeper of its own. process: the keeper, whose exit code is the command's, 128 + n for
    signal n. The other arguments are those of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: str | Path,
        env: Mapping[str, str],
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
    ) -> None:
        theirs, ours = os.pipe()
        self._lock = threading.Lock()
        self._lifeline: IO[bytes] | None = os.fdopen(ours, "wb")
        with os.fdopen(theirs):
            self.process: subprocess.Popen[Any] = subprocess.Popen(
                [sys.executable, "-P", "-c", _KEEP, _PACKAGE, str(theirs)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                text=text,
                cwd="/",
                pass_fds=(theirs,),
                start_new_session=True,  # an interrupt at the terminal is for us alone
            )
        with suppress(BrokenPipeError):  # whoever waits for it sees that it has ended
            self._lifeline.write(json.dumps({"words": list(words), "cwd": str(cwd), "env": dict(env)}).encode() + b"\n")
            self._lifeline.flush()

    def end(self) -> None:
        """Kill the command and all that it started, wherever that went; may be called again, and from any thread."""
        with self._lock:
            lifeline, self._lifeline = self._lifeline, None
        if lifeline:
            with suppress(BrokenPipeError):
                lifeline.close()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)  # the command may have stopped it
        try:
            self.process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            below.kill(self.process.pid)
            self.process.kill()
            self.process.wait()


def main() -> NoReturn:
    """Entry point of the keeper."""
    above, lifeline = os.getppid(), int(sys.argv[1])
    below.adopt_orphans()
    signal.signal(signal.SIGTERM, lambda number, frame: _end(None, 128 + number))
    ended = _told_of_children()
    asked = json.loads(_line(lifeline) or "{}")
    if not asked:
        os._exit(1)  # whoever asked is gone
    keeper = os.getpid()
    try:
        process = subprocess.Popen(
            asked["words"],
            cwd=asked["cwd"],
            env=asked["env"],
            start_new_session=True,  # a command that signals its group means its own
            preexec_fn=lambda: below.end_with_parent(keeper),  # this process has one thread
        )
    except OSError as error:
        print(f"{asked['words'][0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE)
    _let_go()
    while (code := _code(process.pid)) is None:
        ready, _, _ = select.select([lifeline, ended], [], [], _LOOK)
        if lifeline in ready or os.getppid() != above:
            code = -signal.SIGKILL
            break
        if ended in ready:
            os.read(ended, 1 << 12)
    _end(process.pid, code if code >= 0 else 128 - code)


def _line(pipe: int) -> bytes:
    """The first line; "" where the other end is closed before it ends. Nothing follows it."""
    read = b""
    while not read.endswith(b"\n"):
        if not (more := os.read(pipe, 1 << 16)):
            return b""
        read += more
    return read


def _told_of_children() -> int:
    """A pipe that can be read once a child has ended."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return told


def _let_go() -> None:
    """Of the command's streams: who reads them sees the end of them when the command closes them."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)


def _code(pid: int) -> int | None:
    """Its exit code, as Python has it, once it has ended. Others that end meanwhile are orphans of its own."""
    while True:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if ended in (0, pid):
            return os.waitstatus_to_exitcode(status) if ended else None


def _end(pid: int | None, code: int) -> NoReturn:
    """Of all below us, and of us."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # where there is no /proc it is all that we can find
    below.end_all(seconds=_PATIENCE)
    os._exit(code)
