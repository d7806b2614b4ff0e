"""Outcomes of a triage on disk, so that one that was interrupted goes on with every attempt that it made.

A triage asks the same cases in the same order where it is given the same outcomes. So an outcome is kept with its case
and with how often that was asked before; an engine around the real one gives it back in place of an attempt. What the
machinery spoiled is not kept: it is made again.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reprokit import _lines
from reprokit.errors import ReprokitError
from reprokit.replay import keeping
from reprokit.replay.engines.base import Engine
from reprokit.replay.strata import SPOILED
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome

FILE = "triage.jsonl"
_FORMAT = 1
_Key = tuple[str, str, int]  # engine, case, how often it was asked before


class Kept:
    """Of one triage, by one process at a time. Costs one sync an attempt."""

    def __init__(
        self,
        folder: Path | None,
        handle: int | None,
        outcomes: Mapping[_Key, Outcome],
        *,
        passing: bool,
        say: Callable[[str], object],
    ) -> None:
        self.folder = folder
        self._handle = handle
        self._outcomes = dict(outcomes)
        self._passing, self._say = passing, say  # passing: of no use once it is over
        self._lock = threading.Lock()

    @classmethod
    def open(
        cls, folder: Path, asked: Mapping[str, Any], say: Callable[[str], object], *, resume: bool, passing: bool
    ) -> Kept:
        """A new one in a folder that has none, or to go on with one. asked: what makes an attempt what it is.

        Raises BadInput: there is one, there is none, it is of another triage, in use, or cannot be written.
        """
        path, header = folder / FILE, {"triage": _FORMAT, **asked}
        handle = keeping.claimed(path, _lines.line({"header": header}), resume=resume, whose="triage")
        try:
            outcomes = dict(_lines.records(path, handle, header, _record, whose="triage"))
        except BaseException:
            os.close(handle)
            raise
        return cls(folder, handle, outcomes, passing=passing, say=say)

    def around(self, engine: Engine) -> Engine:
        """The engine, which evaluates what is not known yet. Whoever opened it closes it."""
        return _Remembering(engine, self)

    def known(self, key: _Key) -> Outcome | None:
        return self._outcomes.get(key)

    def keep(self, key: _Key, outcome: Outcome) -> None:
        """Where it says something about the case."""
        if outcome.status in SPOILED:
            return
        engine, case, nth = key
        record = {"engine": engine, "case": json.loads(case), "nth": nth, "outcome": outcome.to_json()}
        with self._lock:
            if self._handle is None:
                return
            self._outcomes[key] = outcome
            try:
                _lines.append(self._handle, _lines.line(record), sync=True)
            except OSError as error:
                self._say(f"{self.folder}: {error.strerror}; attempts go on, but cannot be resumed from here")
                self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._close()
        if self._passing and self.folder and (error is None or not self._outcomes):
            shutil.rmtree(self.folder, ignore_errors=True)
        elif error is not None and self.folder and self._outcomes:
            left = f"{len(self._outcomes)} attempts kept, to go on from there: --resume {self.folder}"
            if isinstance(error, ReprokitError):
                error.args = (f"{error}; {left}",)
            else:
                self._say(left)

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)  # which gives up the lock
            self._handle = None


def opened(
    out: Path | None, resume: Path | None, asked: Mapping[str, Any], *, keep: bool, say: Callable[[str], object]
) -> Kept:
    """Where the user says; else, to `keep` it while it goes on, in the user's cache; else nowhere."""
    opening = partial(Kept.open, asked=asked, say=say)
    incident = str(asked["incident"])
    found = keeping.kept(opening, out, resume, runs="triages", incident=incident, keep=keep, say=say)
    return found or Kept(None, None, {}, passing=False, say=say)


class _Remembering(Engine):
    def __init__(self, inner: Engine, kept: Kept) -> None:
        self.name, self.capacity = inner.name, inner.capacity
        self._inner, self._kept = inner, kept
        self._asked: Counter[str] = Counter()

    def submit(self, case: Case) -> Future[Outcome]:
        text = json.dumps({name: value for name, value in case.to_json().items() if name != "incident"}, sort_keys=True)
        key = (self.name, text, self._asked[text])
        self._asked[text] += 1
        if (known := self._kept.known(key)) is not None:
            future: Future[Outcome] = Future()
            future.set_result(known)
            return future
        future = self._inner.submit(case)
        future.add_done_callback(lambda ended: self._keep(key, ended))
        return future

    def _keep(self, key: _Key, ended: Future[Outcome]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            self._kept.keep(key, ended.result())


def _record(line: bytes) -> tuple[_Key, Outcome] | None:
    """None where it is none."""
    data = _lines.parsed(line)
    kinds = {"engine": str, "case": dict, "nth": int, "outcome": dict}
    if {name: type(value) for name, value in data.items()} != kinds:
        return None
    try:
        outcome = Outcome.from_json(data["outcome"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return (data["engine"], json.dumps(data["case"], sort_keys=True), data["nth"]), outcome
