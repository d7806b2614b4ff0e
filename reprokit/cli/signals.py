"""Signals that ask this process to end: heard, and then not heard again while it does.

Whatever runs is ended on the way out: containers, processes, scratch files. That takes a moment, and a second signal
in it would leave them behind. It comes all the same: from whoever presses Ctrl-C twice, and from a CI that sends
SIGINT and soon after SIGTERM. So for a while after one was heard the next ones change nothing. Later they do, since
somebody's code in this process may have swallowed the first.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from time import monotonic
from types import FrameType
from typing import NoReturn

_CALM = 10.0  # seconds: longer than a CI waits before its next signal, and than containers usually take to go
_SOON = 0.05  # seconds: finalizers are short
_ASKS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last: its terminal is gone


class Ending:
    """What was heard. `number` is of the first signal that was no Ctrl-C; 0: there was none."""

    def __init__(self) -> None:
        self.number = 0
        self._calm_until = 0.0
        self._before: dict[int, signal._HANDLER] = {}

    def listen(self) -> None:
        """From now on; what whoever started us has chosen to ignore stays ignored."""
        for number in _ASKS:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._before[number] = signal.signal(number, self.heard)

    def heard(self, number: int, frame: FrameType | None) -> None:
        """Raises KeyboardInterrupt, as Ctrl-C does."""
        if number != signal.SIGINT:
            self.number = self.number or number
        if monotonic() < self._calm_until:
            return
        if _is_deaf(frame):
            again = threading.Timer(_SOON, os.kill, (os.getpid(), number))
            again.daemon = True
            return again.start()
        self._calm_until = monotonic() + _CALM
        raise KeyboardInterrupt

    def over(self) -> None:
        """Where the process goes on."""
        for number, before in self._before.items():
            signal.signal(number, before)

    def exit(self, code: int) -> NoReturn:
        """What has been said is the answer, and the code belongs to it: a signal from here on changes neither."""
        atexit.register(self._silence)
        for number in self._before:
            signal.signal(number, lambda number, frame: os._exit(code))  # a thread that never ends is not waited for
        sys.exit(code)

    def _silence(self) -> None:
        """For the interpreter's own end, which would give signals their default back."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)


def _is_deaf(frame: FrameType | None) -> bool:
    """Whether it stands in a finalizer: what is raised there is printed, and lost."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False
