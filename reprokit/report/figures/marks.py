"""What a reduction says about each cell of a batch: guilty, kept, both, kept for the shape alone, or dropped.

A reduction speaks of axes: of each, the indices that are kept and those that are guilty. A cell (sample 2, frame 5)
is kept if all its indices are, in the smallest case or in another independent group. It is guilty if its index is
guilty on every axis that has guilty ones, and kept on the others: healing the frames of a sample one by one may heal
nothing, and then the sample is guilty in all its kept frames. Where the fault is shown to lie inside one entry (by the
axis `key`, by one of the entry's own axes, or by a region), nothing of another entry is guilty.

The JSON may come from elsewhere: what is no index of the axis is ignored. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from reprokit.layout import KEY

Json = Mapping[str, Any]


class Mark(IntEnum):
    """Of a cell, or of one index of an axis."""

    WHOLE = 0  # there is no reduction: nothing is known
    DROPPED = 1
    HEALED = 2  # kept for the shape alone, with the donor's content
    KEPT = 3
    BLAMED = 4  # guilty, and not in the smallest case: others of its kind are enough to fail
    GUILTY = 5  # guilty and kept

    @property
    def guilty(self) -> bool:
        return self >= Mark.BLAMED


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Of one axis, as indices of the batch that is drawn."""

    kept: frozenset[int] | None = None  # None: all
    healed: frozenset[int] = frozenset()
    guilty: frozenset[int] = frozenset()

    def keeps(self, index: int) -> bool:
        return self.kept is None or index in self.kept


@dataclass(frozen=True, kw_only=True, slots=True)
class Region:
    """A part of some cells of an entry. Axes go by their bare names: b, t, h, w."""

    entry: str
    at: Mapping[str, frozenset[int]]
    guilty: bool

    def covers(self, entry: str, cell: Mapping[str, int]) -> bool:
        inside = all(index in self.at[bare(axis)] for axis, index in cell.items() if bare(axis) in self.at)
        return self.entry == entry and inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """A reduction, read for a batch of certain sizes."""

    known: bool  # there is a reduction
    axes: Mapping[str, Axis] = field(default_factory=dict)
    groups: tuple[Mapping[str, frozenset[int]], ...] = ()
    regions: tuple[Region, ...] = ()
    blamed: frozenset[str] = frozenset()  # entries inside which the fault is shown to lie; empty: not known

    @classmethod
    def read(cls, reduction: Json | None, sizes: Mapping[str, int]) -> Marks:
        if not isinstance(reduction, Mapping):
            return cls(known=False)
        given = _mapping(reduction.get("axes"))
        axes = {name: _axis(_mapping(given[name]), size) for name, size in sizes.items() if name in given}
        groups = [_mapping(group) for group in _list(reduction.get("groups"))]
        regions = tuple(_regions(_list(reduction.get("regions")), sizes))
        named = [name for name in _list(_mapping(given.get(KEY)).get("guilty")) if isinstance(name, str)]
        private = {name.rpartition(".")[0] for name, axis in axes.items() if axis.guilty and "." in name}
        return cls(
            known=True,
            axes=axes,
            groups=tuple({name: _indices(one[name], sizes[name]) for name in sizes if name in one} for one in groups),
            regions=regions,
            blamed=frozenset(named or private | {region.entry for region in regions if region.guilty}),
        )

    def index(self, axis: str, index: int) -> Mark:
        """Of one index, whatever the others are."""
        if not self.known:
            return Mark.WHOLE
        found = self.axes.get(axis, Axis())
        if index in found.guilty:
            return Mark.GUILTY if self._keeps({axis: found}, {axis: index}) else Mark.BLAMED
        if index in found.healed:
            return Mark.HEALED
        return Mark.KEPT if found.keeps(index) or self._in_group({axis: index}) else Mark.DROPPED

    def cell(self, entry: str, at: Mapping[str, int]) -> Mark:
        """Of the cell of an entry at these indices."""
        if not self.known:
            return Mark.WHOLE
        axes = {axis: self.axes.get(axis, Axis()) for axis in at}
        if self._may_blame(entry) and any(one.guilty for one in axes.values()):
            agreed = (at[axis] in one.guilty if one.guilty else one.keeps(at[axis]) for axis, one in axes.items())
            if all(agreed):
                return Mark.GUILTY if self._keeps(axes, at) else Mark.BLAMED
        if all(one.keeps(at[axis]) for axis, one in axes.items()):
            return Mark.HEALED if any(at[axis] in one.healed for axis, one in axes.items()) else Mark.KEPT
        return Mark.KEPT if self._in_group(at) else Mark.DROPPED

    def important(self, axis: str) -> list[int]:
        """Indices to show first: guilty ones, then kept ones."""
        one = self.axes.get(axis, Axis())
        others = set(one.kept or ()).union(*(group.get(axis, ()) for group in self.groups))
        return [*sorted(one.guilty), *sorted(others - one.guilty)]

    def regions_of(self, entry: str, at: Mapping[str, int]) -> list[Region]:
        return [region for region in self.regions if region.covers(entry, at)]

    def _keeps(self, axes: Mapping[str, Axis], at: Mapping[str, int]) -> bool:
        return all(one.keeps(at[axis]) for axis, one in axes.items()) or self._in_group(at)

    def _in_group(self, at: Mapping[str, int]) -> bool:
        return any(all(index in group[axis] for axis, index in at.items() if axis in group) for group in self.groups)

    def _may_blame(self, entry: str) -> bool:
        return not self.blamed or any(entry == name or entry.startswith(f"{name}.") for name in self.blamed)


