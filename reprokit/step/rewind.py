"""Back in an incident's history: which earlier steps run before the failing one, from which state, on which batches.

A cause may lie steps before the failure that shows it: a poisoned teacher, a moment of the optimizer that has been
infinite for a while. `Case.rewind = r` puts the failing step at the end of r + 1 steps, which start from the state
before the first of them and each have their own batch, generators and place in gradient accumulation, as captured. An
incident holds one state from before its oldest step (the anchor); for a smaller r the steps in between are run once,
as captured. An incident of a process that died holds nothing but the anchor and steps: then the failing step's own
start is made in this way as well.

The steps are one more axis of the case: `s`, or where the layout has an axis of that name `step`, or else `history`; 0
is the oldest step and r the failing one. `keep` drops steps, which then do not run (what happened after them outside of
any step still does: see `between`); the failing one must stay. A heal cell with the axis heals those steps alone. All
other axes, and simpler values, mean every step alike, so the steps must agree in their sizes. The donor is the healthy
batch from before the oldest step, since any later one may be the cause; where there was none, smooth content stands in.
With a seed in place of the captured generators, a step begins with the seed minus its distance to the failing step.

Only the failing step has to fail. Where an earlier one does, nothing after it is run and its failure is the outcome's:
FAIL where the signature is the same (the failure, sooner: fewer steps are needed), OTHER otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit import failure, tree
from reprokit.errors import BadInput
from reprokit.harness import Harness, State, put_state, take_state
from reprokit.incident import Incident
from reprokit.layout import KEY, Layout
from reprokit.step import between, rng
from reprokit.step.case import Case, Cell
from reprokit.step.probe import Probe
from reprokit.step.run import run

NAMES = ("s", "step", "history")  # of the axis: the first that the layout does not have


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One step as it was captured."""

    number: int  # of the training step
    batch: tree.Packed
    rng: Mapping[str, Any]
    micro: int  # batches that its optimizer step had had before
    donor: bool = True  # nothing is known against its batch
    skips: int = 0  # optimizer steps that GradScaler had skipped in a row before
    after: between.Changes = ()  # type: ignore[assignment]  # what the loop did between this step and the next
    dropped: bool = False  # by a reduction: it has no batch, and only what came after it happens


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step as a case wants it. Of a dropped one only what came after it happens."""

    moment: Moment
    batch: Any
    distance: int  # to the failing step, which has 0
    dropped: bool = False

    def begin(self, seed: int | str) -> None:
        """Set the generators."""
        rng.put(dict(self.moment.rng)) if isinstance(seed, str) else rng.seed(seed - self.distance)


class History:
    """The earlier steps of an incident, in memory from when they are first asked for."""

    def __init__(self, incident: Incident, failing: Moment, donor: tree.Packed | None, state: State | None) -> None:
        self._incident, self._failing, self._donor = incident, failing, donor
        self._states: dict[int, State] = {} if state is None else {0: state}  # by steps before the failing one
        self._moments: list[Moment] | None = None  # the earlier ones, oldest first
        self._before: tree.Packed | None = None  # the healthy batch before all of them

    def moments(self, rewind: int) -> list[Moment]:
        """The last `rewind` steps before the failing one, and that. Raises BadInput where there are not as many."""
        check(self._incident, rewind)
        return [*self._earlier()[len(self._earlier()) - rewind :], self._failing] if rewind else [self._failing]

    def donor(self, rewind: int) -> tree.Packed | None:
        """The healthy batch before the oldest of them."""
        if not rewind:
            return self._donor
        before = self._earlier()[: len(self._earlier()) - rewind]
        fit = [moment.batch for moment in before if moment.donor and not moment.dropped]
        return fit[-1] if fit else self._before

    def state(self, rewind: int, build: Callable[[], Harness]) -> State:
        """The state before the oldest of them. build: a harness as captured, to run what lies after the anchor."""
        if rewind not in self._states:
            anchor, earlier = self._incident.anchor(), self._earlier()
            self._states[len(earlier)] = anchor
            if rewind != len(earlier):
                self._states[rewind] = forward(build(), anchor, earlier[: len(earlier) - rewind])
        return self._states[rewind]

    def _earlier(self) -> list[Moment]:
        if self._moments is None:
            before = self._incident.donor_before()
            self._before = None if before is None else tree.pack(before)
            self._moments = [
                Moment(
                    number=step["step"],
                    batch=tree.pack(step["batch"]),
                    rng=step["rng"],
                    micro=step["micro"],
                    skips=step.get("skips", 0),
                    donor=step.get("donor", True),
                    after=step["after"],
                    dropped=step["dropped"],
                )
                for step in self._incident.history()
            ]
        return self._moments


def needed(incident: Incident) -> int:
    """How many earlier steps belong to the case that a reduction is; 0 for what is none."""
    told = (incident.manifest.certificate or {}).get("rewind")
    return told if type(told) is int and 0 < told <= incident.rewindable() else 0


def healthy(incident: Incident, back: int) -> Any:
    """What heals a case that goes back so far: the healthy batch from before the oldest of its steps, in each of them;
    None where none was kept."""
    if not back:
        return incident.donor()
    earlier = incident.history()[:-back]
    fit = [step["batch"] for step in earlier if step.get("donor", True) and not step["dropped"]]
    return fit[-1] if fit else incident.donor_before()


def check(incident: Incident, rewind: int) -> None:
    """Raises BadInput where an incident's history does not go back that far."""
    most = incident.rewindable()
    if rewind < 0:
        raise BadInput(f"rewind {rewind}: expected how many steps to go back before the failing one, 1 or more")
    if rewind > most:
        has = f"goes back {most} step{'s' * (most != 1)}; rewind {most} at most" if most else "is empty; do not rewind"
        raise BadInput(f"rewind {rewind}: the history of {incident.name} {has}")


