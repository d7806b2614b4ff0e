"""Many questions in one forward pass: does it still fail if this cell is healed, for many cells at once?

The sample that fails is put into one batch again and again, each time healed in another cell, and the modules' outputs
tell which repetitions stay bad (`step/rows.py`). That holds where samples do not interact and for a loss that is not
finite, and is checked rather than assumed:

- every stack holds a repetition with nothing healed, which must be bad, and wholly healed ones in several places, which
  must be good. A BatchNorm or a comparison with other samples spreads bad values to those; a value that goes bad in
  the loss alone is in no module's output, and the first one seems good;
- some of the questions are asked again in another order among others, and must get the same answers;
- the repetitions that were good are put together, and that step must PASS: what was seen agrees with the loss itself;
- healing all the bad cells at once must still fail, or where each of several culprits is enough by itself, one of them.

Hence a "no" (it heals) is certain as far as a non-finite sample makes the loss non-finite, whatever modules did. A
"yes" is certain where healing more never brings a failure back, and the cells healed together still failed. Otherwise
one "yes" was confirmed and the others rest on values: they are wrong for a sample whose bad values do not reach the
captured loss term, such as NaN that marks what is missing or is masked later, or NaN in another term. Where the step
draws random numbers, each answer is that of one draw, as when asked alone. Whatever does not agree (another kind of
failure, an exception, a shape that is refused) ends in None: then ask one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from reprokit.failure import Kind
from reprokit.layout import Layout
from reprokit.reduce.asking import Asking
from reprokit.step.case import Case, Cell
from reprokit.step.outcome import Outcome, Status

_AGAIN = 4  # of each answer, asked again in another order: interaction is in the architecture, and a few show it
_KNOWN = 3  # repetitions of every stack whose answers are known: one bad, two good

Answers = dict[int, bool]  # by the cell's place


def ask_many(
    base: Case,
    cells: Sequence[Cell],
    *,
    kind: Kind,
    samples: Sequence[int],
    room: int,
    known: Mapping[int, bool] | None = None,
) -> Asking[list[bool] | None]:
    """For each cell, whether the base still fails with it healed, too; None where batches cannot tell.

    base: fails as captured, and keeps one essential sample. kind: of that failure. samples: what it keeps along axis b.
    room: how many times it may be repeated in one batch. known: answers that were got one by one, by place. Asks
    nothing where asking one by one takes no more calls.
    """
    known = known or {}
    if kind is not Kind.NONFINITE_LOSS or base.stack or not _worth(len(cells), len(known), room):
        return None
    answers: Answers = {}
    for some in _chunks(range(len(cells)), room - _KNOWN):
        seen = yield from _stacked(base, cells, some, samples)
        if seen is None:
            return None
        answers |= seen
    if any(answers[place] != answer for place, answer in known.items()):
        return None
    good, bad = ([place for place in answers if answers[place] is still] for still in (False, True))
    checks = (_again(base, cells, answers, samples, room), _heals(base, cells, good, room), _fails(base, cells, bad))
    for check in checks:
        if not (yield from check):
            return None
    return [answers[place] for place in range(len(cells))]


def room(layout: Layout, sizes: Mapping[str, int], keep: Mapping[str, Sequence[int]]) -> int:
    """How many times the kept part goes into a batch with no more elements than the whole one, which did fit."""
    if "b" not in sizes:
        return 0
    kept = {axis: len(keep.get(axis, range(size))) for axis, size in sizes.items()}
    whole, part = (
        sum(prod(lengths[axis] for axis in axes) for axes in layout.entries.values() if "b" in axes)
        for lengths in (sizes, kept)
    )
    return whole // part if part else 0


def _worth(cells: int, known: int, room: int) -> bool:
    """Fewer calls than one for each cell, at the worst: stacks, some again, the good ones, all bad ones and one."""
    if room <= _KNOWN + 1:
        return False
    return -(-cells // (room - _KNOWN)) + 1 + -(-cells // room) + 2 < cells - known


def _stacked(
    base: Case, cells: Sequence[Cell], some: Sequence[int], samples: Sequence[int]
) -> Asking[Answers | None]:
    """What one stack says of some of the cells; None where its known answers are wrong."""
    nothing: Cell = {"b": ()}
    everything: Cell = {"b": tuple(samples)}
    middle = len(some) // 2
    stack = (nothing, everything, *(cells[i] for i in some[:middle]), everything, *(cells[i] for i in some[middle:]))
    outcome = yield replace(base, stack=stack, watch=True, thorough=False)
    if not _not_finite(outcome) or outcome.bad_rows is None:
        return None
    bad = {row // len(samples) for row in outcome.bad_rows}
    if 0 not in bad or bad & {1, 2 + middle}:
        return None
    return {i: 2 + place + (place >= middle) in bad for place, i in enumerate(some)}


def _again(
    base: Case, cells: Sequence[Cell], answers: Answers, samples: Sequence[int], room: int
) -> Asking[bool]:
    """A few of each answer once more, in turns and from the back: a neighbour's influence would show."""
    bad, good = ([place for place in reversed(answers) if answers[place] is still][:_AGAIN] for still in (True, False))
    turns = [place for i in range(_AGAIN) for one in (bad, good) for place in one[i : i + 1]][: room - _KNOWN]
    seen = yield from _stacked(base, cells, turns, samples)
    return seen == {place: answers[place] for place in turns}


def _heals(base: Case, cells: Sequence[Cell], good: Sequence[int], room: int) -> Asking[bool]:
    """Those that heal, together: a step that passes."""
    for some in _chunks(good, room):
        outcome = yield replace(base, stack=tuple(cells[i] for i in some), thorough=False)
        if outcome.status is not Status.PASS:
            return False
    return True


def _fails(base: Case, cells: Sequence[Cell], bad: Sequence[int]) -> Asking[bool]:
    """Those that do not heal, all at once, or one of them where only all of them do."""
    for some in (bad, bad[:1]) if len(bad) > 1 else (bad,) if bad else ():
        outcome = yield replace(base, heal=(*base.heal, *(cells[i] for i in some)), thorough=False)
        if outcome.status is Status.FAIL:
            return True
    return not bad


def _not_finite(outcome: Outcome) -> bool:
    signature = outcome.signature
    return outcome.status is Status.FAIL and signature is not None and signature.kind is Kind.NONFINITE_LOSS


def _chunks(items: Sequence[int], size: int) -> list[Sequence[int]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
