"""Evaluate one case again and again, and judge what came of it.

All attempts have identical inputs, so a FAIL beside anything else settles it, and the rest is only worth making to
estimate a rate. What the machinery spoils says nothing about the case: it is not counted but made up for, and capped,
since an engine that breaks each time would otherwise be tried for ever. INVALID is treated alike: the captured step ran
once, so that it cannot be built here is no finding about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any, Literal

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Signature
from reprokit.replay.engines.base import Engine
from reprokit.replay.verdict import (
    ALPHA,
    Tally,
    Verdict,
    attempts_for,
    interval,
    judge,
    rate_at_least,
    rate_below,
)
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

Stopped = Literal["asked", "flaky", "infrastructure"]

_SPOILED = (Status.INFRA, Status.INVALID)
_LEAST_CAP = 3  # spoiled attempts that even `-n 1` bears: a container that is killed once may well run the next time


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    index: int  # in the order in which they ended
    outcome: Outcome

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index} | self.outcome.to_json()


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Attempts at one case, and what they support."""

    engine: str
    asked: int  # attempts asked for
    min_rate: float  # rate of failure that must be supported before it is called reproducible
    stopped: Stopped  # all that was asked for; flaky, which settles it; or an engine that kept breaking
    attempts: tuple[Attempt, ...]

    @property
    def usable(self) -> list[Outcome]:
        return [attempt.outcome for attempt in self.attempts if attempt.outcome.status not in _SPOILED]

    @property
    def n(self) -> int:
        return len(self.usable)

    @property
    def fail(self) -> int:
        return self._count(Status.FAIL)

    @property
    def passed(self) -> int:
        return self._count(Status.PASS)

    @property
    def other(self) -> int:
        return self._count(Status.OTHER)

    @property
    def infra(self) -> int:
        return len(self.attempts) - self.n

    @property
    def verdict(self) -> Verdict:
        return judge(Tally(fail=self.fail, other=self.n - self.fail, asked=self.asked, min_rate=self.min_rate))

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.fail, self.n)

    @property
    def rate_at_least(self) -> float:
        """Where all failed the bound for that; else the lower end of the interval."""
        return rate_at_least(self.n) if self.fail == self.n else self.interval[0]

    @property
    def fingerprints(self) -> Counter[tuple[tuple[str, str], ...]]:
        """How many usable attempts have each fingerprint, of those that came far enough to have one."""
        return Counter(_bits(outcome) for outcome in self.usable if outcome.fingerprint)

    def to_json(self) -> dict[str, Any]:
        prints = self.fingerprints
        return {
            "verdict": str(self.verdict),
            "n": self.n,
            "fail": self.fail,
            "pass": self.passed,
            "other": self.other,
            "infra": self.infra,
            "rate_at_least": self.rate_at_least,
            "interval": list(self.interval),
            "confidence": 1 - ALPHA,
            "stopped": self.stopped,
            "engine": self.engine,
            "strata": [],  # all inputs are identical
            "fingerprints": {"distinct": len(prints), "stable": max(prints.values(), default=0)},
            "attempts": [attempt.to_json() for attempt in self.attempts],
        }

    def _count(self, status: Status) -> int:
        return sum(attempt.outcome.status is status for attempt in self.attempts)


def run(
    case: Case,
    engine: Engine,
    n: int,
    *,
    jobs: int | None = None,
    min_rate: float = 0.0,
    estimate: bool = False,
    on_attempt: Callable[[int, Outcome], None] | None = None,
) -> Replay:
    """Make at most `n` attempts that count, as many at once as the engine takes, and stop as soon as it is settled.

    jobs: at most so many at once. estimate: go on where it is flaky, to know the rate. on_attempt: hears of each that
    ends: its index, in that order, and its outcome.
    Raises Infrastructure where not one attempt ran, BadInput where the case cannot be built, or as the engine does.
    """
    if n < 1:
        raise BadInput(f"-n {n}: give at least 1")
    room, cap = max(1, min(jobs or engine.capacity, engine.capacity)), max(_LEAST_CAP, n)
    attempts: list[Attempt] = []
    pending: list[Future[Outcome]] = []
    try:
        while not (stopped := _stopped(attempts, n, cap, estimate)):
            spoiled = _spoiled(attempts)
            while len(pending) < min(room, n - (len(attempts) - spoiled), cap - spoiled):
                pending.append(_submitted(engine, case))
            ended = wait(pending, return_when=FIRST_COMPLETED).done
            for future in [future for future in pending if future in ended]:
                pending.remove(future)
                attempts.append(Attempt(index=len(attempts), outcome=_outcome(future)))
                if on_attempt:
                    on_attempt(attempts[-1].index, attempts[-1].outcome)
    finally:
        for future in pending:
            future.cancel()  # those that run are the engine's to end
    if _spoiled(attempts) == len(attempts):
        why = _one_line(attempts[0].outcome.detail)
        if _all_invalid(attempts):
            raise BadInput(f"{case.incident}: cannot be rebuilt here: {why}")
        raise Infrastructure(f"engine {engine.name}: none of {len(attempts)} attempts could run; the first: {why}")
    return Replay(engine=engine.name, asked=n, min_rate=min_rate, stopped=stopped, attempts=tuple(attempts))


