"""Attempts that ended, on disk: whatever ends a run of them, it goes on with every one that it made.

Each is a line, synced before it is used, since the next may take the machine down. The first line holds what makes an
attempt what it is: incident, case, engine and options. Attempts of another kind are no attempts at this, so it must be
the same; how many are asked for, and how sure one wants to be, may change. The second holds the number from which all
draws come. Beside it lie the logs. Where it cannot be written any more, attempts go on without it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reprokit import _lines
from reprokit.errors import BadInput, ReprokitError
from reprokit.replay import keeping
from reprokit.replay.attempts import Halted
from reprokit.replay.result import Replay
from reprokit.replay.strata import Attempt
from reprokit.step.outcome import Outcome

FILE, LOGS = "attempts.jsonl", "logs"
_FORMAT = 1
_KINDS: Mapping[str, Any] = {"index": int, "number": int, "repeat": bool, "inputs": dict, "outcome": dict}


class Journal:
    """Of one run of attempts, by one process at a time. Costs one sync an attempt. No folder: nothing is kept."""

    def __init__(
        self, folder: Path | None, handle: int | None, base: int, attempts: list[Attempt], *, passing: bool = False
    ) -> None:
        self.folder = folder
        self.base = base  # all draws come from it
        self.attempts = attempts  # those that were here when it was opened
        self.broken = ""  # one line, once it cannot be written any more
        self._handle = handle
        self._passing = passing  # of no use once the run is over
        self._count, self._counting = len(attempts), sum(attempt.counts for attempt in attempts)

    @classmethod
    def open(cls, folder: Path, asked: Mapping[str, Any], *, resume: bool = False, passing: bool = False) -> Journal:
        """A new one in a folder that has none, or to go on with one. asked: what must be the same then, as plain data.

        Raises BadInput: there is one, there is none, it is of another replay, in use, or cannot be written.
        """
        path = folder / FILE
        header = {"replay": _FORMAT, **asked}
        first = _lines.line({"header": header}) + _lines.line({"base": secrets.randbits(64)})
        handle = keeping.claimed(path, first, resume=resume, whose="replay")
        try:
            base, attempts = _read(path, handle, header)
        except BaseException:
            os.close(handle)
            raise
        return cls(folder, handle, base, attempts, passing=passing)

    @classmethod
    def nowhere(cls) -> Journal:
        """Keeps nothing."""
        return cls(None, None, secrets.randbits(64), [])

    def keep(self, attempt: Attempt) -> None:
        """With its log, before it is used."""
        if self._handle is None or self.folder is None or self.broken:
            return
        try:
            self._count += 1
            self._counting += attempt.counts  # first: whoever interrupts the next line may have it on the disk
            _write_log(attempt, _log_of(self.folder, attempt.index))
            _lines.append(self._handle, _lines.line({"attempt": _plain(attempt)}), sync=True)
        except OSError as error:
            self.broken = f"{self.folder}: {error.strerror}; attempts go on, but cannot be resumed from here"

    def ended(self, run: Callable[[], Replay]) -> Replay:
        """What it gives, with the folder where that is still there: one that was given, or that one can go on from."""
        try:
            replay = run()
        except Halted as halted:
            halted.replay = replace(halted.replay, folder=self._left())
            raise
        except ReprokitError as error:
            if left := self._left():
                error.args = (f"{error}; {self._counting} attempts kept, to go on from there: --resume {left}",)
            raise
        except BaseException:  # an error of ours, or of somebody's code in here
            self._left()
            raise
        over = replay.stopped != "infrastructure"
        if over and self._passing and self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
            return replay
        return replace(replay, folder=self._left())

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)  # which gives up the lock
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _left(self) -> Path | None:
        """The folder, unless there is nothing in it to go on from."""
        if self.folder and not self._counting:
            with suppress(OSError):
                for index in range(self._count):
                    _log_of(self.folder, index).unlink(missing_ok=True)
                (self.folder / FILE).unlink()
            for ours in (self.folder / LOGS, self.folder):
                with suppress(OSError):
                    ours.rmdir()  # if there is nothing else in it: the user chose the place, and may have more there
            return None
        return self.folder


def opened(
    out: Path | None, resume: Path | None, asked: Mapping[str, Any], *, keep: bool, say: Callable[[str], object]
) -> Journal:
    """Where the user says; else, to `keep` it while it goes on, in the user's cache; else nowhere."""
    opening = partial(Journal.open, asked=asked)
    incident = str(asked["incident"])
    found = keeping.kept(opening, out, resume, runs="replays", incident=incident, keep=keep, say=say)
    return found or Journal.nowhere()


def _read(path: Path, handle: int, header: Mapping[str, Any]) -> tuple[int, list[Attempt]]:
    """Base and attempts."""
    base, *attempts = _lines.records(path, handle, header, _record, whose="replay") or [None]
    if not isinstance(base, int) or not all(isinstance(one, Attempt) for one in attempts):
        raise BadInput(f"{path}: line 2 is damaged; give another folder")
    found = [one for one in attempts if isinstance(one, Attempt)]
    for index, one in enumerate(found):
        if one.index != index:  # a line is there twice, or is not
            raise BadInput(f"{path}: line {index + 3} is not of attempt {index}; give another folder")
    return base, found


def _record(line: bytes) -> int | Attempt | None:
    """None where it is neither."""
    data = _lines.parsed(line)
    base = data.get("base")
    return base if type(base) is int else _attempt(data)


def _log_of(folder: Path, index: int) -> Path:
    return folder / LOGS / f"{index:04d}.txt"


def _write_log(attempt: Attempt, path: Path) -> None:
    """What its process printed last, or what is known instead."""
    outcome = attempt.outcome
    exit_code = [] if outcome.exit_code is None else [f"exit code {outcome.exit_code}"]
    if text := "\n".join([*exit_code, *filter(None, dict.fromkeys((outcome.detail, outcome.log)))]):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{text}\n", errors="replace")


def _plain(attempt: Attempt) -> dict[str, Any]:
    return {
        "index": attempt.index,
        "number": attempt.number,
        "repeat": attempt.repeat,
        "inputs": dict(attempt.inputs),
        "outcome": attempt.outcome.to_json(),
    }


def _attempt(record: Mapping[str, Any]) -> Attempt | None:
    """None where it is none."""
    data = record.get("attempt")
    if not isinstance(data, dict) or {name: type(value) for name, value in data.items()} != _KINDS:
        return None
    if data["number"] < 0 or not all(type(value) in (int, bool, str) for value in data["inputs"].values()):
        return None
    try:
        outcome = Outcome.from_json(data["outcome"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return None
    return Attempt(**{**data, "outcome": outcome})
