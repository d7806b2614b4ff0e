"""Answers a plan's questions, and keeps the books.

It evaluates nothing itself and decides nothing about batches. What it owns: the level of isolation, the cache, the
journal, what was spent and what may be, the noise, and the workers. A question is answered by one evaluation while case
and donor are clean. Where the failure comes and goes, each evaluation is a trial, and a sequential test over as many as
it takes gives the answer; where it depends on random numbers, each trial starts from other ones.

Several workers answer ahead of the plan (see `ahead`). Answers are used in the order of the plan alone, hence the
result, and what is counted, are the same whatever their number.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from queue import SimpleQueue
from time import monotonic
from types import TracebackType
from typing import Literal

from reprokit.errors import Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.reduce.ahead import Plan, foreseen
from reprokit.reduce.isolation import Isolation, settle
from reprokit.reduce.journal import Journal
from reprokit.reduce.noise import Rates, deciding
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

FORWARD = 1 / 3  # of a step: a backward pass costs about twice its forward pass (two matrix products for each one)
_TAIL = 300  # characters of a detail that are passed on: the last lines of a traceback
_TRIES = 2  # of an evaluation that the machinery spoils: one accident is chance, two are a fault
_AHEAD = 4  # guesses looked at for each worker: what many answers away will be asked is anybody's guess
_SEED = 1_000_003  # trial i starts from seed _SEED + i: any numbers do, as long as they are the same next time

Evaluate = Callable[[Case, str], Outcome]


class Spent(Exception):  # no error: the best so far is the answer
    """The budget is used up, or somebody wants no more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a reduction may spend. `stop` is asked before each evaluation."""

    calls: int | None = None
    seconds: float | None = None
    stop: Callable[[], bool] = lambda: False


UNLIMITED = Limits()


@dataclass(kw_only=True, slots=True)
class Phase:
    """What was spent in one phase of a reduction."""

    calls: int = 0
    elements: float = 0.0  # evaluated, as multiples of the whole batch's
    steps: float = 0.0  # the same, counting how far each evaluation ran

    def to_json(self) -> dict[str, float]:
        return {"calls": self.calls, "elements": self.elements, "steps": self.steps}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One evaluation of a case; equal trials of a deterministic case are one and the same."""

    case: Case
    isolation: str
    number: int

    @cached_property
    def key(self) -> str:
        return f"{self.isolation} {self.number} {json.dumps(self.case.to_json(), sort_keys=True)}"


