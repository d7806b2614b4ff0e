"""What heals the whole batch when it alone is healed: the other half of a reduction's answer.

Kept elements are enough to fail; guilty ones are needed to. The two differ: of three padded frames one is kept and all
three are guilty, since any of them left is enough. A question to the whole batch costs a whole step, and nearly all of
the search can do without it: it is done near the reduced case, along one axis at a time, where a question costs a few
hundredths, and the whole batch then confirms or refutes what was found. Only what it confirmed is reported.

How to read an axis: one element, or several of which each alone heals; `together`, where several heal only all at once
(all of the axis: it does not tell where the failure is); nothing, where healing all of the axis would not heal, because
the failure is in other tensors as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reprokit.reduce.moves import Indices, Part
from reprokit.reduce.oracle import Oracle
from reprokit.reduce.search import drive, one_minimal, smallest

_SINGLES = 16  # kept elements that are tried one by one on the whole batch, at a whole step each


@dataclass(frozen=True, kw_only=True, slots=True)
class Guilt:
    """Along one axis."""

    indices: Indices = ()
    together: bool = False  # they heal all at once; otherwise each alone does
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"indices": list(self.indices), "together": self.together, "note": self.note}


def find(oracle: Oracle, whole: Part, reduced: Part, axis: str) -> Guilt:
    """Needs an admitted donor. Raises Spent."""
    essential = reduced.essential(axis)
    if not essential:
        return Guilt(note="the reduced case fails with this axis healed: the failure needs nothing of it")
    near = _near(reduced, axis)
    heals_near, heals_whole = _healing(oracle, near, axis), _healing(oracle, whole, axis)
    singles = [one for one in essential[:_SINGLES] if not oracle.fails(near.heal(axis, (one,)))]
    if confirmed := tuple(one for one in singles if heals_whole((one,))):
        return Guilt(indices=confirmed)
    base: Indices = ()
    if heals_near(near.keep[axis]):
        base = _fewest(near.keep[axis], heals_near)
        if heals_whole(base):
            return Guilt(indices=base, together=len(base) > 1)
    if not heals_whole(whole.keep[axis]):
        return Guilt(note="healing all of this axis does not heal: the failure is outside of it, too")
    rest = tuple(index for index in whole.keep[axis] if index not in base)
    more = drive(smallest(rest), lambda some: heals_whole(_union(base, some)))
    indices = drive(one_minimal(_union(base, more)), heals_whole)
    return Guilt(indices=indices, together=len(indices) > 1)


def _near(reduced: Part, axis: str) -> Part:
    """The reduced case with this axis as it was, from the first kept element on: no prefix before it failed."""
    first = reduced.essential(axis)[0]
    return reduced.drop_all_but(axis, _union(reduced.keep[axis], range(first, reduced.sizes[axis]))).unhealed(axis)


def _healing(oracle: Oracle, part: Part, axis: str) -> Callable[[Indices], bool]:
    return lambda indices: oracle.passes(part.heal(axis, indices))


def _fewest(items: Indices, heals: Callable[[Indices], bool]) -> Indices:
    return drive(one_minimal(drive(smallest(items), heals)), heals)


def _union(some: Indices, others: Indices | range) -> Indices:
    return tuple(sorted({*some, *others}))