def of_reduced(reduction: Json, sizes: Mapping[str, int]) -> tuple[Json, dict[str, list[int]]]:
    """A reduction in terms of the batch that it made, and axis -> original index of each index of that batch."""
    given = _mapping(reduction.get("axes"))
    labels = {
        name: kept
        for name, size in sizes.items()
        if len(kept := [i for i in _list(_mapping(given.get(name)).get("kept")) if type(i) is int]) == size
    }
    axes = {name: _moved(_mapping(given[name]), ("kept", "healed", "guilty"), kept) for name, kept in labels.items()}
    if KEY in given:
        axes[KEY] = given[KEY]
    regions = []
    for region in map(_mapping, _list(reduction.get("regions"))):
        for axis, kept in labels.items():
            region = {**region, **_moved(region, (_key_of(axis, region),), kept)}
        regions.append(region)
    return {"axes": axes, "regions": regions}, labels


def bare(axis: str) -> str:
    """Its name without that of its entry."""
    return axis.rpartition(".")[2]


def _moved(found: Json, keys: Iterable[str], kept: Sequence[int]) -> Json:
    """The lists under these keys, as positions among what was kept."""
    where = {original: place for place, original in enumerate(kept)}
    return {key: [where[i] for i in _list(found[key]) if type(i) is int and i in where] for key in keys if key in found}


def _key_of(axis: str, region: Json) -> str:
    """The key of a region that speaks of this axis, if it has it."""
    owner, _, name = axis.rpartition(".")
    return name if owner in ("", region.get("entry")) else ""


def _axis(found: Json, size: int) -> Axis:
    kept = found.get("kept")
    return Axis(
        kept=_indices(kept, size) if isinstance(kept, Sequence) else None,
        healed=_indices(found.get("healed"), size),
        guilty=_indices(found.get("guilty"), size),
    )


def _regions(found: Iterable[Any], sizes: Mapping[str, int]) -> Iterable[Region]:
    for region in map(_mapping, found):
        if isinstance(entry := region.get("entry"), str):
            own = {axis: size for axis, size in sizes.items() if "." not in axis}
            own |= {bare(axis): size for axis, size in sizes.items() if axis == f"{entry}.{bare(axis)}"}
            at = {name: _indices(region[name], size) for name, size in own.items() if name in region}
            yield Region(entry=entry, at=at, guilty=region.get("guilty") is True)


def _indices(found: Any, size: int) -> frozenset[int]:
    return frozenset(i for i in _list(found) if type(i) is int and 0 <= i < size)


def _list(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else ()


def _mapping(found: Any) -> Json:
    return found if isinstance(found, Mapping) else {}