@dataclass
class Oracle:
    """`evaluate`: one callable for each worker; they may be called at the same time, from other threads."""

    evaluate: Sequence[Evaluate]
    captured: Signature
    weigh: Callable[[Case], float]  # a case's share of the whole batch's elements
    limits: Limits = field(default_factory=Limits, kw_only=True)
    journal: Journal | None = field(default=None, kw_only=True)
    on_answer: Callable[[Case, Outcome], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.isolation = "restore"
        self.rates: Rates | None = None  # None: one evaluation decides
        self.rng: Literal["captured", "fresh"] = "captured"  # what trials start from
        self.phase = "isolation"
        self.spent: dict[str, Phase] = {}
        self._decided: dict[str, Outcome] = {}
        self._answers: dict[str, Future[Outcome]] = {}
        self._used: set[str] = set()
        self._free: SimpleQueue[Evaluate] = SimpleQueue()
        for one in self.evaluate:
            self._free.put(one)
        self._pool = ThreadPoolExecutor(len(self.evaluate), thread_name_prefix="reduce")
        self._started = monotonic()
        self._over = False  # what ends from now on was ended, and is no answer

    def __enter__(self) -> Oracle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._over = True
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)  # then nobody waits for an evaluation
        self._pool.shutdown(wait=not interrupted, cancel_futures=True)

    @property
    def calls(self) -> int:
        """Evaluations whose outcome was used."""
        return sum(phase.calls for phase in self.spent.values())

    @property
    def unused(self) -> int:
        """Evaluations that answered ahead, for nothing."""
        return sum(future.done() for future in self._answers.values()) - len(self._used)

    @property
    def cost(self) -> float:
        """The same in whole steps of the whole batch."""
        return sum(phase.steps for phase in self.spent.values())

    def settle(self, case: Case, donor: Case | None, lightest: str = "restore") -> Isolation:
        """Find the isolation that this incident needs; every later question is asked at it. Raises Spent."""
        numbers: Counter[str] = Counter()

        def run(asked: Case, level: str) -> Outcome:
            name = f"{level} {asked.content} {asked.heal}"
            numbers[name] += 1
            return self._use(Trial(case=asked, isolation=level, number=numbers[name] - 1))

        found = settle(case, donor, run, self.captured, lightest)
        self.isolation = found.level
        self.know(case, found.case)
        return found

    def know(self, case: Case, outcome: Outcome) -> None:
        """An answer that needs no evaluation."""
        self._decided[self._key(case)] = outcome

    def drive(self, plan: Plan, make: Callable[[], Plan]) -> bool:
        """Answer a plan to its end; False where the budget ended first. make: the same plan, from its beginning."""
        answers: list[Outcome] = []
        guesses = (Outcome(status=Status.PASS), Outcome(status=Status.FAIL, signature=self.captured))
        asking = plan.run()
        try:
            case = next(asking)
            while True:
                self.phase = plan.phase
                answers.append(self.ask(case, lambda: foreseen(make, answers, guesses, self._known)))
                case = asking.send(answers[-1])
        except StopIteration:
            return True
        except Spent:
            asking.close()
            return False

    def ask(self, case: Case, foresee: Callable[[], Iterator[Case]] | None = None) -> Outcome:
        """What a case comes to: from the cache, by one evaluation, or by as many trials as it takes. Raises Spent."""
        key = self._key(case)
        if key not in self._decided:
            self._decided[key] = self._decide(case) if self.rates else self._once(case, foresee)
        return self._decided[key]

    def trial(self, case: Case, number: int) -> Outcome:
        """One evaluation out of many of the same case. Raises Spent."""
        return self._use(self._trial(case, number))

    def run(self, case: Case, number: int = 0) -> tuple[Case, Outcome]:
        """One evaluation, whatever the budget says; with the case as it was run."""
        trial = self._trial(case, number)
        return trial.case, self._result(trial)

    def _once(self, case: Case, foresee: Callable[[], Iterator[Case]] | None) -> Outcome:
        trial = self._trial(case, 0)
        if foresee and len(self.evaluate) > 1 and trial.key not in self._used:
            self._submit(trial)
            for other in islice(foresee(), _AHEAD * len(self.evaluate)):
                if sum(not future.done() for future in self._answers.values()) >= len(self.evaluate):
                    break
                self._submit(self._trial(other, 0))
        return self._use(trial)

    def _decide(self, case: Case) -> Outcome:
        assert self.rates is not None
        outcomes: list[Outcome] = []
        test = deciding(self.rates)
        try:
            number = next(test)
            while True:
                for ahead in range(number, number + len(self.evaluate)):
                    self._submit(self._trial(case, ahead))
                outcomes.append(self.trial(case, number))
                if outcomes[-1].status is Status.INVALID:
                    return outcomes[-1]
                number = test.send(outcomes[-1].status is Status.FAIL)
        except StopIteration as decided:
            return _typical(outcomes, fails=decided.value)

    def _trial(self, case: Case, number: int) -> Trial:
        if number and self.rng == "fresh":
            return Trial(case=replace(case, rng=_SEED + number), isolation=self.isolation, number=0)
        return Trial(case=case, isolation=self.isolation, number=number)

    def _use(self, trial: Trial) -> Outcome:
        if trial.key not in self._used:
            limits = self.limits
            late = limits.seconds is not None and monotonic() - self._started >= limits.seconds
            if late or limits.stop() or (limits.calls is not None and self.calls >= limits.calls):
                raise Spent
        return self._result(trial)

    def _result(self, trial: Trial) -> Outcome:
        outcome = self._submit(trial).result()
        if trial.key not in self._used:
            self._used.add(trial.key)
            self._book(trial.case, outcome)
            if self.on_answer:
                self.on_answer(trial.case, outcome)
        return outcome

    def _submit(self, trial: Trial) -> Future[Outcome]:
        if trial.key not in self._answers:
            recorded = self.journal.recall(trial.key) if self.journal else None
            if recorded:
                self._answers[trial.key] = _done(Outcome.from_json(recorded))
            else:
                self._answers[trial.key] = self._pool.submit(self._evaluated, trial)
        return self._answers[trial.key]

    def _evaluated(self, trial: Trial) -> Outcome:
        """In a thread of the pool. Raises Infrastructure."""
        if self.journal:
            self.journal.asking(trial.key)
        evaluate = self._free.get()
        try:
            for _ in range(_TRIES):
                outcome = evaluate(trial.case, trial.isolation)
                if self._over:  # it was ended, and what it was asked of may be gone: nobody wants another try
                    return outcome
                if outcome.status is not Status.INFRA:
                    if self.journal:
                        self.journal.answered(trial.key, outcome.to_json())
                    return outcome
        finally:
            self._free.put(evaluate)
        detail = " ".join(outcome.detail.split())[-_TAIL:]
        raise Infrastructure(f"{trial.case.incident}: an evaluation broke {_TRIES} times: {detail}")

    def _known(self, case: Case) -> Outcome | None:
        """What was decided, or is known because it was answered ahead."""
        ahead = self._answers.get(self._trial(case, 0).key)
        done = ahead.result() if ahead and ahead.done() and not ahead.exception() else None
        return self._decided.get(self._key(case), done)

    def _key(self, case: Case) -> str:
        return f"{self.rng} {bool(self.rates)} {json.dumps(case.to_json(), sort_keys=True)}"

    def _book(self, case: Case, outcome: Outcome) -> None:
        phase = self.spent.setdefault(self.phase, Phase())
        elements = self.weigh(case)
        phase.calls += 1
        phase.elements += elements
        phase.steps += elements * self._reach(case, outcome)

    def _reach(self, case: Case, outcome: Outcome) -> float:
        """How far an evaluation ran: a loss term, or an exception before it, needs no backward pass."""
        early = self.captured.kind in (Kind.NONFINITE_LOSS, Kind.LOSS_SPIKE) or self.captured.where == "forward"
        further = any(part.startswith(("gradients", "parameters")) for part in outcome.fingerprint)
        return FORWARD if early and not case.thorough and not further else 1.0


def _typical(outcomes: Sequence[Outcome], *, fails: bool) -> Outcome:
    """The first outcome that failed, or the first of the commonest among the others."""
    if fails:
        return next(outcome for outcome in outcomes if outcome.status is Status.FAIL)
    others = [outcome for outcome in outcomes if outcome.status is not Status.FAIL]
    if not others:
        return Outcome(status=Status.PASS, detail="it failed, but too seldom to be the captured failure")
    commonest = Counter(outcome.status for outcome in others).most_common(1)[0][0]
    return next(outcome for outcome in others if outcome.status is commonest)


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future
