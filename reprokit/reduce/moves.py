"""Parts of a batch: what is kept along each axis, and what of that has the donor's content.

Dropping and healing are one move with different index sets: a drop changes the shape and shows that the rest is enough,
a heal keeps the shape and shows that the content matters. Samples, views, frames, channels, rows and columns of pixels
are axes alike; the entries of the batch are one more, `key`. Pure: a part is only a description, and becomes a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from reprokit.errors import BadInput
from reprokit.layout import KEY, SHARED, Layout
from reprokit.reduce.asking import Indices
from reprokit.step.case import Case, Simpler, Variant
from reprokit.step.rewind import NAMES as HISTORY
from reprokit.step.rewind import axis


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of the whole batch of an incident. Indices are those of the whole batch, and sorted."""

    incident: Path
    keep: Mapping[str, Indices]  # axis -> what is kept of it
    whole: Mapping[str, Indices]  # axis -> all of it
    healed: Mapping[str, Indices] = field(default_factory=dict)  # of the kept ones: shape only, with donor's content
    total: frozenset[str] = frozenset()  # axes of every entry: to heal all along one of them is to heal everything
    values: Mapping[str, Simpler] = field(default_factory=dict)  # entry -> simpler values
    variant: Variant = field(default_factory=Variant)
    rewind: int = 0

    @classmethod
    def of(
        cls, incident: Path, axes: Mapping[str, Indices], total: frozenset[str] = frozenset(), rewind: int = 0
    ) -> Part:
        """The whole batch."""
        return cls(incident=incident, keep=dict(axes), whole=dict(axes), total=total & axes.keys(), rewind=rewind)

    def drop_all_but(self, axis: str, indices: Indices) -> Part:
        """The shape changes. Healed elements stay healed."""
        healed = tuple(index for index in self.healed.get(axis, ()) if index in indices)
        return replace(self, keep={**self.keep, axis: indices}, healed={**self.healed, axis: healed})

    def heal(self, axis: str, indices: Indices) -> Part:
        """The shape stays."""
        return replace(self, healed={**self.healed, axis: self.ordered(axis, (*self.healed.get(axis, ()), *indices))})

    def unhealed(self, axis: str) -> Part:
        """With the batch's own content along this axis again."""
        return replace(self, healed={**self.healed, axis: ()})

    def ordered(self, axis: str, some: Indices) -> Indices:
        """Each once, as the whole batch has them."""
        wanted = frozenset(some)
        return tuple(index for index in self.whole[axis] if index in wanted)

    def essential(self, axis: str) -> Indices:
        """What is kept for its content, not for the shape."""
        return minus(self.keep[axis], self.healed.get(axis, ()))

    def case(self) -> Case:
        """As far as the signature needs: equal parts give equal cases."""
        if any(self.healed.get(axis) == self.keep[axis] for axis in self.total):
            return self.twin()
        return self._case(tuple({axis: self.healed[axis]} for axis in self.whole if self.healed.get(axis)))

    def twin(self) -> Case:
        """The same shape with the donor's content everywhere."""
        return self._case(({},))

    def with_cell(self, cell: Mapping[str, Indices]) -> Case:
        """The donor's content where all of these meet, beside what is healed already."""
        case = self.case()
        return replace(case, heal=(*case.heal, dict(cell)))

    def _case(self, heal: tuple[Mapping[str, Indices], ...]) -> Case:
        return Case(
            incident=self.incident,
            keep={axis: kept for axis, kept in self.keep.items() if len(kept) < len(self.whole[axis])},
            heal=heal,
            values=self.values,
            variant=self.variant,
            rewind=self.rewind,
            thorough=False,
        )


def axes_of(layout: Layout, batch: Any, rewind: int = 0) -> dict[str, Indices]:
    """Every axis of a batch with its indices, `key` with its entries. Raises BadInput where none can be cut."""
    sizes = layout.sizes(batch)
    if rewind:
        sizes[axis(layout)] = rewind + 1
    for name, size in sizes.items():
        if size == 0:
            raise BadInput(f"batch: axis {name!r} has length 0, so there is nothing to reduce; capture the batch whole")
    if not any(map(cuttable, sizes)):
        names = ", ".join(sizes) or "nothing"
        raise BadInput(f"layout: no axis of {names} can be cut; call samples b, views v, frames t")
    axes: dict[str, Indices] = {name: tuple(range(size)) for name, size in sizes.items()}
    keys = layout.keys(batch)
    return {**axes, KEY: keys} if len(keys) > 1 else axes


def cuttable(axis: str) -> bool:
    """Samples, views, frames and steps, private ones ("local.t") included, and steps of the history."""
    return axis.rpartition(".")[2] in (*SHARED, *HISTORY)


def total(layout: Layout, batch: Any) -> frozenset[str]:
    """Axes that every entry of the batch has, and the entries themselves."""
    entries = [set(axes) for axes in layout.entries.values()]
    covered = set(layout.keys(batch)) <= layout.entries.keys()
    return frozenset({KEY, *(set.intersection(*entries) if covered and entries else ())})


def weigher(
    layout: Layout, whole: Mapping[str, Indices], donor: Mapping[str, int]
) -> Callable[[Case], float]:
    """A case's elements as a share of the whole batch's: what a step costs, as far as it grows with its batch.
    Earlier steps count as well, each as one of its own."""
    sizes = {axis: len(indices) for axis, indices in whole.items()}

    def elements(lengths: Mapping[str, int]) -> int:
        return sum(prod(lengths[axis] for axis in axes) for axes in layout.entries.values())

    def share(case: Case) -> float:
        kept = {axis: len(indices) for axis, indices in case.keep.items()}
        one = elements(donor if case.content == "donor" else {**sizes, **kept}) / (elements(sizes) or 1)
        steps = kept.get(axis(layout), case.rewind + 1) if case.rewind else 1
        return one * max(1, len(case.stack)) * steps

    return share


def minus(some: Indices, others: Indices) -> Indices:
    return tuple(index for index in some if index not in others)
