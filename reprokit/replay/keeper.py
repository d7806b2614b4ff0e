"""The process between us and a command of the user's: what the command starts cannot get away, and ends with it.

It reads one JSON object (words, cwd, env, parent), runs nothing else, imports nothing large, and exits as a shell would
of its command. Told to end (SIGTERM), or when whoever started it is gone, it ends all of that first. Its own folder and
variables are not the command's: a module of the user's that is called `signal` is none of ours.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

from reprokit.step import below

MODULE = "reprokit.replay.keeper"
_NOT_FOUND, _NOT_RUNNABLE = 127, 126  # as shells say it
_PATIENCE = 20.0  # seconds for all that was started to be gone


def main() -> NoReturn:
    """Entry point of the process."""
    asked = json.load(sys.stdin)
    keeper = os.getpid()
    below.adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    below.end_with_parent(asked["parent"], signal.SIGTERM)
    try:
        process = subprocess.Popen(
            asked["words"],
            cwd=asked["cwd"],
            env=asked["env"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a command that signals its group means its own
            preexec_fn=lambda: below.end_with_parent(keeper),  # this process has one thread
        )
    except OSError as error:
        print(f"{asked['words'][0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE)
    code = _waited(process.pid)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    below.end_all(seconds=_PATIENCE)
    os._exit(code if code >= 0 else 128 - code)


def _waited(pid: int) -> int:
    """Its exit code, as Python has it. Others that end meanwhile are orphans of its own."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end(number: int, frame: FrameType | None) -> None:
    below.end_all(seconds=_PATIENCE)
    os._exit(128 + number)


if __name__ == "__main__":
    main()