def _stopped(attempts: list[Attempt], n: int, cap: int, estimate: bool) -> Stopped | None:
    statuses = [attempt.outcome.status for attempt in attempts if attempt.outcome.status not in _SPOILED]
    if len(statuses) >= n:
        return "asked"
    if not estimate and len({status is Status.FAIL for status in statuses}) == 2:
        return "flaky"
    if len(attempts) >= _LEAST_CAP and _all_invalid(attempts):
        return "infrastructure"  # what no process can build is not tried again and again
    return "infrastructure" if _spoiled(attempts) >= cap else None


def _spoiled(attempts: list[Attempt]) -> int:
    return sum(attempt.outcome.status in _SPOILED for attempt in attempts)


def _all_invalid(attempts: list[Attempt]) -> bool:
    return all(attempt.outcome.status is Status.INVALID for attempt in attempts)


def _submitted(engine: Engine, case: Case) -> Future[Outcome]:
    """The future of an attempt, also where the engine breaks before it has one."""
    try:
        return engine.submit(case)
    except Exception as error:
        broken: Future[Outcome] = Future()
        broken.set_exception(error)
        return broken


def _outcome(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except BadInput:
        raise  # the user can mend it, and the next attempt would meet it too
    except Infrastructure as error:
        return Outcome(status=Status.INFRA, detail=str(error))
    except Exception as error:
        return Outcome(status=Status.INFRA, detail=f"{type(error).__name__}: {error}")


def _one_line(detail: str) -> str:
    """The last line of a traceback or an explanation, which says what happened."""
    lines = [line for line in detail.splitlines() if line.strip()]
    said = "".join(character for character in lines[-1] if character.isprintable()).strip() if lines else ""
    return said[:300] or "it did not say why"


def sentence(replay: Replay) -> str:
    """What the attempts came to, for people: counts first, then what they support."""
    match replay.verdict:
        case Verdict.REPRODUCIBLE:
            return f"{_counts(replay)}: {_supported(replay)}"
        case Verdict.FLAKY:
            low, high = replay.interval
            return f"{_counts(replay)}: fails in {low:.0%} to {high:.0%} of attempts {_SURE}{_decides(replay)}"
        case Verdict.NOT_REPRODUCED:
            return f"{_counts(replay)}: {_supported(replay)}"
    if replay.n >= replay.asked:
        more = f"; that takes {attempts_for(replay.min_rate)} attempts" if replay.min_rate < 1 else ""
        return f"{_counts(replay)}: {_supported(replay)}, not the {replay.min_rate:.0%} asked for{more}"
    spoiled = next((a.outcome.detail for a in replay.attempts if a.outcome.status in _SPOILED), "")
    few = f"{replay.n} of {replay.asked} attempts usable"
    return f"{few}, {_counts(replay)}: {_supported(replay)}; {replay.infra} broke, the first: {_one_line(spoiled)}"


_SURE = f"({1 - ALPHA:.0%} confidence)"


def _supported(replay: Replay) -> str:
    """What equal answers support."""
    if replay.fail:
        return f"fails in at least {rate_at_least(replay.n):.0%} of attempts {_SURE}"
    return f"fails in fewer than {rate_below(replay.n):.0%} of attempts {_SURE}"


def _counts(replay: Replay) -> str:
    parts = [f"{replay.fail}/{replay.n} failed"]
    if replay.fail < replay.n:
        parts[0] += " as captured"
    if replay.passed:
        parts.append(f"{replay.passed} passed")
    if others := [outcome.signature for outcome in replay.usable if outcome.status is Status.OTHER]:
        parts.append(f"{len(others)} in another way ({_named(Counter(others).most_common(1)[0][0])})")
    prints = replay.fingerprints
    if len(prints) == 1 and prints.total() > 1 and replay.verdict is not Verdict.FLAKY:
        parts.append(f"bitwise-stable {prints.total()}/{prints.total()}")
    elif len(prints) > 1 and replay.verdict is not Verdict.FLAKY and (name := _first_difference(replay.usable)):
        parts.append(f"{len(prints)} fingerprints that differ first in {name}")
    return ", ".join(parts)


def _named(signature: Signature | None) -> str:
    if signature is None:
        return "not known"
    function = f" in {signature.function}" if signature.function else ""
    return f"{signature.exception or signature.kind} at {signature.where}{function}"


def _decides(replay: Replay) -> str:
    """Where a flaky failure comes from, as far as fingerprints tell."""
    fails = [outcome for outcome in replay.usable if outcome.fingerprint and outcome.status is Status.FAIL]
    others = [outcome for outcome in replay.usable if outcome.fingerprint and outcome.status is not Status.FAIL]
    if not fails or not others:
        return ""
    if {_bits(outcome) for outcome in fails} & {_bits(outcome) for outcome in others}:
        return "; same fingerprint, another outcome: state outside the tensors decides"
    name = _first_difference([fails[0], others[0]])
    return f"; fingerprints differ first in {name}" if name else ""


def _bits(outcome: Outcome) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(outcome.fingerprint.items()))


def _first_difference(outcomes: list[Outcome]) -> str:
    """The first part that two fingerprints both have and do not agree on, in the order in which a step makes them."""
    prints = [outcome.fingerprint for outcome in outcomes if outcome.fingerprint]
    differ = (part for part in prints[0] if len({one[part] for one in prints if part in one}) > 1)
    return next(differ, "")
