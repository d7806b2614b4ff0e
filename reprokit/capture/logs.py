"""The last words of a process: what it printed, and where each of its threads stands.

`Tee` puts a thin layer over `sys.stdout` and `sys.stderr`. Training prints through it for days, so its first duty is
to be in nobody's way: every call goes to the stream below first, with its result and its errors, and remembering comes
after and cannot fail. It never waits for a lock (a forked child may have inherited one that is held, a signal handler
may print in the middle of a print), so what is remembered is appended, which is atomic, and trimmed by whoever gets
the lock.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TextIO, cast

from reprokit.failure import said

LIMIT = 64 * 1024  # bytes of UTF-8 kept of each stream: about a thousand lines, and nothing beside a batch
_LONGEST = 2000  # characters of an exception in one line
_UNTRIMMED = 1024  # pieces that may pile up before they are joined and cut; `print` writes two a line

log = logging.getLogger("reprokit")


class Tail:
    """The end of what was written. Safe from any thread, signal handler and forked child; never waits to write."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._pieces: deque[str] = deque(maxlen=64 * _UNTRIMMED)  # a bound even where nobody ever gets the lock
        self._lock = threading.Lock()

    def add(self, piece: str) -> None:
        self._pieces.append(piece[-self.limit :])
        if (len(self._pieces) > _UNTRIMMED or len(piece) > self.limit // 8) and self._lock.acquire(blocking=False):
            try:
                known = [self._pieces.popleft() for _ in range(len(self._pieces))]
                self._pieces.appendleft("".join(known)[-self.limit :])
            finally:
                self._lock.release()

    def text(self) -> str:
        """At most the limit in UTF-8; what has no encoding there (surrogates) is escaped."""
        held = self._lock.acquire(timeout=1)  # while someone trims, part of the text is in nobody's hands
        try:
            pieces = list(self._pieces)
        finally:
            if held:
                self._lock.release()
        data = "".join(pieces).encode("utf-8", "backslashreplace")
        return data[-self.limit :].decode("utf-8", "ignore")  # the cut may have gone through a character


class Tee:
    """Keep the end of what is printed, while passing it on. Enter it once or nested, leave in any order."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._tails = {"stdout": Tail(limit), "stderr": Tail(limit)}
        self._streams: dict[str, _Stream] = {}
        self._depth = 0

    def __enter__(self) -> Self:
        self._depth += 1
        if self._depth == 1:
            for name, tail in self._tails.items():
                below = getattr(sys, name)
                if below is not None:  # a process without a console has none
                    self._streams[name] = stream = _Stream(below, tail)
                    setattr(sys, name, stream)
                    _redirect_logging(below, cast(TextIO, stream))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._depth -= 1
        if self._depth:
            return
        for name, stream in self._streams.items():
            stream.stop()
            below = stream.resting_on()
            if getattr(sys, name) is stream:  # or somebody has put another in its place, and ours goes on passing on
                setattr(sys, name, below)
            _redirect_logging(cast(TextIO, stream), below)
        self._streams.clear()

    def stdout(self) -> str:
        return self._tails["stdout"].text()

    def stderr(self) -> str:
        return self._tails["stderr"].text()


class _Stream:
    """A text stream that is the one below it in everything, and remembers what is written."""

    def __init__(self, below: TextIO, tail: Tail) -> None:
        self._below: TextIO
        self._tail: Tail | None
        object.__setattr__(self, "_below", below)
        object.__setattr__(self, "_tail", tail)

    def write(self, text: str) -> int:
        written = self._below.write(text)
        self._remember(text)
        return written

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def stop(self) -> None:
        object.__setattr__(self, "_tail", None)

    def resting_on(self) -> TextIO:
        """The stream below, past layers that have stopped: they were left before this one."""
        below = self._below
        while isinstance(below, _Stream) and below._tail is None:
            below = below._below
        return below

    def _remember(self, text: str) -> None:
        tail = self._tail
        if tail is not None:
            with suppress(Exception):  # a str subclass may do as it likes; it has been printed already
                tail.add(str(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._below, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._below, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._below)

    def __enter__(self) -> Self:
        self._below.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._below.__exit__(*error)

    def __repr__(self) -> str:
        return repr(self._below)


def _redirect_logging(before: TextIO, after: TextIO) -> None:
    """Handlers hold the stream that was there when they were made, usually before training begins."""
    with suppress(Exception):
        loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
        for logger in loggers:
            for handler in getattr(logger, "handlers", ()):
                if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                    handler.setStream(after)


def stacks(first: int | None = None, title: str = "current") -> str:
    """Where every thread of this process stands, the asking one first; or another, by its ident, with its title."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident() if first is None else first
    frames = sorted(sys._current_frames().items(), key=lambda item: (item[0] != own, names.get(item[0], "~"), item[0]))
    parts = []
    for ident, frame in frames:
        name = f"{names.get(ident, 'not started by Python')}{f' ({title})' if ident == own else ''}"
        parts.append(f"Thread {name}:\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)


def one_line(error: BaseException) -> str:
    """An exception in a log: its type and what it says, the beginning of it where that is a book."""
    text = " ".join(f"{type(error).__name__}: {said(error)[: 2 * _LONGEST]}".split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def note(error: BaseException, line: str) -> None:
    """Beside what an exception says; in the log where it takes no notes, as one that is frozen."""
    try:
        error.add_note(line)
    except Exception:
        log.error("%s", line)
