"""Signals to a process that trains: one that asks for a capture, and one that must wait for a write.

SIGUSR1 asks for a capture. Its handler sets a flag and no more, since it runs between any two instructions of training;
the recorder looks at the flag at the end of a step. SIGTERM, which schedulers send before they take a machine away,
waits for an incident that is being written. It is taken over only while one is: a handler of ours would keep a process
whose main thread hangs outside of Python from being terminated at all. Handlers that were there before are called as
well, and put back. Only the main thread may set handlers: in another one, nothing is set.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self

ASKS = getattr(signal, "SIGUSR1", None)  # Windows has none


class Signals:
    """Of one recorder, around its training. busy: whether a write is under way; finish: wait for it."""

    def __init__(self, *, busy: Callable[[], bool], finish: Callable[[], object]) -> None:
        self._busy, self._finish = busy, finish
        self._asked = False
        self._previous: dict[int, signal._HANDLER] = {}  # those that ours stand in place of
        self._left: dict[int, signal._HANDLER] = {}  # the same, where another stood in place of ours when we left

    def __enter__(self) -> Self:
        if ASKS is not None:
            self._set(ASKS, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        for number in list(self._previous):
            self._put_back(number)

    def asked(self) -> bool:
        """Whether a capture was asked for since the last time that this was."""
        asked, self._asked = self._asked, False
        return asked

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around what begins a write. It may go on after it: then SIGTERM waits until `settle` sees that it ended."""
        self._set(signal.SIGTERM, self._terminate)
        try:
            yield
        finally:
            self.settle()

    def settle(self) -> None:
        """Leave SIGTERM alone again once nothing is written any more. Costs nothing where it is left alone."""
        if signal.SIGTERM in self._previous and not self._busy():
            self._put_back(signal.SIGTERM)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        previous = self._previous.get(number)
        if callable(previous):  # the default would be to terminate
            previous(number, frame)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self._finish()
        previous = self._previous.get(number)
        self._put_back(number)
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            os.kill(os.getpid(), number)

    def _set(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        if threading.current_thread() is not threading.main_thread() or number in self._previous:
            return
        if (previous := signal.getsignal(number)) is not None:  # None: set by no Python
            self._left.pop(number, None)
            self._previous[number] = previous  # before ours is there: it may be called at once
            signal.signal(number, handler)

    def _put_back(self, number: int) -> None:
        """Unless somebody has set another one since, who then calls ours."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous = self._previous.get(number)
        if previous is None:
            return
        if signal.getsignal(number) in (self._ask, self._terminate):
            signal.signal(number, _living(previous, number))
        else:
            self._left[number] = previous
        self._previous.pop(number, None)  # last: until then ours may be called, and calls it


def _living(handler: signal._HANDLER, number: int) -> signal._HANDLER:
    """Recorders may end in the order in which they began: what a later one found is then of one that has left."""
    while isinstance(owner := getattr(handler, "__self__", None), Signals) and number in owner._left:
        handler = owner._left[number]
    return handler
