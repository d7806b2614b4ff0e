"""Attempts at several settings of one case, in turn, so that what changes meanwhile on the machine changes for all
alike.

A setting is a case and where it runs. All of them get the same number of attempts, one round after the other. What
the machinery spoils is made up for, a few times; a setting that cannot run at all says why, and is asked no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

from reprokit.errors import Infrastructure
from reprokit.replay.engines.base import Engine, outcome_of, submitted
from reprokit.replay.sentence import last_line
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.triage.load import busy

Host = Literal["", "alone", "busy"]

_SPOILED = 3  # attempts at one setting that the machinery may spoil before it is left with what it has


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One value of a factor, or one changed experiment."""

    label: str
    case: Case
    host: Host = ""  # alone: one attempt at a time; busy: with a process that computes on every core
    forked: bool = False  # in a process that was forked, where there is an engine for it


@dataclass(kw_only=True, slots=True)
class Tally:
    """What came of the attempts at a setting."""

    outcomes: list[Outcome] = field(default_factory=list)  # those that say something about the case
    spoiled: list[Outcome] = field(default_factory=list)
    why_not: str = ""  # it cannot run: why

    @property
    def n(self) -> int:
        return len(self.outcomes)

    @property
    def fail(self) -> int:
        return self._count(Status.FAIL)

    @property
    def passed(self) -> int:
        return self._count(Status.PASS)

    @property
    def rate(self) -> float:
        return self.fail / self.n if self.n else 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one more."""
        if outcome.status is Status.INVALID:
            self.why_not = self.why_not or last_line(outcome.detail)
        else:
            (self.spoiled if outcome.status is Status.INFRA else self.outcomes).append(outcome)

    def to_json(self) -> dict[str, Any]:
        counts = {"n": self.n, "fail": self.fail, "pass": self.passed, "other": self._count(Status.OTHER)}
        return {**counts, "infra": len(self.spoiled), "why_not": self.why_not}

    def _count(self, status: Status) -> int:
        return sum(outcome.status is status for outcome in self.outcomes)


class Trials:
    """Asks an engine. forked: another one, whose attempts are forked. on_attempt: hears of each attempt that ended."""

    def __init__(
        self, engine: Engine, forked: Engine | None = None, on_attempt: Callable[[str], None] = lambda label: None
    ) -> None:
        self._engine, self._forked, self._on_attempt = engine, forked, on_attempt

    def ask(self, settings: Sequence[Setting], n: int) -> list[Tally]:
        """n attempts at each setting; fewer where it cannot run, or the machinery breaks again and again.

        Raises BadInput and Infrastructure as the engine does, and Infrastructure where not one attempt could run.
        """
        tallies = [Tally() for _ in settings]
        place = lambda i: (settings[i].host, settings[i].forked)
        for (host, forked), some in groupby(sorted(range(len(settings)), key=place), key=place):
            engine = self._forked if forked and self._forked else self._engine
            with _around(host):
                room = 1 if host == "alone" else engine.capacity
                _rounds(engine, room, {i: settings[i] for i in some}, tallies, n, self._on_attempt)
        if settings and not any(tally.outcomes or tally.why_not for tally in tallies):
            why = last_line(tallies[0].spoiled[0].detail if tallies[0].spoiled else "")
            raise Infrastructure(f"engine {self._engine.name}: no attempt could run; the first: {why}")
        return tallies


def _around(host: Host) -> AbstractContextManager[None]:
    return busy() if host == "busy" else nullcontext()


def _rounds(
    engine: Engine,
    room: int,
    settings: Mapping[int, Setting],
    tallies: Sequence[Tally],
    n: int,
    on_attempt: Callable[[str], None],
) -> None:
    """n rounds over these settings, as many attempts at once as there is room for."""
    todo = deque(i for _ in range(n) for i in settings)
    pending: dict[Future[Outcome], int] = {}
    try:
        while todo or pending:
            while todo and len(pending) < room:
                if not tallies[i := todo.popleft()].why_not:
                    pending[submitted(engine, settings[i].case)] = i
            for future in _ended(pending):
                i = pending.pop(future)
                outcome = outcome_of(future)
                tallies[i].add(outcome)
                if outcome.status is Status.INFRA and len(tallies[i].spoiled) < _SPOILED:
                    todo.append(i)
                on_attempt(settings[i].label)
    finally:
        for future in pending:
            future.cancel()  # those that run are the engine's to end


def _ended(pending: Mapping[Future[Outcome], int]) -> Iterator[Future[Outcome]]:
    done = wait(pending, return_when=FIRST_COMPLETED).done if pending else set()
    return iter([future for future in pending if future in done])
