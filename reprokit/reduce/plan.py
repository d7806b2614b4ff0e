"""What a reduction asks, from the donor's admission to the values: a generator over everything that is to be known.

Pure: driven again with the same outcomes it asks the same questions, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from reprokit.errors import BadInput
from reprokit.layout import KEY
from reprokit.reduce import guilty
from reprokit.reduce.asking import Asking, Indices
from reprokit.reduce.guilty import Guilt
from reprokit.reduce.minimise import Minimiser, Setup
from reprokit.reduce.moves import Part
from reprokit.reduce.rules import Rules
from reprokit.reduce.variants import twin_passes, unasked
from reprokit.step.case import Variant

_GROUPS = 8  # independent minima that are looked for: past that, the batch as a whole is bad


@dataclass(frozen=True, kw_only=True, slots=True)
class Donor:
    """What is known of a donor that passes, before the plan begins."""

    equal: bool = False  # it has the batch's shapes: its passing was the proof for all of it
    unfit: str = ""  # why its content cannot stand in for the batch's


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A block of one entry: the meeting of these index sets."""

    entry: str
    cell: Mapping[str, Indices]
    guilty: bool  # healing it alone heals the whole batch

    def to_json(self) -> dict[str, Any]:
        own = f"{self.entry}."
        cell = {axis.removeprefix(own): list(indices) for axis, indices in self.cell.items()}
        return {"entry": self.entry, **cell, "guilty": self.guilty}


@dataclass(kw_only=True)
class Plan:
    """`part` is at all times the smallest part that is known to fail."""

    setup: Setup
    donor: Donor | None
    phase: str = "search"
    axis: str = ""
    notes: list[str] = field(default_factory=list)
    guilt: dict[str, Guilt] = field(default_factory=dict)
    groups: list[Part] = field(default_factory=list)  # further minima that have nothing to do with the first
    regions: list[Region] = field(default_factory=list)
    tests: list[dict[str, Any]] | None = None  # None: the closing pass did not come to its end
    variant: Variant = field(default_factory=Variant)  # the reduced case still fails with
    config: dict[str, Any] | None = None  # against a baseline
    findings: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rules = Rules(self.setup.kind, self.setup.room)
        self._first = self._minimiser(self.setup.whole)

    @property
    def part(self) -> Part:
        return self._first.part

    def run(self) -> Asking[None]:
        yield from self._admit()
        self.tests = yield from self._first.run()
        minimal = self.part  # the first group's elements, before anything inside them is healed
        if self.rules.twins:
            yield from self._look_for_others(minimal)
            yield from self._first.look_inside()
            yield from self._blame(minimal)
            yield from self._first.simplify()
        yield from self._vary()
        self._note("findings", "")
        self.findings = yield from self.rules.findings()

    def _admit(self) -> Asking[None]:
        """A donor counts as healthy if it passes, and if the whole batch healed with it passes, too."""
        donor = self.donor
        if donor is None:
            return
        self._note("search", "")
        if donor.unfit:
            self.notes.append(f"the donor passes, but cannot stand in for the batch: {donor.unfit}")
        elif donor.equal or (yield from self.rules.passes(self.setup.whole.twin())):
            self.rules.twins = True
        else:
            self.notes.append("the donor passes, but not in the batch's shape: the shape itself is to blame")

    def _look_for_others(self, minimal: Part) -> Asking[None]:
        """Heal each minimum in the whole batch: what fails still has another cause."""
        axis = next((axis for axis in self.setup.axes if minimal.essential(axis)), None)
        if axis is None or not any(len(minimal.keep[a]) < len(minimal.whole[a]) for a in self.setup.axes):
            return
        self._note("groups", axis)
        rest = self.setup.whole.heal(axis, minimal.essential(axis))
        while len(self.groups) < _GROUPS and rest.essential(axis) and (yield from self.rules.fails(rest)):
            other = self._minimiser(rest)
            yield from other.run()
            self._note("groups", axis)
            if not other.part.essential(axis):
                return
            self.groups.append(other.part)
            rest = rest.heal(axis, other.part.essential(axis))

    def _blame(self, minimal: Part) -> Asking[None]:
        """Along each axis, and for each block that is left of an entry."""
        for axis in (*self.setup.axes, *([KEY] if KEY in self.setup.whole.whole else [])):
            self._note("guilty", axis)
            reduced = self.part if axis == KEY else minimal
            suspects = tuple(index for group in (minimal, *self.groups) for index in group.essential(axis))
            suspects = suspects if self.groups else ()
            thorough = axis in self._first.unsound
            found = yield from guilty.find(self.rules, self.setup.whole, reduced, axis, suspects, thorough=thorough)
            self.guilt[axis] = found
        for entry, axes in self.setup.inner.items():
            if entry not in self.part.healed.get(KEY, ()) and any(self.part.healed.get(axis) for axis in axes):
                self._note("guilty", entry)
                self.regions.append((yield from self._region(entry, axes, minimal)))

    def _region(self, entry: str, inner: tuple[str, ...], minimal: Part) -> Asking[Region]:
        outer = {axis: minimal.essential(axis) for axis in self.setup.axes if axis in self.setup.axes_of[entry]}
        cell = {axis: some for axis, some in outer.items() if some and len(some) < len(minimal.whole[axis])}
        cell |= {axis: self.part.essential(axis) for axis in inner if self.part.healed.get(axis)}
        heals = yield from self.rules.passes(self.setup.whole.with_cell(cell))
        return Region(entry=entry, cell=cell, guilty=heals)

    def _vary(self) -> Asking[None]:
        """What the reduced case needs of the model, the loop and the config."""
        base, model = self.part.case(), self.setup.model
        self._note("variants", "")
        self.variant = yield from model.simplest(base, twin_passes if self.rules.twins else unasked)
        if model.baseline is not None:
            self._note("config", "")
            try:
                self.config = model.told((yield from model.needed(base)))
            except BadInput as error:  # it passes on the whole batch, and must not cost what was found
                self.notes.append(f"not compared with the baseline, for the reduced case says otherwise: {error}")

    def _minimiser(self, start: Part) -> Minimiser:
        return Minimiser(self.setup, self.rules, start, self._note)

    def _note(self, phase: str, axis: str) -> None:
        self.phase, self.axis = phase, axis
