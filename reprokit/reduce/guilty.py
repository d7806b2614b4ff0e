"""What heals the whole batch when it alone is healed: the other half of a reduction's answer.

Kept elements are enough to fail; guilty ones are needed to. The two differ: of three padded frames one is kept and all
three are guilty, since any of them left is enough. A question to the whole batch costs a whole step, and nearly all of
the search can do without it: it is done near the reduced case, along one axis at a time, where a question costs a few
hundredths, and the whole batch then confirms or refutes what was found. Only what it confirmed is reported.

What fails alone need not be alone to blame: where each sample lacks what the step divides by, one of them is kept, and
any of them heals. So those that were dropped are put back with the donor's content, which costs little near the reduced
case: where that passes, they are asked about, too.

How to read an axis: one element, or several of which each alone heals; `together`, where several heal only all at once;
nothing, where only all of the axis together heals (it does not tell where the failure is), or not even that (the
failure is in other tensors as well).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reprokit.layout import KEY
from reprokit.reduce.asking import Asking, Indices, through
from reprokit.reduce.moves import Part, minus
from reprokit.reduce.rules import Rules
from reprokit.reduce.search import one_minimal, smallest

_SINGLES = 16  # kept elements that are tried one by one on the whole batch, at a whole step each
_UNTOLD = "only all of this axis together heals: it does not tell where the failure is"

Heals = Callable[[Indices], Asking[bool]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Guilt:
    """Along one axis."""

    indices: Indices = ()
    together: bool = False  # they heal all at once; otherwise each alone does
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"indices": list(self.indices), "together": self.together, "note": self.note}


def find(
    rules: Rules, whole: Part, reduced: Part, axis: str, suspects: Indices = (), *, thorough: bool = False
) -> Asking[Guilt]:
    """Needs an admitted donor. suspects: what several independent minima have along this axis. thorough:
    try those that are not kept as well, for the minimum is not the only one where cutting changes meaning."""
    essential = reduced.essential(axis)
    if not essential:
        return Guilt(note="the reduced case fails with this axis healed: the failure needs nothing of it")
    near = _near(reduced, axis)
    heals_near, heals_whole = _healing(rules, near, axis), _healing(rules, whole, axis)
    confirmed: list[Any] = []
    alone = yield from rules.heals_each(near, axis, () if suspects else essential[:_SINGLES])
    for one, heals in alone.items():
        if not heals and (yield from rules.fails(near.heal(axis, (one,)))):
            continue  # what fails in another way near says nothing: a smaller shape may have failures of its own
        if (yield from heals_whole((one,))):
            confirmed.append(one)
    all_asked = len(whole.keep[axis]) <= _SINGLES
    if confirmed and all_asked and (thorough or (yield from _needs_others(rules, reduced, axis))):
        for one in minus(whole.keep[axis], essential):
            if (yield from heals_whole((one,))):
                confirmed.append(one)
    if confirmed:
        return Guilt(indices=whole.ordered(axis, tuple(confirmed)))
    base = whole.ordered(axis, suspects)
    if base and (yield from heals_whole(base)):
        return _told(whole, axis, (yield from through(one_minimal(range(len(base))), base, heals_whole)))
    return (yield from _search(whole, near, axis, heals_near, heals_whole))


def _needs_others(rules: Rules, reduced: Part, axis: str) -> Asking[bool]:
    """Whether the reduced case passes once healthy elements stand beside it: then it fails only where those are bad."""
    beside = minus(reduced.whole[axis], reduced.keep[axis])
    if axis == KEY or not beside:
        return False
    return (yield from rules.passes(reduced.drop_all_but(axis, reduced.whole[axis]).heal(axis, beside).case()))


def _search(whole: Part, near: Part, axis: str, heals_near: Heals, heals_whole: Heals) -> Asking[Guilt]:
    base: Indices = ()
    if (yield from heals_near(near.keep[axis])):
        base = yield from _fewest(near.keep[axis], heals_near)
        if (yield from heals_whole(base)):
            return _told(whole, axis, base)
    if not (yield from heals_whole(whole.keep[axis])):
        return Guilt(note="healing all of this axis does not heal: the failure is outside of it, too")
    rest = minus(whole.keep[axis], base)
    with_base = lambda some: heals_whole(whole.ordered(axis, (*base, *some)))
    more = yield from through(smallest(range(len(rest))), rest, with_base)
    both = whole.ordered(axis, (*base, *more))
    return _told(whole, axis, (yield from through(one_minimal(range(len(both))), both, heals_whole)))


def _told(whole: Part, axis: str, indices: Indices) -> Guilt:
    """All elements of an axis together are the whole batch by another name."""
    if len(indices) == len(whole.keep[axis]) > 1:
        return Guilt(note=_UNTOLD)
    return Guilt(indices=indices, together=len(indices) > 1)


def _near(reduced: Part, axis: str) -> Part:
    """The reduced case with this axis as it was, from the first kept element on: no prefix before it failed."""
    if axis == KEY:
        return replace(reduced, healed={}, values={})
    first = reduced.essential(axis)[0]
    kept = (*reduced.keep[axis], *(index for index in reduced.whole[axis] if index >= first))
    return reduced.drop_all_but(axis, reduced.ordered(axis, kept)).unhealed(axis)


def _healing(rules: Rules, part: Part, axis: str) -> Heals:
    return lambda indices: rules.passes(part.heal(axis, indices).case())


def _fewest(items: Indices, heals: Heals) -> Asking[Indices]:
    found = yield from through(smallest(range(len(items))), items, heals)
    return (yield from through(one_minimal(range(len(found))), found, heals))
