"""Where news goes while something works, whoever shows it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Somebody who is told."""

    def say(self, line: str) -> None:
        """A line worth reading once."""

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """How far it is; total None where nobody knows."""


class Silence:
    """For callers that want the result alone."""

    def say(self, line: str) -> None: ...

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None: ...
