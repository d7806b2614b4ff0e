"""Parts of a batch: what is kept along each axis, and what of that has the donor's content.

Dropping and healing are one move with different index sets: a drop changes the shape and shows that the rest is enough,
a heal keeps the shape and shows that the content matters. Pure: a part is only a description, and becomes a case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

from reprokit.errors import BadInput
from reprokit.layout import SHARED, Layout
from reprokit.step.case import Case

Indices = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Of the whole batch of an incident. Indices are those of the whole batch, and sorted."""

    incident: Path
    sizes: Mapping[str, int]  # of the axes that can be cut
    keep: Mapping[str, Indices]  # of each of them
    healed: Mapping[str, Indices] = field(default_factory=dict)  # of the kept ones: shape only, with donor's content
    total: frozenset[str] = frozenset()  # axes of every entry: to heal all along one of them is to heal everything

    @classmethod
    def whole(cls, incident: Path, sizes: Mapping[str, int], total: frozenset[str] = frozenset()) -> Part:
        keep = {axis: tuple(range(size)) for axis, size in sizes.items()}
        return cls(incident=incident, sizes=sizes, keep=keep, total=total & keep.keys())

    def drop_all_but(self, axis: str, indices: Indices) -> Part:
        """The shape changes. Healed elements stay healed."""
        healed = tuple(index for index in self.healed.get(axis, ()) if index in indices)
        return replace(self, keep={**self.keep, axis: indices}, healed={**self.healed, axis: healed})

    def heal(self, axis: str, indices: Indices) -> Part:
        """The shape stays."""
        healed = tuple(sorted({*self.healed.get(axis, ()), *indices}))
        return replace(self, healed={**self.healed, axis: healed})

    def unhealed(self, axis: str) -> Part:
        """With the batch's own content along this axis again."""
        return replace(self, healed={**self.healed, axis: ()})

    def essential(self, axis: str) -> Indices:
        """What is kept for its content, not for the shape."""
        return tuple(index for index in self.keep[axis] if index not in self.healed.get(axis, ()))

    def case(self) -> Case:
        """As far as the signature needs: equal parts give equal cases."""
        if any(self.healed.get(axis) == self.keep[axis] for axis in self.total):
            return self.twin()
        heal = tuple({axis: self.healed[axis]} for axis in self.sizes if self.healed.get(axis))
        return Case(incident=self.incident, keep=self._cut(), heal=heal, thorough=False)

    def twin(self) -> Case:
        """The same shape with the donor's content everywhere."""
        return Case(incident=self.incident, keep=self._cut(), heal=({},), thorough=False)

    def _cut(self) -> dict[str, Indices]:
        return {axis: self.keep[axis] for axis, size in self.sizes.items() if len(self.keep[axis]) < size}


def weigher(layout: Layout, sizes: Mapping[str, int], donor: Mapping[str, int]) -> Callable[[Case], float]:
    """A case's elements as a share of the whole batch's: what a step costs, as far as it grows with its batch."""

    def elements(lengths: Mapping[str, int]) -> int:
        return sum(prod(lengths[axis] for axis in axes) for axes in layout.entries.values())

    def share(case: Case) -> float:
        kept = {axis: len(indices) for axis, indices in case.keep.items()}
        return elements(donor if case.content == "donor" else {**sizes, **kept}) / (elements(sizes) or 1)

    return share


def cuttable(sizes: Mapping[str, int]) -> dict[str, int]:
    """Samples, views, frames and steps, private ones ("local.t") included."""
    found = {axis: size for axis, size in sizes.items() if axis.rpartition(".")[2] in SHARED}
    if not found:
        names = ", ".join(sizes) or "nothing"
        raise BadInput(f"layout: no axis of {names} can be cut; call samples b, views v, frames t")
    for axis, size in found.items():
        if size == 0:
            raise BadInput(f"batch: axis {axis!r} has length 0, so there is nothing to reduce; capture the batch whole")
    return found


def total(layout: Layout, batch: Any) -> frozenset[str]:
    """Axes that every entry of the batch has."""
    entries = [set(axes) for axes in layout.entries.values()]
    covered = set(layout.keys(batch)) <= layout.entries.keys()
    return frozenset(set.intersection(*entries)) if covered and entries else frozenset()
