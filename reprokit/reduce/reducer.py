"""Make an incident smaller: the smallest case that still fails, for the same reason, and what is guilty of it.

First it is settled what it takes to evaluate one case after another. Then a plan is driven to its end, at one
evaluation a question, for most failures are deterministic. That was a supposition: so the reduced case, which costs
next to nothing, is run again, from the same and from other random numbers. Where it does not fail each time, both rates
are measured and the plan is driven once more, with as many trials a question as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import ceil, log2
from time import monotonic
from typing import TYPE_CHECKING, Literal

from reprokit.errors import BadInput
from reprokit.failure import DEADLY
from reprokit.layout import KEY
from reprokit.reduce.asking import Indices
from reprokit.reduce.guilty import Guilt
from reprokit.reduce.hints import from_rows
from reprokit.reduce.isolation import LEVELS, Isolation, NotReproduced, Unfinished, last_line, name
from reprokit.reduce.journal import Journal
from reprokit.reduce.known import Known
from reprokit.reduce.model import NO_MODEL, Model
from reprokit.reduce.noise import Count, Indistinct, Rates, measure
from reprokit.reduce.oracle import UNLIMITED, Evaluate, Limits, Oracle, Spent
from reprokit.reduce.plan import Donor, Plan
from reprokit.reduce.result import Axis, Progress, Reduction
from reprokit.reduce.search import drive
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.step.rewind import check

if TYPE_CHECKING:
    from reprokit.incident import Incident

How = Literal["captured", "fresh"]  # the random numbers that trials start from

_REPEATS = 2  # of the reduced case from the same random numbers, beside the run that found it
_DOUBTED = 8  # the same where it may come and go for all that is known: of every second one, p = 0.004
_STATES = 6  # random numbers that it is tried with: a failure that half of them cause escapes with probability 1 / 64
_AGAIN = {
    "captured": "it fails only sometimes: searched again, with several trials a question",
    "fresh": "it depends on random numbers: searched again, over several of their states",
}
_CAPTURED = "it depends on random numbers, and what is said here holds for the captured ones alone: from others it"
_CLEARED = "the donor fails as well, in a fresh process: nothing in the batch is to blame"
_UNTOLD = (
    "smooth content with the integers of the batch fails as well, but not with others, or none could be tried: without "
    "a healthy batch nobody knows whether this one is to blame"
)
_FINAL = 60  # runs of a reduced case that comes and goes, to see it fail once to its end


class Unsettled(NotReproduced):
    """What failed while it was searched does not fail at the end: evaluations disturb each other."""


def reduce(
    incident: Incident,
    evaluate: Evaluate | Sequence[Evaluate],
    *,
    limits: Limits = UNLIMITED,
    journal: Journal | None = None,
    rewind: int = 0,
    model: Model = NO_MODEL,
    lightest: str = LEVELS[0],
    flaky: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> Reduction:
    """The smallest case. evaluate: one for each worker. Past its limits the best so far is returned.

    rewind: earlier steps that belong to it. model: what is tried beside the batch. lightest: isolation to begin with.
    flaky: it is known that it fails only sometimes. Raises NotReproduced, Unfinished, BadInput, Infrastructure.
    """
    if (limits.calls is not None and limits.calls < 1) or (limits.seconds is not None and limits.seconds <= 0):
        raise BadInput("a budget of 0: nothing can be asked with it; allow one evaluation or more")
    signature = incident.manifest.signature
    if signature is None:
        raise BadInput(f"{incident.path}: nothing failed in this step, so there is nothing to reduce")
    check(incident, rewind)
    batch = Known.of(incident, signature, rewind, model)
    workers = [evaluate] if callable(evaluate) else list(evaluate)
    while True:
        with Oracle(workers, signature, batch.weigh, limits=limits, journal=journal) as oracle:
            try:
                return _Reducer(incident, batch, oracle, on_progress).run(lightest, flaky=flaky)
            except Unsettled:
                if lightest == LEVELS[-1]:
                    raise
                lightest = LEVELS[-1]


class _TooSeldom(NotReproduced):
    """It comes and goes, and too seldom to be searched for."""

    def __init__(self, line: str, seen: str) -> None:
        super().__init__(line)
        self.seen = seen


class _Reducer:
    def __init__(
        self, incident: Incident, batch: Known, oracle: Oracle, on_progress: Callable[[Progress], None] | None
    ) -> None:
        self._incident, self._batch, self._oracle, self._on_progress = incident, batch, oracle, on_progress
        self._setup = batch.setup
        self._notes = list(batch.notes)
        self._plan = Plan(setup=self._setup, donor=None)
        self._trail: list[tuple[int, float]] = []
        self._whole = batch.weigh(self._setup.whole.case())  # more than 1 where earlier steps belong to it
        self._depends_on_rng = False
        self._clears = True  # a donor that fails as well does
        self._failed = 0  # evaluations that came to the captured failure
        self._started = monotonic()
        oracle.on_answer = self._report

    def run(self, lightest: str, *, flaky: bool) -> Reduction:
        self._isolation = self._settled(lightest)
        self._donor = self._known_donor()
        self._setup = replace(self._setup, suspects=self._suspects())
        try:
            complete = self._search(flaky=flaky or self._isolation.flaky)
        except Spent:
            complete = False
        if not complete:
            self._notes.append(f"it ended after {self._oracle.calls} evaluations: this is the best so far")
        return self._reduction(complete=complete)

    def _settled(self, lightest: str) -> Isolation:
        """Raises Unfinished where the budget ends before that: not even the whole case is then known to fail."""
        donor = self._donor_case() if self._batch.donor else None
        try:
            return self._oracle.settle(self._setup.whole.case(), donor, lightest)
        except Spent:
            calls = f"{self._oracle.calls} evaluation{'s' * (self._oracle.calls != 1)}"
            raise Unfinished(
                f"{self._incident.path}: ended after {calls} ({self._failed} failed as captured), before it was clear "
                "what it takes to evaluate one case after another"
            ) from None

    def _search(self, *, flaky: bool) -> bool:
        """Whether it came to its end. Raises Spent where it ended between two plans."""
        if flaky:
            self._measure("captured")
        self._oracle.phase = "config"
        drive(self._setup.model.checked(self._setup.whole.case()), self._oracle.ask)
        complete = self._drive()
        if complete and not self._oracle.rates and (how := self._contradiction()):
            try:
                self._measure(how)
            except _TooSeldom as rare:
                if how != "fresh":
                    raise
                self._oracle.rng, self._depends_on_rng = "captured", True
                self._notes.append(f"{_CAPTURED} {rare.seen}")
                return complete
            self._depends_on_rng = how == "fresh"
            self._notes.append(_AGAIN[how])
            complete = self._drive()
        return complete

    def _drive(self) -> bool:
        if self._donor and self._donor.equal and self._isolation.donor and not self._oracle.rates:
            self._oracle.know(self._setup.whole.twin(), self._isolation.donor)
        make: Callable[[], Plan] = lambda: Plan(setup=self._setup, donor=self._donor)
        self._plan = make()
        return self._oracle.drive(self._plan, make)

    def _donor_case(self) -> Case:
        """As it was captured; beside earlier steps, all of them healed with it."""
        whole = self._setup.whole
        return whole.twin() if whole.rewind else replace(whole.case(), content="donor")

    def _known_donor(self) -> Donor | None:
        """What its run said; a donor that fails like the batch, or in another way, heals nothing."""
        outcome = self._isolation.donor
        if outcome is None:
            return None
        if outcome.status is Status.FAIL and not self._isolation.flaky:
            self._clears = self._with_other_numbers()
            self._notes.append(_CLEARED if self._clears else _UNTOLD)
        elif outcome.status is not Status.PASS and not self._isolation.flaky:
            why = name(outcome.signature) if outcome.signature else f"{outcome.status} {last_line(outcome.detail)}"
            self._notes.append(f"the donor was not used, for it does not pass: {why}")
        else:
            return Donor(equal=self._batch.equal, unfit=self._batch.unfit)
        return None

    def _with_other_numbers(self) -> bool:
        """Whether what stands in for the batch fails whatever integers it has: if it was made, it has the batch's."""
        copied = self._batch.copied
        kinds = dict.fromkeys(chain.from_iterable(copied.values()))
        other = [{entry: kind for entry, changes in copied.items() if kind in changes} for kind in kinds]
        cases = (replace(self._setup.whole.twin(), values=values) for values in other)
        try:
            return all(copied.values()) and all(self._oracle.trial(case, 0).status is Status.FAIL for case in cases)
        except Spent:
            return False

    @property
    def _batch_guilty(self) -> bool | None:
        said = self._isolation.batch_guilty
        return None if said is False and not self._clears else said

    def _suspects(self) -> dict[str, Indices]:
        """What stands out in the batch's content, and the samples whose values were seen to go bad, which say more."""
        rows = from_rows(self._isolation.case)
        return {**self._batch.suspects, **({"b": rows} if rows and "b" in self._setup.axes else {})}

    def _contradiction(self) -> How | None:
        """What the reduced case depends on, beside the batch: it fails as the search supposes, or not each time."""
        if self._oracle.captured.kind in DEADLY:
            return None  # each costs a deadline; whoever verifies the result will see it
        self._oracle.phase, case = "confirm", self._plan.part.case()
        if not all(self._fail(case, _DOUBTED if self._isolation.doubtful else _REPEATS)):
            return "captured"
        if self._isolation.case.random:
            self._oracle.rng = "fresh"
            if not all(self._fail(case, _STATES)):
                return "fresh"
            self._oracle.rng = "captured"
        last, outcome = self._last(0)
        if outcome.status is not Status.FAIL and any(self._fail(last, _DOUBTED)):
            return "captured"
        return None

    def _fail(self, case: Case, times: int) -> Iterator[bool]:
        """Whether further runs of a case do. Raises Spent."""
        return (self._oracle.trial(case, i).status is Status.FAIL for i in range(1, times + 1))

    def _measure(self, how: How) -> None:
        """Rates of case and donor, each trial from the same random numbers or from other ones."""
        oracle, whole = self._oracle, self._setup.whole.case()
        oracle.rng, oracle.phase = how, "rates"
        contents = {"case": whole, "donor": self._donor_case()}
        fails = lambda asked: oracle.trial(contents[asked[0]], asked[1]).status is Status.FAIL
        rates = measure(fails, Rates(donor=Count() if self._donor else None))
        if isinstance(rates, Indistinct):
            raise _TooSeldom(f"{self._incident.path}: {rates}; see what it depends on: reprokit replay", str(rates))
        oracle.rates = rates

    def _reduction(self, *, complete: bool) -> Reduction:
        plan, oracle, isolation = self._plan, self._oracle, self._isolation
        case, outcome = self._final()
        return Reduction(
            signature=oracle.captured,
            axes=self._axes(),
            batch_guilty=True if oracle.rates and self._donor else self._batch_guilty,
            calls=oracle.calls,
            step_equivalents=oracle.cost,
            seconds=monotonic() - self._started,
            one_minimal=plan.tests is not None and all(test["status"] != Status.FAIL for test in plan.tests),
            isolation=isolation.level,
            case=case,
            symptoms=outcome.symptoms,
            fingerprint=outcome.fingerprint,
            donor=self._batch.donor if plan.rules.twins else None,
            complete=complete,
            variant=plan.variant,
            config=plan.config,
            groups=tuple({axis: part.keep[axis] for axis in self._setup.axes} for part in (plan.part, *plan.groups)),
            regions=tuple(region.to_json() for region in plan.regions),
            rate=oracle.rates.to_json() if oracle.rates else None,
            depends_on_rng=self._depends_on_rng,
            trail=tuple(self._trail),
            untried=self._setup.texts,
            notes=(*self._notes, *plan.notes),
            certificate={
                "isolation": list(isolation.runs),
                "stable": isolation.stable,
                "tests": plan.tests or [],
                "guilty": {axis: found.to_json() for axis, found in plan.guilt.items()},
                "findings": plan.findings,
                "spent": {phase: spent.to_json() for phase, spent in oracle.spent.items()},
                "ahead": oracle.unused,
            },
        )

    def _axes(self) -> dict[str, Axis]:
        """Those that can be cut, and `key` where it tells something."""
        plan, key = self._plan, self._plan.guilt.get(KEY)
        names = [*self._setup.axes, *([KEY] if key and (key.indices or plan.part.healed.get(KEY)) else [])]
        cleared = Guilt() if self._batch_guilty is False and not self._oracle.rates else None
        return {axis: self._axis(axis, plan.guilt.get(axis, cleared)) for axis in names}

    def _axis(self, axis: str, guilt: Guilt | None) -> Axis:
        part = self._plan.part
        return Axis(
            size=len(part.whole[axis]),
            kept=part.keep[axis],
            healed=part.healed.get(axis, ()),
            guilty=guilt.indices if guilt else None,
            together=guilt is not None and guilt.together,
        )

    def _final(self) -> tuple[Case, Outcome]:
        """The reduced case run to its end, whatever the budget says: without it there is no fingerprint to replay."""
        for number in range(_FINAL if self._oracle.rates else 1):
            trial, outcome = self._last(number)
            if outcome.status is Status.FAIL:
                return trial, outcome
        raise Unsettled(
            f"{self._incident.path}: the reduced case is {outcome.status} when its step runs to the end; "
            "something outlives an evaluation, even in fresh processes; next: reprokit replay"
        )

    def _last(self, number: int) -> tuple[Case, Outcome]:
        """One run of it; with the case as it was run."""
        self._oracle.phase = self._plan.phase = "final"
        self._plan.axis = ""
        return self._oracle.run(replace(self._plan.part.case(), thorough=True), number)

    def _report(self, _: Case, outcome: Outcome) -> None:
        oracle, plan = self._oracle, self._plan
        self._failed += outcome.status is Status.FAIL
        size = self._batch.weigh(plan.part.case()) / self._whole
        if not self._trail or self._trail[-1][1] != size:
            self._trail.append((oracle.calls, size))
        if self._on_progress:
            searching = oracle.phase == plan.phase
            self._on_progress(
                Progress(
                    phase=oracle.phase,
                    axis=plan.axis if searching else "",
                    kept={axis: len(plan.part.keep[axis]) for axis in self._setup.axes},
                    calls=oracle.calls,
                    step_equivalents=oracle.cost,
                    status=str(outcome.status),
                    rate=oracle.rates.case.rate if oracle.rates else None,
                    left=self._left(),
                )
            )

    def _left(self) -> float | None:
        """Seconds, if what is still to be searched takes what bisection takes: a guess, and said to be one."""
        plan, oracle = self._plan, self._oracle
        if plan.axis not in self._setup.axes or plan.phase != "search":
            return None
        axes = self._setup.axes[self._setup.axes.index(plan.axis) :]
        questions = sum(2 * ceil(log2(len(plan.part.keep[axis]) + 1)) + 2 for axis in axes)
        return questions * (monotonic() - self._started) / max(1, oracle.calls)
