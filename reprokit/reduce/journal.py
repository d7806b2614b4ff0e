"""What a reduction asked and was answered, on disk: killed at any instant, it goes on to the identical result.

A reduction is deterministic but for what its evaluations say. So nothing of its state is stored: whoever goes on starts
from the beginning, and the answers that are here come from here. A record is a line, handed to the system at once: that
is all it takes to outlive the process. To outlive the machine takes a sync, and what brings a machine down is most
likely an evaluation: one sync before each puts the question and every answer so far on the disk. Hence only the end can
be torn, and torn lines are as good as none. What was asked and never answered is known as well: a candidate that takes
the machine down is met again, but not unawares.

Its first line, the header, holds what must be the same for its answers to be answers again. What a user may change on
the way, and what only tells where it came from (the deadline, the host), is a line of its own each time that it is
another one, and an answer that depends on it is asked again.

A journal is no result. Where it cannot be written any more, the reduction goes on without it.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from reprokit import _files, _lines
from reprokit.errors import BadInput
from reprokit.step.outcome import Outcome

_AGAIN = "delete it to start over, or give another --out"

Read = Callable[[Mapping[str, Any], Mapping[str, Any]], bool]
"""Whether an answer, given under these circumstances, still is one. Raises LookupError, TypeError, ValueError or
AttributeError where it never was."""


def an_outcome(answer: Mapping[str, Any], about: Mapping[str, Any]) -> bool:
    """Whatever the circumstances."""
    Outcome.from_json(answer)
    return True


class Journal:
    """Of one reduction, by one process at a time; its threads may share it. Costs one sync an evaluation."""

    def __init__(self, path: Path, handle: int, records: list[dict[str, Any]], read: Read = an_outcome) -> None:
        """Raises BadInput for a damaged answer."""
        self.path = path
        self.about: dict[str, Any] = {}  # the circumstances of what comes
        self.unfinished: dict[str, dict[str, str]] = {}  # what was published before the end, by what it is
        self.answers: dict[str, list[dict[str, Any]]] = {}  # by key, in order: a case may be asked many times
        self.unanswered: Counter[str] = Counter()  # times that a key was asked and the answer never came
        self.broken = ""  # one line, once it cannot be written any more
        self._handle: int | None = handle
        self._lock = Lock()
        self._left: dict[str, deque[dict[str, Any]]] = {}
        for line, record in enumerate(records, start=2):
            self._note(record)
            if "answered" in record and self._is_good(record["outcome"], read, line):
                self._left.setdefault(record["answered"], deque()).append(record["outcome"])

    @classmethod
    def open(
        cls, path: Path, header: Mapping[str, Any], *, about: Mapping[str, Any] | None = None, read: Read = an_outcome
    ) -> Journal:
        """A new one, or what there is of this reduction. Raises BadInput: in use, of another reduction, no journal.

        about: the circumstances of the answers to come.
        """
        try:
            handle = _lines.claimed(path, _lines.line({"journal": header}))
        except OSError as error:
            raise BadInput(f"{path}: no journal can be kept there: {error.strerror}; give another --out") from error
        try:
            journal = cls(path, handle, _records(path, handle, json.loads(_lines.line(header))), read)
        except BaseException:
            os.close(handle)
            raise
        if about is not None and journal.about != json.loads(_lines.line(about)):
            journal._write({"about": about}, sync=False)
        return journal

    def asking(self, key: str) -> None:
        """Before an evaluation."""
        self._write({"asked": key}, sync=True)

    def answered(self, key: str, outcome: Mapping[str, Any]) -> None:
        """After it, in the order in which answers are used. The outcome is JSON: raises ValueError for NaN."""
        self._write({"answered": key, "outcome": outcome}, sync=False)

    def published(self, what: str, place: Mapping[str, str]) -> None:
        """An unfinished result, so that what comes after it can take its place."""
        self._write({"unfinished": what, "place": place}, sync=True)

    def recall(self, key: str) -> dict[str, Any] | None:
        """The next good answer that was here when it was opened; each is given once. None: none is left."""
        left = self._left.get(key)
        return left.popleft() if left else None

    def close(self) -> None:
        if self._handle is not None:
            with suppress(OSError):  # what is not on the disk by now is asked again
                os.fsync(self._handle)
            os.close(self._handle)  # which gives up the lock
            self._handle = None

    def remove(self) -> None:
        """Once the result is safe."""
        with suppress(OSError):  # one that stays is in nobody's way
            self.path.unlink()
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _write(self, record: dict[str, Any], *, sync: bool) -> None:
        line = _lines.line(record)
        with self._lock:
            self._note(json.loads(line))  # as it will be read: whoever goes on sees the same
            if self._handle is None or self.broken:
                return
            try:
                _lines.append(self._handle, line, sync=sync)
            except OSError as error:
                self.broken = f"{self.path}: {error.strerror}; the reduction goes on, but cannot be resumed from here"

    def _is_good(self, outcome: dict[str, Any], read: Read, line: int) -> bool:
        try:
            return read(outcome, self.about)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise BadInput(f"{self.path}: line {line} is damaged; {_AGAIN}") from None

    def _note(self, record: dict[str, Any]) -> None:
        if "about" in record:
            self.about = record["about"]
        elif "unfinished" in record:
            self.unfinished[record["unfinished"]] = record["place"]
        elif "asked" in record:
            self.unanswered[record["asked"]] += 1
        else:
            key = record["answered"]
            self.answers.setdefault(key, []).append(record["outcome"])
            self.unanswered[key] -= 1
            self.unanswered = +self.unanswered


def _records(path: Path, handle: int, header: dict[str, Any]) -> list[dict[str, Any]]:
    """All whole records. Cuts off what is torn at the end."""
    if (all_lines := _lines.read(handle)) is None:
        raise BadInput(f"{path}: not a journal; give another --out")
    first, *lines = all_lines or [b""]
    found = _lines.parsed(first).get("journal")
    if not isinstance(found, dict):
        raise BadInput(f"{path}: not a journal; give another --out")
    if found != header:
        names = sorted(key for key in found.keys() | header.keys() if found.get(key) != header.get(key))
        raise BadInput(f"{path}: of another reduction: not the same {', '.join(map(_files.shown, names))}; {_AGAIN}")
    records = [_lines.parsed(line) for line in lines]
    whole = [_is_record(record) for record in records]
    sound = whole.index(False) if False in whole else len(whole)
    if any(whole[sound:]):
        raise BadInput(f"{path}: line {sound + 2} is damaged; {_AGAIN}")
    if sound < len(whole):
        os.ftruncate(handle, len(first) + sum(map(len, lines[:sound])))
    return records[:sound]


def _is_place(data: Any) -> bool:
    """Beside the journal."""
    texts = isinstance(data, dict) and data.keys() == {"name", "id"} and all(type(one) is str for one in data.values())
    return texts and "/" not in data["name"]


def _is_record(data: dict[str, Any]) -> bool:
    if data.keys() == {"asked"}:
        return isinstance(data["asked"], str)
    if data.keys() == {"about"}:
        return isinstance(data["about"], dict)
    if data.keys() == {"unfinished", "place"}:
        return type(data["unfinished"]) is str and _is_place(data["place"])
    return data.keys() == {"answered", "outcome"} and type(data["answered"]) is str and type(data["outcome"]) is dict
