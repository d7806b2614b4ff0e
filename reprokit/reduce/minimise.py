"""The smallest part that still fails: samples, views and frames first, then what is in them.

Samples go first: they seldom interact, so cutting them changes the least and makes every later question cheaper. The
other axes follow in the order of what they save. Along each axis elements are dropped while the rest fails, and the
result's shape twin is asked once; where healthy content in that shape fails too, the axis is searched again with a twin
for every drop. Where the architecture refuses a shape, elements are healed instead, and stay as mere shape.

No search assumes that failing is monotone without a check at the end: the closing pass drops (or heals) single elements
of every axis until nothing changes. The tests of its last round are the certificate: each kept element was shown to
matter. What is inside a sample is healed only, entry by entry and then window by window: few models take an image of
another size, but a closing look tries the smallest aligned crops around what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from reprokit.failure import Kind
from reprokit.layout import KEY
from reprokit.reduce.asking import Asking, Indices, through
from reprokit.reduce.model import NO_MODEL, Model
from reprokit.reduce.moves import Part, minus
from reprokit.reduce.rules import Rules
from reprokit.reduce.search import Search, contiguous, crop, one_minimal, smallest
from reprokit.step.case import Simpler
from reprokit.step.outcome import Status

_NEIGHBOURS = ("t", "s")  # axes on which order means something: a window of them is a smaller clip


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """What is known of a batch before anything is asked. Plain data: a plan is made from it again and again."""

    whole: Part
    axes: tuple[str, ...]  # that can be cut, in the order in which they are
    axes_of: Mapping[str, tuple[str, ...]]  # entry -> all its axes
    inner: Mapping[str, tuple[str, ...]]  # entry -> its private axes that can only be healed, largest entries first
    kind: Kind
    room: Callable[[Mapping[str, Indices]], int]  # how often a part fits into a batch of the whole one's elements
    texts: tuple[str, ...] = ()  # entries that say where a sample comes from: never healed by themselves
    suspects: Mapping[str, Indices] = field(default_factory=dict)  # by axis: what stands out, a hint
    simpler: Callable[[Part, str], tuple[Simpler, ...]] = lambda part, entry: ()  # what would change an entry of a part
    model: Model = NO_MODEL
    last: Mapping[str, Any] = field(default_factory=dict)  # axis -> the index that must stay: the failing step


class Minimiser:
    """`part` is at all times the smallest part that is known to fail."""

    def __init__(self, setup: Setup, rules: Rules, start: Part, note: Callable[[str, str], None]) -> None:
        self._setup, self._rules, self._note = setup, rules, note
        self.part = start
        self._refused: dict[str, None] = {}  # axes on which a shape was refused, in order
        self.unsound: set[str] = set()  # axes along which healthy content fails, too, once it is cut

    def run(self) -> Asking[list[dict[str, Any]]]:
        """Returns the tests that show that the part is 1-minimal along the axes that can be cut."""
        for axis in self._each("search", self._setup.axes):
            yield from self._drop(axis)
        for axis in self._each("search", self._refused if self._rules.twins else ()):
            yield from self._heal(axis)
        return (yield from self._close())

    def look_inside(self) -> Asking[None]:
        """What of the kept elements is needed: entries, channels, rows and columns. Needs an admitted donor."""
        for axis in self._each("inside", [KEY] if KEY in self.part.whole else []):
            yield from self._content(axis, smallest, keep=self._setup.texts)
        for entry, axes in self._setup.inner.items():
            if entry not in self.part.healed.get(KEY, ()):
                for axis in self._each("inside", axes):
                    yield from self._content(axis, crop)
                yield from self._crop_image(axes)

    def simplify(self) -> Asking[None]:
        """Values that say less and fail as well; sound where the donor's content, made as simple, passes."""
        for entry in self._setup.axes_of:
            if entry in self.part.healed.get(KEY, ()):
                continue
            for kind in self._setup.simpler(self.part, entry):
                simpler = replace(self.part, values={**self.part.values, entry: kind})
                self._note("values", entry)
                if (yield from self._rules.fails_soundly(simpler)):
                    self.part = simpler
                    break

    def _drop(self, axis: str) -> Asking[None]:
        """The fewest elements that fail by themselves in a sound shape."""
        items, start = self.part.keep[axis], self.part

        def fails(kept: Indices) -> Asking[bool]:
            status = (yield from self._rules.ask(self._cut(start, axis, kept).case())).status
            if status in (Status.OTHER, Status.INVALID):
                self._refused[axis] = None
            return status is Status.FAIL

        def fails_soundly(kept: Indices) -> Asking[bool]:
            return (yield from fails(kept)) and (yield from self._rules.shape_is_sound(self._cut(start, axis, kept)))

        found = yield from through(self._search(axis, items), items, fails)
        if not (yield from self._rules.shape_is_sound(self._cut(start, axis, found))):
            self._refused[axis] = None
            self.unsound.add(axis)
            found = yield from through(self._search(axis, items), items, fails_soundly)
        self.part = self._cut(start, axis, found)

    def _search(self, axis: str, items: Indices) -> Search:
        hints = [place for place, index in enumerate(items) if index in self._setup.suspects.get(axis, ())]
        kind = contiguous if axis.rpartition(".")[2] in _NEIGHBOURS else smallest
        return kind(range(len(items)), suspects=hints if len(hints) < len(items) else ())

    def _cut(self, part: Part, axis: str, kept: Indices) -> Part:
        """With what must stay."""
        last = self._setup.last.get(axis)
        return part.drop_all_but(axis, kept if last is None or last in kept else (*kept, last))

    def _heal(self, axis: str) -> Asking[None]:
        """Of what could not be dropped, the fewest that must keep their content; then the least shape beside it."""
        yield from self._content(axis, smallest)
        content, shape = self.part.essential(axis), self.part.healed.get(axis, ())
        if len(shape) < 2:
            return
        healed = self.part

        def beside(some: Indices) -> Part:
            return self._cut(healed, axis, healed.ordered(axis, (*content, *some)))

        fails = lambda some: self._rules.fails_soundly(beside(some))
        # where a model takes whole blocks alone, each cut on the way here was refused
        alone = yield from self._rules.fails_soundly(beside(()))
        self.part = beside(() if alone else (yield from through(smallest(range(len(shape))), shape, fails)))

    def _content(self, axis: str, search: Callable[[range], Search], keep: Indices = ()) -> Asking[None]:
        """Heal all but what must keep its content, and what is to keep it anyway, which may decide alone."""
        start, items = self.part, minus(self.part.essential(axis), keep)

        def healed(content: Indices) -> Part:
            return start.heal(axis, minus(start.keep[axis], (*content, *keep)))

        def fails(content: Indices) -> Asking[bool]:
            return (yield from self._rules.fails(healed(content)))

        content = items
        if len(items) > 1:
            content = yield from through(search(range(len(items))), items, fails)
        if keep and len(content) == 1 and (yield from fails(())):
            content = ()
        if len(content) < len(items):
            self.part = healed(content)

    def _crop_image(self, axes: Iterable[str]) -> Asking[None]:
        """The smallest aligned crop around what is left; rows and columns alike, for few models take other shapes."""
        sides = [axis for axis in axes if axis.rpartition(".")[2] in ("h", "w")]
        if len(sides) != 2 or not all(self.part.healed.get(axis) for axis in sides):
            return
        lengths = {axis: len(self.part.whole[axis]) for axis in sides}
        for side in [side for side in range(1, min(lengths.values())) if all(n % side == 0 for n in lengths.values())]:
            windows = {axis: _aligned(self.part.essential(axis), side) for axis in sides}
            cropped = self.part
            for axis, window in windows.items():
                cropped = cropped.drop_all_but(axis, window)
            if all(windows.values()) and (yield from self._rules.fails_soundly(cropped)):
                self.part = cropped
                return

    def _close(self) -> Asking[list[dict[str, Any]]]:
        """Single elements of every axis, to a fixpoint. Returns the tests of the last round."""
        before = None
        while before != self.part:
            before = self.part
            for axis in self._each("closing", reversed(self._setup.axes)):  # those that matter least first
                yield from self._close_axis(axis)
        tests = []
        for axis in self._setup.axes:
            for index in self.part.keep[axis]:
                tests.append((yield from self._test(axis, index)))
        return tests

    def _close_axis(self, axis: str) -> Asking[None]:
        start, items = self.part, self.part.keep[axis]
        fails = lambda kept: self._rules.fails_soundly(self._cut(start, axis, kept))
        kept = yield from through(one_minimal(range(len(items))), items, fails)
        self.part = self._cut(start, axis, kept)
        for index in self.part.essential(axis) if self._rules.twins else ():
            if (yield from self._cannot_go(axis, index)):
                healed = self.part.heal(axis, (index,))
                if (yield from self._rules.fails(healed)):
                    self.part = healed

    def _cannot_go(self, axis: str, index: Any) -> Asking[bool]:
        """No smaller shape without it can run: an axis is never empty, and an architecture may insist on more."""
        if len(self.part.keep[axis]) == 1 or self._setup.last.get(axis) == index:
            return True
        return (yield from self._without(axis, index)) is Status.INVALID

    def _without(self, axis: str, index: Any) -> Asking[Status]:
        return (yield from self._rules.verdict(self._cut(self.part, axis, minus(self.part.keep[axis], (index,)))))

    def _test(self, axis: str, index: Any) -> Asking[dict[str, Any]]:
        """What shows that this element matters, from the cache: how it was taken away, and what came then."""
        test: dict[str, Any] = {"axis": axis, "index": index}
        if not (yield from self._cannot_go(axis, index)):
            return test | {"move": "drop", "status": str((yield from self._without(axis, index)))}
        if self._rules.twins and index in self.part.essential(axis):
            outcome = yield from self._rules.ask(self.part.heal(axis, (index,)).case())
            return test | {"move": "heal", "status": str(outcome.status)}
        why = "the last of its axis" if len(self.part.keep[axis]) == 1 else "no smaller shape runs"
        content = "the donor's content" if self._rules.twins else "no donor to heal it with"
        return test | {"move": "drop", "status": str(Status.INVALID), "note": f"{why}; {content}"}

    def _each(self, phase: str, axes: Iterable[str]) -> Iterator[str]:
        for axis in axes:
            self._note(phase, axis)
            yield axis


def _aligned(needed: Indices, side: int) -> Indices:
    """The window of this length, at a multiple of it, that holds all of these; () where none does."""
    start = needed[0] // side * side
    return tuple(range(start, start + side)) if needed[-1] < start + side else ()
