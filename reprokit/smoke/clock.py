"""What takes too long is interrupted and told with its place: nobody waits for a build or a step that hangs.

A thread looks at a clock that is set anew with whatever begins. What is overdue gets a signal that nobody else uses,
and its handler raises in the main thread: that ends a sleep, a lock, a read and a loop. Code that never comes back to
the interpreter, as a kernel or a collective, hears nothing; so after as long again `stuck` is called, on the clock's
thread, and can do no more than tell and end the process. Not seen: what never lets go of the interpreter's lock.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from time import monotonic
from types import FrameType, TracebackType

LIMIT = 300.0  # seconds: a first step compiles, a build loads weights, workers open videos; and a CI job waits longer

_SIGNAL = signal.SIGURG  # does nothing where nobody listens, so one that comes too late does no harm
_LOOKS = 20  # at the clock, in the time that there is
_LONGEST_PAUSE = 1.0  # seconds between two looks


class Overdue(BaseException):
    """What was under way had its time. No Exception: a step that catches those, and a gate that lets a step refuse a
    batch, must not take it for one."""

    def __init__(self, seconds: float, place: str) -> None:
        super().__init__(f"no end after {seconds:g} s, at {place}")
        self.seconds = seconds


class Clock:
    """seconds: that one thing may take. None: no clock; nor is there one outside the main thread, which alone hears
    signals. stuck: is told what did not even hear that."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.stuck: Callable[[Overdue], object] | None = None
        self._since = self._told = inf  # when it began; inf: nothing is under way
        self._more = 0.0

    @property
    def patience(self) -> float:
        """Seconds that who waits in a way of his own waits."""
        return LIMIT if self.seconds is None else self.seconds

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Around something that begins. Raises Overdue."""
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        ended = threading.Event()
        before = signal.signal(_SIGNAL, self._heard)
        self._since = monotonic()
        try:
            threading.Thread(target=self._look, args=(ended,), name="reprokit clock", daemon=True).start()
            try:
                yield
            finally:
                self._since = inf
        finally:  # the signal may have come as the last thing before that
            self._since = inf
            ended.set()
            signal.signal(_SIGNAL, signal.SIG_DFL if before is None else before)

    def begins(self) -> None:
        """Something else does."""
        if self._since < inf:
            self._since = monotonic()

    @contextmanager
    def longer(self, by: float) -> Iterator[Callable[[], None]]:
        """Around what ends by itself after so many seconds at most. Yields what says that this is over already: what
        is late without it is interrupted at once."""
        given = [by]

        def over() -> None:
            with suppress(IndexError):  # who says it again, perhaps on another thread
                self._more -= given.pop()

        self._more += by
        try:
            yield over
        finally:
            self.begins()
            over()

    def _late(self, since: float) -> float:
        """How many seconds over time; negative before that."""
        return monotonic() - since - self.patience - self._more

    def _look(self, ended: threading.Event) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not ended.wait(min(self.patience / _LOOKS, _LONGEST_PAUSE)):
            since = self._since
            if self._late(since) >= 0 and self._told != since:
                self._told = since  # once: what is interrupted may take its time to clean up
                signal.pthread_kill(main, _SIGNAL)
            elif self._late(since) >= self.patience and self.stuck:
                self.stuck(standing(main, self.patience + self._more))
                return

    def _heard(self, _: int, frame: FrameType | None) -> None:
        if self._late(self._since) >= 0:
            raise _overdue(self.patience + self._more, frame)


def standing(thread: int, seconds: float) -> Overdue:
    """As if it had been raised where another thread stands, which goes on."""
    frame = sys._current_frames().get(thread)
    return _overdue(seconds, frame).with_traceback(_traceback(frame))


def _overdue(seconds: float, frame: FrameType | None) -> Overdue:
    code = frame.f_code if frame else None
    place = f"{Path(code.co_filename).name}:{frame.f_lineno} in {code.co_name}" if frame and code else "its end"
    return Overdue(seconds, place)


def _traceback(frame: FrameType | None) -> TracebackType | None:
    """As an exception would have it that was raised there."""
    found: TracebackType | None = None
    while frame is not None:
        found = TracebackType(found, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return found
