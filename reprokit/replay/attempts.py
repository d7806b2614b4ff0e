"""Evaluate one case again and again, and judge what came of it.

Where all attempts have identical inputs, a FAIL beside anything else settles it, and the rest is only worth making to
estimate a rate. Where inputs are drawn it does not: then some are made again until it is shown that they decide, or
that they do not. What the machinery spoils says nothing about the case: it is not counted but made up for, and capped,
since an engine that breaks each time would otherwise be tried for ever. INVALID is treated alike: the captured step ran
once, so that it cannot be built here is no finding about it. Who interrupts gets what is known by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay.draws import Draws, Inputs, varied
from reprokit.replay.engines.base import Engine, outcome_of, submitted
from reprokit.replay.result import Replay, Stopped
from reprokit.replay.sentence import last_line
from reprokit.replay.strata import Attempt, settled, strata, to_repeat
from reprokit.replay.verdict import ALPHA
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

_LOOKS = 100  # attempts that are each worth a look; past them, each hundredth more
_LEAST_CAP = 3  # spoiled attempts that even `-n 1` bears: a container that is killed once may well run the next time


class Halted(KeyboardInterrupt):
    """Somebody wanted no more attempts; `replay` is what is known by then."""

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self.replay = replay


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """What is asked of a run of attempts."""

    n: int  # that count, at most
    min_rate: float = 0.0
    alpha: float = ALPHA  # 1 - confidence
    estimate: bool = False  # go on where it is settled, to know the rate
    draws: Draws = field(default_factory=Draws)  # what each attempt varies
    captured: Mapping[str, str] = field(default_factory=dict)  # versions that the step was captured with


def run(
    case: Case,
    engine: Engine,
    rules: Rules | int,
    *,
    jobs: int | None = None,
    kept: Sequence[Attempt] = (),
    judged: Callable[[Outcome], Outcome] | None = None,
    keep: Callable[[Attempt], object] = lambda attempt: None,
    watch: Callable[[Replay], object] = lambda replay: None,
) -> Replay:
    """Make at most `n` attempts that count, as many at once as the engine takes, and stop as soon as it is settled.

    jobs: at most so many at once. kept: attempts of an earlier run that this one goes on with. judged: an outcome,
    by the user's own word. keep: gets each attempt once it ended, before it is used. watch: gets what is known then.
    Raises Halted where it is interrupted, Infrastructure where not one attempt ran, BadInput where the case cannot be
    built, or as the engine does.
    """
    rules = rules if isinstance(rules, Rules) else Rules(n=rules)
    if rules.n < 1:
        raise BadInput(f"-n {rules.n}: give at least 1")
    room = max(1, min(jobs or engine.capacity, engine.capacity))
    loop = _Loop(case, engine, rules, kept, judged or (lambda outcome: outcome), room)
    try:
        while not (stopped := loop.stopped()):
            loop.fill()
            for attempt in loop.ended():
                try:
                    keep(attempt)
                finally:
                    worth_telling = loop.add(attempt)  # also where somebody interrupts while the disk is waited for
                if worth_telling:
                    watch(loop.replay("interrupted"))
    except KeyboardInterrupt as error:
        raise Halted(loop.replay("interrupted")) from error
    finally:
        loop.cancel()
    loop.refuse_nothing()
    found = loop.replay(stopped)
    if loop.behind:
        watch(found)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Draw:
    """Of an attempt under way."""

    number: int
    inputs: Inputs
    repeat: bool
    concurrency: int


class _Loop:
    """Attempts that ended, those under way, and which comes next."""

    def __init__(
        self,
        case: Case,
        engine: Engine,
        rules: Rules,
        kept: Sequence[Attempt],
        judged: Callable[[Outcome], Outcome],
        room: int,
    ) -> None:
        self._case, self._engine, self._rules, self._judged, self._room = case, engine, rules, judged, room
        self.attempts = list(kept)
        self._spoiled = self._spoiled_before = sum(not attempt.counts for attempt in kept)
        self._strata, self._look_at = strata(kept), len(kept) + 1
        self.behind = False  # attempts that nobody has looked at
        self._pending: dict[Future[Outcome], _Draw] = {}
        self._used = {attempt.number for attempt in kept}  # with gaps: some were interrupted before they ended
        self._next = 0

    def add(self, attempt: Attempt) -> bool:
        """Whether all of them are worth a look again: after each while they are few, later after each hundredth more,
        or thousands would cost the square of their number. What holds at any time holds at these."""
        self.attempts.append(attempt)
        self._spoiled += not attempt.counts
        self.behind = len(self.attempts) < self._look_at
        if not self.behind:
            self._strata = strata(self.attempts)
            self._look_at = len(self.attempts) + 1 + len(self.attempts) // _LOOKS
        return not self.behind

    def replay(self, stopped: Stopped) -> Replay:
        return Replay(
            engine=self._engine.name,
            asked=self._rules.n,
            min_rate=self._rules.min_rate,
            stopped=stopped,
            attempts=tuple(self.attempts),
            alpha=self._rules.alpha,
            drawn=self._rules.draws.names,
            captured=self._rules.captured,
        )

    def stopped(self) -> Stopped | None:
        if len(self.attempts) - self._spoiled >= self._rules.n:
            return "asked"
        if not self._rules.estimate and (decides := settled(self._strata, self._rules.alpha)) is not None:
            return "depends" if decides else "flaky"
        broke = self._spoiled - self._spoiled_before
        if broke >= _LEAST_CAP and self._all_invalid():
            return "infrastructure"  # what no process can build is not tried again and again
        return "infrastructure" if broke >= self._cap else None

    def fill(self) -> None:
        """Start as many as may run now."""
        missing = self._rules.n - (len(self.attempts) - self._spoiled)
        bearable = self._cap - (self._spoiled - self._spoiled_before)
        while len(self._pending) < min(self._room, missing, bearable):
            draw = self._draw()
            self._pending[submitted(self._engine, varied(self._case, draw.inputs))] = draw

    def ended(self) -> Iterator[Attempt]:
        """Wait until some end, and give one after the other: what breaks at one has lost none before it."""
        done = wait(self._pending, return_when=FIRST_COMPLETED).done
        for future in [future for future in self._pending if future in done]:
            draw = self._pending.pop(future)
            outcome = replace(self._judged(outcome_of(future)), concurrency=draw.concurrency)
            yield Attempt(
                index=len(self.attempts),
                outcome=outcome,
                inputs=draw.inputs,
                number=draw.number,
                repeat=draw.repeat,
            )

    def cancel(self) -> None:
        for future in self._pending:
            future.cancel()  # those that run are the engine's to end

    def refuse_nothing(self) -> None:
        """Raises where nothing is known, and why."""
        if self._spoiled < len(self.attempts):
            return
        why = last_line(self.attempts[0].outcome.detail)
        if self._all_invalid():
            raise BadInput(f"{self._case.incident}: cannot be rebuilt here: {why}")
        count = len(self.attempts)
        raise Infrastructure(f"engine {self._engine.name}: none of {count} attempts could run; the first: {why}")

    @property
    def _cap(self) -> int:
        return max(_LEAST_CAP, self._rules.n)

    def _draw(self) -> _Draw:
        """The next inputs: new ones, or some again where that tells whether inputs decide."""
        concurrency, names = len(self._pending) + 1, self._rules.draws.names
        if names:
            under_way = [draw.inputs for draw in self._pending.values()]
            unsettled = settled(self._strata, self._rules.alpha) is None
            if unsettled and (again := to_repeat(self._strata, under_way)):
                first = again.attempts[0]
                return _Draw(number=first.number, inputs=first.inputs, repeat=True, concurrency=concurrency)
        while self._next in self._used:
            self._next += 1
        number, self._next = self._next, self._next + 1
        inputs = self._rules.draws.inputs(number)
        return _Draw(number=number, inputs=inputs, repeat=False, concurrency=concurrency)

    def _all_invalid(self) -> bool:
        return all(attempt.outcome.status is Status.INVALID for attempt in self.attempts)
