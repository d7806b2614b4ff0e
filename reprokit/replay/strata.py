"""Attempts by their inputs: which had the same, whether those agree, and what decides where they do.

Inputs are what was drawn (seed, hash seed, threads) and the kind of host: its device and the versions there. Attempts
of one stratum had identical inputs, so a FAIL beside anything else in one stratum is flaky, whatever the others say.
Where every stratum agrees with itself and strata differ, inputs may decide; `verdict` has how sure that is. Of several
factors the fewest are named by which strata still agree with themselves though the others differ inside them. A seed
that is new each time is cleared by that; it clears nothing else, since each comes with one value of everything. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from reprokit.replay.draws import Inputs, Value
from reprokit.replay.verdict import ALPHA, agree_by_chance, interval
from reprokit.step.outcome import Outcome, Status

SPOILED = (Status.INFRA, Status.INVALID)
HOST = "host"
_Key = tuple[tuple[str, Value], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One evaluation of the case."""

    index: int  # in the order in which they ended
    outcome: Outcome
    inputs: Inputs = field(default_factory=dict)  # what of them was drawn; the rest is as captured
    number: int = 0  # of the draw that its inputs are
    repeat: bool = False  # made to see whether the same inputs give the same answer

    @property
    def counts(self) -> bool:
        """Whether it says anything about the case."""
        return self.outcome.status not in SPOILED

    @property
    def failed(self) -> bool:
        return self.outcome.status is Status.FAIL

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "inputs": dict(self.inputs), "repeat": self.repeat} | self.outcome.to_json()


@dataclass(frozen=True, kw_only=True, slots=True)
class Stratum:
    """Attempts with identical inputs, in the order in which they ended; only those that count."""

    inputs: Inputs
    attempts: tuple[Attempt, ...]

    @property
    def n(self) -> int:
        return len(self.attempts)

    @property
    def fail(self) -> int:
        return sum(attempt.failed for attempt in self.attempts)

    @property
    def mixed(self) -> bool:
        """Identical inputs, and both answers."""
        return 0 < self.fail < self.n

    def to_json(self, alpha: float = ALPHA) -> dict[str, Any]:
        statuses = [attempt.outcome.status for attempt in self.attempts]
        return {
            "inputs": dict(self.inputs),
            "n": self.n,
            "fail": self.fail,
            "pass": statuses.count(Status.PASS),
            "other": statuses.count(Status.OTHER),
            "interval": list(interval(self.fail, self.n, alpha)),
        }


def strata(attempts: Iterable[Attempt]) -> list[Stratum]:
    """In the order in which their first attempts ended. One, with no inputs, where all were as captured."""
    counting = [attempt for attempt in attempts if attempt.counts]
    kinds = _kinds(counting)
    full = [dict(attempt.inputs) | ({HOST: kinds[attempt.outcome.host]} if kinds else {}) for attempt in counting]
    return _grouped(counting, full)


def depends_on(found: Sequence[Stratum], alpha: float = ALPHA) -> tuple[str, ...]:
    """The factors that decide, together or one of them; empty where that is not shown. The fewest that suffice."""
    names = tuple(dict.fromkeys(name for one in found for name in one.inputs))
    if not names or not _decides(found, alpha):
        return ()
    fewer = [some for size in range(1, len(names)) for some in combinations(names, size)]
    each = alpha / max(1, len(fewer))  # each is one more chance to be wrong
    return next((some for some in fewer if _decides(_by(found, some), each)), names)


def settled(found: Sequence[Stratum], alpha: float = ALPHA) -> bool | None:
    """Whether inputs decide; None where neither is shown. False: identical inputs gave both answers."""
    if any(one.mixed for one in found):
        return False
    return True if _decides(found, alpha) else None


def to_repeat(found: Sequence[Stratum], pending: Sequence[Inputs]) -> Stratum | None:
    """What to make again where only unlike inputs differ: as often of those that failed as of the others, and of these
    the one that was made again least. pending: inputs of attempts under way."""
    failed = [one for one in found if one.fail == one.n]
    passed = [one for one in found if not one.fail]
    if len(failed) + len(passed) < len(found) or not failed or not passed:
        return None

    def runs(one: Stratum) -> int:
        return one.n + sum(_drawn(one.inputs) == dict(inputs) for inputs in pending)

    def repeats(group: list[Stratum]) -> int:
        return sum(map(runs, group)) - len(group)

    return min(failed if repeats(failed) <= repeats(passed) else passed, key=runs)


def _kinds(attempts: Sequence[Attempt]) -> dict[str, str]:
    """What kind of host each is; empty where all are alike. A process that was killed did not say what it ran on, but
    others of its host did."""
    kinds: dict[str, str] = {}
    for attempt in attempts:
        if kind := _kind(attempt.outcome):
            kinds.setdefault(attempt.outcome.host, kind)
    if len(set(kinds.values())) < 2:
        return {}
    return {attempt.outcome.host: kinds.get(attempt.outcome.host, attempt.outcome.host) for attempt in attempts}


def _kind(outcome: Outcome) -> str:
    versions = (f"{name} {version}" for name, version in sorted(outcome.versions.items()))
    return ", ".join(filter(None, (outcome.device, *versions)))


def _drawn(inputs: Inputs) -> dict[str, Value]:
    return {name: value for name, value in inputs.items() if name != HOST}


def _grouped(attempts: Sequence[Attempt], inputs: Sequence[Mapping[str, Value]]) -> list[Stratum]:
    groups: dict[_Key, list[Attempt]] = {}
    for attempt, one in zip(attempts, inputs):
        groups.setdefault(tuple(one.items()), []).append(attempt)
    return [Stratum(inputs=dict(key), attempts=tuple(group)) for key, group in groups.items()]


def _by(found: Sequence[Stratum], names: Sequence[str]) -> list[Stratum]:
    """Strata by these factors alone, each with one attempt of every stratum that falls into it: agreement is then
    never that of identical inputs."""
    inputs = [{name: one.inputs[name] for name in names if name in one.inputs} for one in found]
    return _grouped([one.attempts[0] for one in found], inputs)


def _decides(found: Sequence[Stratum], alpha: float) -> bool:
    """Both answers are there, each stratum agrees with itself, and that hardly by chance."""
    if any(one.mixed for one in found):
        return False
    fail = sum(one.n - 1 for one in found if one.fail)
    other = sum(one.n - 1 for one in found if not one.fail)
    both = any(one.fail for one in found) and not all(one.fail for one in found)
    return both and agree_by_chance(fail, other) <= alpha
