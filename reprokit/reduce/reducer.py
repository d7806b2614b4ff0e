"""Make an incident smaller: the fewest samples, views and frames that still fail in the same way.

Samples go first: they seldom interact, so cutting them changes the least and makes every later question cheaper. The
other axes follow in the order of what they save. Along each axis elements are dropped while the rest fails, and the
result's shape twin is asked once; where healthy content in that shape fails too, the axis is searched again with a twin
for every drop. Where the architecture refuses a shape, elements are healed instead, and stay as mere shape.

No search assumes that failing is monotone without a check at the end: the closing pass drops (or heals) single elements
of every axis until nothing changes. The tests of its last round are the certificate: each kept element was shown to
matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from reprokit.errors import BadInput
from reprokit.failure import Signature
from reprokit.layout import Layout, Unfit
from reprokit.reduce import guilty
from reprokit.reduce.guilty import Guilt
from reprokit.reduce.isolation import Isolation, NotReproduced, name
from reprokit.reduce.moves import Indices, Part, cuttable, total, weigher
from reprokit.reduce.oracle import Evaluate, Oracle, Spent
from reprokit.reduce.result import Axis, Progress, Reduction
from reprokit.reduce.search import contiguous, drive, one_minimal, smallest
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

if TYPE_CHECKING:
    from reprokit.incident import Incident

_NEIGHBOURS = ("t",)  # axes on which order means something: a window of them is a smaller clip, a scattered set is not


def reduce(
    incident: Incident,
    evaluate: Evaluate,
    *,
    budget: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Reduction:
    """The smallest case. budget: evaluations; past it the best so far is returned. Raises NotReproduced, BadInput."""
    if budget is not None and budget < 1:
        raise BadInput(f"budget of {budget}: nothing can be asked with it; allow one evaluation or more")
    if incident.manifest.signature is None:
        raise BadInput(f"{incident.path}: nothing failed in this step, so there is nothing to reduce")
    return _Reducer(incident, incident.manifest.signature, evaluate, budget, on_progress).run()


class _Reducer:
    """One reduction; `part` is at all times the smallest part that is known to fail."""

    def __init__(
        self,
        incident: Incident,
        captured: Signature,
        evaluate: Evaluate,
        budget: int | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self._incident, self._captured, self._on_progress = incident, captured, on_progress
        self._batch, self._donor = incident.batch(), incident.donor()
        self._notes: list[str] = []
        self._layout = Layout.parse(incident.manifest.layout)
        sizes = self._layout.sizes(self._batch)
        weigh = weigher(self._layout, sizes, self._donor_sizes())
        self._oracle = Oracle(evaluate, captured, weigh=weigh, budget=budget, on_answer=self._report)
        self._whole = self.part = Part.whole(incident.path, cuttable(sizes), total(self._layout, self._batch))
        left = {axis: weigh(self._whole.drop_all_but(axis, (0,)).case()) for axis in self._whole.sizes}
        self._axes = sorted(left, key=lambda axis: (axis != "b", left[axis]))
        self._axis = ""
        self._refused: dict[str, None] = {}  # axes on which a shape was refused, in order

    def _donor_sizes(self) -> dict[str, int]:
        """Of a donor that fits the layout; another one is no donor."""
        if self._donor is None:
            self._notes.append("no donor: shapes could not be told from contents, and nothing could be healed")
            return {}
        try:
            return self._layout.sizes(self._donor)
        except BadInput as error:
            self._notes.append(f"the donor was not used: {error}")
            self._donor = None
            return {}

    def run(self) -> Reduction:
        started, oracle = monotonic(), self._oracle
        isolation = oracle.settle(self._whole, donor=self._donor is not None)
        guilt: dict[str, Guilt] = {}
        tests: list[dict[str, Any]] | None = None
        findings: list[dict[str, Any]] = []
        try:
            self._admit(isolation)
            self._search()
            tests = self._close()
            if oracle.twins:
                oracle.phase = "guilty"
                for axis in self._each(self._axes):
                    guilt[axis] = guilty.find(oracle, self._whole, self.part, axis)
            findings = oracle.findings()
        except Spent:
            self._notes.append(f"the budget ended after {oracle.calls} evaluations: this is the best so far")
        outcome = self._final()
        return Reduction(
            signature=self._captured,
            axes={axis: self._describe(axis, guilt.get(axis, Guilt())) for axis in self._whole.sizes},
            groups=({axis: self.part.essential(axis) for axis in self._whole.sizes},),
            batch_guilty=isolation.batch_guilty,
            calls=oracle.calls,
            step_equivalents=oracle.cost,
            seconds=monotonic() - started,
            one_minimal=tests is not None and all(test["status"] != Status.FAIL for test in tests),
            isolation=isolation.level,
            case=replace(self.part.case(), thorough=True),
            symptoms=outcome.symptoms,
            fingerprint=outcome.fingerprint,
            donor_admitted=oracle.twins,
            certificate={
                "isolation": list(isolation.runs),
                "stable": isolation.stable,
                "tests": tests or [],
                "guilty": {axis: found.to_json() for axis, found in guilt.items()},
                "findings": findings,
                "spent": oracle.spent,
                "notes": self._notes,
            },
        )

    def _admit(self, isolation: Isolation) -> None:
        """A donor counts as healthy if it passes, and if the whole batch healed with it passes, too."""
        donor, oracle = isolation.donor, self._oracle
        if donor is None:
            return
        if donor.status is Status.FAIL:
            self._notes.append("the donor fails as well, in a fresh process: nothing in the batch is to blame")
        elif donor.status is not Status.PASS:
            self._notes.append(f"the donor was not used, for it fails in another way: {name(donor.signature)}")
        elif reason := self._misfit(donor):
            self._notes.append(reason)
        else:
            oracle.twins = True

    def _misfit(self, donor: Outcome) -> str:
        """Why a donor that passes cannot stand in for the batch; where shapes are the same, passing was the proof."""
        try:
            twin = self._layout.heal(self._batch, self._donor, ({},))
        except Unfit as error:
            return f"the donor passes, but cannot stand in for the batch: {error}"
        if _equal(twin, self._donor):
            self._oracle.know(self._whole.twin(), donor)
        if self._oracle.ask(self._whole.twin()).status is Status.PASS:
            return ""
        return "the donor passes, but not in the batch's shape: the shape itself is to blame"

    def _search(self) -> None:
        self._oracle.phase = "search"
        for axis in self._each(self._axes):
            self._drop(axis)
        for axis in self._each(self._refused if self._oracle.twins else ()):
            self._heal(axis)

    def _drop(self, axis: str) -> None:
        """The fewest elements that fail by themselves in a sound shape."""
        items, start = self.part.keep[axis], self.part
        search = contiguous if axis.rpartition(".")[2] in _NEIGHBOURS else smallest

        def fails(kept: Indices) -> bool:
            status = self._oracle.ask(start.drop_all_but(axis, kept).case()).status
            if status in (Status.OTHER, Status.INVALID):
                self._refused[axis] = None
            return status is Status.FAIL

        def fails_soundly(kept: Indices) -> bool:
            return fails(kept) and self._oracle.shape_is_sound(start.drop_all_but(axis, kept))

        found = drive(search(items), fails)
        if not self._oracle.shape_is_sound(start.drop_all_but(axis, found)):
            self._refused[axis] = None
            found = drive(search(items), fails_soundly)
        self.part = start.drop_all_but(axis, found)

    def _heal(self, axis: str) -> None:
        """Of what could not be dropped, the fewest that must keep their content; then the least shape beside it."""
        start = self.part

        def fails_with(content: Indices) -> bool:
            return self._oracle.fails(start.heal(axis, _minus(start.keep[axis], content)))

        content = drive(smallest(start.keep[axis]), fails_with)
        shape = _minus(start.keep[axis], content)
        self.part = healed = start.heal(axis, shape)
        if len(shape) < 2:
            return

        def beside(some: Indices) -> Part:
            return healed.drop_all_but(axis, tuple(sorted((*content, *some))))

        self.part = beside(drive(smallest(shape), lambda some: self._oracle.verdict(beside(some)) is Status.FAIL))

    def _close(self) -> list[dict[str, Any]]:
        """Single elements of every axis, to a fixpoint. Returns the tests of the last round."""
        self._oracle.phase = "closing"
        before = None
        while before != self.part:
            before = self.part
            for axis in self._each(reversed(self._axes)):  # those that matter least, before the others are shown to
                self._close_axis(axis)
        return [self._test(axis, index) for axis in self._axes for index in self.part.keep[axis]]

    def _close_axis(self, axis: str) -> None:
        start = self.part
        fails = lambda kept: self._oracle.verdict(start.drop_all_but(axis, kept)) is Status.FAIL
        self.part = start.drop_all_but(axis, drive(one_minimal(start.keep[axis]), fails))
        for index in self.part.essential(axis) if self._oracle.twins else ():
            healed = self.part.heal(axis, (index,))
            if self._cannot_go(axis, index) and self._oracle.fails(healed):
                self.part = healed

    def _cannot_go(self, axis: str, index: int) -> bool:
        """No smaller shape without it can run: an axis is never empty, and an architecture may insist on more."""
        return len(self.part.keep[axis]) == 1 or self._without(axis, index) is Status.INVALID

    def _without(self, axis: str, index: int) -> Status:
        return self._oracle.verdict(self.part.drop_all_but(axis, _minus(self.part.keep[axis], (index,))))

    def _test(self, axis: str, index: int) -> dict[str, Any]:
        """What shows that this element matters, from the cache: how it was taken away, and what came then."""
        test: dict[str, Any] = {"axis": axis, "index": index}
        if not self._cannot_go(axis, index):
            return test | {"move": "drop", "status": str(self._without(axis, index))}
        if self._oracle.twins and index in self.part.essential(axis):
            healed = self.part.heal(axis, (index,))
            return test | {"move": "heal", "status": str(self._oracle.ask(healed.case()).status)}
        why = "the last of its axis" if len(self.part.keep[axis]) == 1 else "no smaller shape runs"
        content = "the donor's content" if self._oracle.twins else "no donor to heal it with"
        return test | {"move": "drop", "status": str(Status.INVALID), "note": f"{why}; {content}"}

    def _final(self) -> Outcome:
        """The reduced case run to its end, whatever the budget says: without it there is no fingerprint to replay."""
        self._oracle.phase, self._axis = "final", ""
        outcome = self._oracle.run(replace(self.part.case(), thorough=True))
        if outcome.status is not Status.FAIL:
            raise NotReproduced(
                f"{self._incident.path}: the reduced case is {outcome.status} when its step runs to the end; "
                "something outlives an evaluation: try again with a fresh process for each"
            )
        return outcome

    def _each(self, axes: Iterable[str]) -> Iterator[str]:
        for self._axis in axes:  # so that progress can name it
            yield self._axis

    def _describe(self, axis: str, guilt: Guilt) -> Axis:
        return Axis(
            size=self._whole.sizes[axis],
            kept=self.part.keep[axis],
            healed=self.part.healed.get(axis, ()),
            guilty=guilt.indices,
            together=guilt.together,
        )

    def _report(self, _: Case, outcome: Outcome) -> None:
        if self._on_progress:
            oracle = self._oracle
            self._on_progress(
                Progress(
                    phase=oracle.phase,
                    axis=self._axis,
                    kept={axis: len(kept) for axis, kept in self.part.keep.items()},
                    calls=oracle.calls,
                    step_equivalents=oracle.cost,
                    status=str(outcome.status),
                )
            )


def _minus(some: Indices, others: Indices) -> Indices:
    return tuple(index for index in some if index not in others)


def _equal(one: Any, other: Any) -> bool:
    """Bit for bit, as far as it is cheap to know; False costs one evaluation more."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_equal, one, other))
    return isinstance(one, str | int | float | bool | None) and one == other