def axis(layout: Layout) -> str:
    """What the axis of the steps is called beside this layout."""
    return next(name for name in NAMES if name not in layout.axes)


def split(case: Case, layout: Layout) -> list[Case | None]:
    """For each step, oldest first, the case of its batch, which knows nothing of steps; None where it is dropped."""
    name, count = axis(layout), case.rewind + 1
    if not case.rewind:
        return [case]
    if case.stack:
        raise BadInput("rewind: questions that share one batch would share the state as well; stack without rewinding")
    kept = _indices(case.keep.get(name, range(count)), name, count)
    if count - 1 not in kept or sorted(set(kept)) != list(kept):
        raise BadInput(f"keep: axis {name!r} must keep the failing step, {count - 1}, and the order; got {list(kept)}")
    for cell in case.heal:
        _indices(cell.get(name, ()), name, count)
    rest = {axis: indices for axis, indices in case.keep.items() if axis != name}
    return [
        replace(case, keep=rest, heal=_cells(case.heal, name, i), rewind=0) if i in kept else None for i in range(count)
    ]


def steps(
    case: Case, layout: Layout, moments: Sequence[Moment], prepare: Callable[[Case, Any], Any]
) -> list[Step]:
    """What runs, oldest first; the last is the failing step. prepare: the batch as the case of one step wants it."""
    parts = [None if moment.dropped else part for part, moment in zip(split(case, layout), moments, strict=True)]
    batches = [None if part is None else tree.unpack(moment.batch) for part, moment in zip(parts, moments, strict=True)]
    _check_sizes(case, layout, moments, batches)
    return [
        Step(
            moment=moment,
            batch=None if part is None else prepare(part, batch),
            distance=len(moments) - 1 - i,
            dropped=part is None,
        )
        for i, (part, moment, batch) in enumerate(zip(parts, moments, batches, strict=True))
    ]


def forward(harness: Harness, state: State, moments: Sequence[Moment]) -> State:
    """The state after these steps, as captured. Raises BadInput where one of them fails here, as it did not then."""
    put_state(harness, state)
    for moment in moments:
        if not moment.dropped:
            _healthy(harness, moment)
        between.put(harness, moment.after)
    return take_state(harness)


def _healthy(harness: Harness, moment: Moment) -> None:
    """Run a step that was healthy at capture. Raises BadInput where it is not."""
    rng.put(dict(moment.rng))
    with Probe(harness) as probe:
        run(harness, tree.unpack(moment.batch), probe, micro=moment.micro)
    if signature := failure.first(probe.symptoms):
        raise BadInput(
            f"history: step {moment.number} was healthy at capture and fails here ({signature.kind} at "
            f"{signature.where}), so the state after it cannot be made; replay without rewinding, or on a like machine"
        )


def _indices(given: Sequence[int], name: str, count: int) -> Sequence[int]:
    for i in given:
        if not isinstance(i, int) or not 0 <= i < count:
            raise BadInput(f"{i!r} is no index of axis {name!r} (history steps); expected 0 to {count - 1}")
    return list(given)


def _cells(cells: Sequence[Cell], name: str, i: int) -> tuple[Cell, ...]:
    """Those that touch step i, without the axis of the steps."""
    return tuple(
        {axis: indices for axis, indices in cell.items() if axis != name}
        for cell in cells
        if name not in cell or i in cell[name]
    )


def _check_sizes(case: Case, layout: Layout, moments: Sequence[Moment], batches: Sequence[Any]) -> None:
    cut = {axis for cell in (case.keep, *case.heal) for axis in cell} - {axis_ for axis_ in (axis(layout), KEY)}
    if not cut or len(moments) == 1:
        return
    sizes = layout.sizes(batches[-1])
    for moment, batch in zip(moments, batches):
        found = sizes if batch is None else layout.sizes(batch)
        for name in sorted(cut & found.keys() & sizes.keys()):
            if found[name] != sizes[name]:
                raise BadInput(
                    f"history: axis {name!r} is {found[name]} long in step {moment.number} and {sizes[name]} in the "
                    "failing one; rewind fewer steps, or cut another axis"
                )
