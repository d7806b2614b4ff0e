"""Life in a log: where there is no terminal to draw bars on, a line every now and then says what is under way.

A continuous-integration job that prints nothing for ten minutes is taken for one that hangs, and some runners end it.
A thread looks, since one evaluation may take longer than that by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic

EVERY = 10.0  # seconds between two lines: a log of an hour stays readable, and nobody waits long for a sign
_LOOK = 1.0  # seconds between looks at the clock


class Pulse:
    """Says the latest news at most every `EVERY` seconds, and again where there are none. A context manager."""

    def __init__(self, say: Callable[[str], object], clock: Callable[[], float] = monotonic) -> None:
        self._say, self._clock = say, clock
        self._begun = self._last = clock()
        self._news = ""
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def tell(self, what: str, done: int, total: int | None, note: str) -> None:
        """How far it is."""
        count = "" if total is None and not done else f"{done}" if total is None else f"{done}/{total}"
        self._news = "  ".join(filter(None, (what, count, note)))
        self.look()

    def look(self) -> None:
        """Say the news if it is time."""
        with self._lock:
            now = self._clock()
            if self._news and now - self._last >= EVERY:
                self._last = now
                self._say(f"{self._news}  after {now - self._begun:.0f} s")

    def _watch(self) -> None:
        while not self._over.wait(_LOOK):
            self.look()
