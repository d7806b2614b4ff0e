"""Search for a small failing subset, without running anything.

A search is a generator: it yields the subset that it wants to know about and is sent True if that still fails. Whoever
drives it owns the budget, the noise, the cache and the order of execution, so every strategy is a few lines and is
tested on plain integers. All of them start from a set that is known to fail, its elements in ascending order, end with
one that was seen to fail, and take it that an empty set does not. Nothing but the answers decides the next question.

Most failures have one culprit, and it takes log2 n questions to name one of n. So a search first finds the shortest
prefix that fails, whose last element is needed if failing is monotone, and then asks whether that element is enough by
itself. Only where it is not does more work begin: the first element that is needed, then those in between, from the
right. How far away the next one is gets guessed from the gaps so far, as a Golomb code guesses the length of a run: k
scattered elements of n cost about log2(n / k) each, and neighbours one question each.

Bisection takes it that failing is monotone. Where it is not, the result still fails, but may hold elements that could
go. `one_minimal` assumes nothing, and is to close every search: `minimal` is both.

Two words that several strategies take. multiple: blocks of so many items stay or go whole, as patches and strides want;
the last block may be shorter. suspects: elements to which evidence points, such as the samples with the highest loss;
where they are wrong, two questions were lost.
"""

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import chain
from typing import TypeVar

T = TypeVar("T")
Q = TypeVar("Q")
A = TypeVar("A")
Question = tuple[int, ...]
Asking = Generator[Question, bool, T]
Search = Asking[Question]

_TYPICAL = 0.69  # of the mean gap: the next needed element is then as likely to be nearer as to be farther away


def minimal(
    items: Sequence[int], *, ordered: bool = False, multiple: int = 1, suspects: Iterable[int] = ()
) -> Search:
    """A set that fails and of which no single element can go, whatever the answers; no question is asked twice.

    ordered: neighbours belong together, as frames do.
    """
    search = (contiguous if ordered else smallest)(items, multiple=multiple, suspects=suspects)
    return (yield from once(_then(search, lambda found: one_minimal(found, multiple=multiple))))


def crop(items: Sequence[int], *, multiple: int = 1, suspects: Iterable[int] = ()) -> Search:
    """The tightest window that fails, if failing is monotone: 2 log2 n questions, half of it for one culprit.

    suspects: the window that they span is asked about first, then one of twice its size.
    """
    if multiple > 1:
        return (yield from _in_blocks(crop, items, multiple, suspects=suspects))
    return (yield from _ends((yield from _around(tuple(items), frozenset(suspects)))))


def smallest(items: Sequence[int], *, multiple: int = 1, suspects: Iterable[int] = ()) -> Search:
    """A smallest set that fails, if failing is monotone, wherever its elements are.

    suspects: asked first is whether they are enough, then whether the others are. Where it takes some of both, the
    search goes from the suspects outwards.
    """
    if multiple > 1:
        return (yield from _in_blocks(smallest, items, multiple, suspects=suspects))
    inner = tuple(sorted(frozenset(suspects).intersection(items)))
    outer = _without(items, inner)
    if not inner or not outer:
        return (yield from _then(_ends(tuple(items)), _inside))
    for part in (inner, outer):
        if (yield part):
            return (yield from smallest(part))
    nearest_last = sorted(outer, key=lambda item: min(abs(item - suspect) for suspect in inner), reverse=True)
    search = _then(_ends((*nearest_last, *inner), passes=len(outer)), _inside)
    return (yield from once(_mapped(search, lambda found: tuple(sorted(found))), {inner: False, outer: False}))


def contiguous(items: Sequence[int], *, multiple: int = 1, suspects: Iterable[int] = ()) -> Search:
    """A window first and then what is needed of it: for axes on which neighbours belong together, as frames do."""
    if multiple > 1:
        return (yield from _in_blocks(contiguous, items, multiple, suspects=suspects))
    return (yield from _then(crop(items, suspects=suspects), _inside))


def one_minimal(items: Sequence[int], *, multiple: int = 1) -> Search:
    """Drop single elements until none can go. Assumes nothing; after it, every element has been shown to matter."""
    if multiple > 1:
        return (yield from _in_blocks(one_minimal, items, multiple))
    kept, tried = tuple(items), 0
    while tried < len(kept) and len(kept) > 1:
        without = kept[:tried] + kept[tried + 1 :]
        kept, tried = (without, 0) if (yield without) else (kept, tried + 1)
    return kept


def _around(window: Question, suspects: frozenset[int]) -> Search:
    """The part of a window to go on with."""
    places = [place for place, item in enumerate(window) if item in suspects]
    if not places:
        return window
    start, stop = places[0], places[-1] + 1
    for slack in (0, (stop - start + 1) // 2):
        part = window[max(0, start - slack) : stop + slack]
        if part == window or (yield part):
            return part
    return window


def _ends(window: Question, passes: int = 0) -> Search:
    """From the first to the last needed element, given that a prefix of `passes` elements passes."""
    end = yield from _shortest(len(window), lambda size: window[:size], passes=passes)
    if end > 1 and (yield window[end - 1 : end]):
        return window[end - 1 : end]
    size = yield from _shortest(end, lambda size: window[end - size : end], passes=1)
    return window[end - size : end]


def _inside(window: Question) -> Search:
    """What is needed of a window besides its ends, which are."""
    first, rest, last = window[:1], window[1:-1], window[1:][-1:]
    if not rest or (yield first + last):
        return first + last if rest else window
    gaps, step, passes = list[int](), len(rest), 0
    while rest:
        ask = lambda size: first + rest[:size] + last  # noqa: B023  # used up in this round
        size = yield from _shortest(len(rest), ask, passes=passes, step=step)
        if not size:
            break
        gaps.append(len(rest) - size + 1)
        rest, last = rest[: size - 1], rest[size - 1 : size] + last
        step, passes = round(_TYPICAL * min(sum(gaps) / len(gaps), 2 * gaps[-1])), -1
    return first + last


def _shortest(
    n: int, window: Callable[[int], Question], *, passes: int = 0, step: int | None = None
) -> Asking[int]:
    """Smallest size whose window fails, given that n does and `passes` does not; -1 if no size is known to pass.

    step: how far below n a first look is promising. It doubles while windows fail, and is half the way at most.
    """
    fails, step = n, step or n
    while fails - passes > 1:
        farthest = fails if passes < 0 else (fails - passes) // 2
        size = fails - max(1, min(step, farthest))
        if (yield window(size)):
            fails, step = size, 2 * step
        else:
            passes = size
    return fails


def once(search: Asking[T], known: Mapping[Question, bool] | None = None) -> Asking[T]:
    """The same search without the questions whose answers are known, from before or from itself."""
    answers = dict(known or {})
    try:
        question = next(search)
        while True:
            if question not in answers:
                answers[question] = yield question
            question = search.send(answers[question])
    except StopIteration as found:
        result: T = found.value
        return result


def drive(search: Generator[Q, A, T], answer: Callable[[Q], A]) -> T:
    """Run a search, or whatever else asks such questions, against what answers them one after the other."""
    try:
        question = next(search)
        while True:
            question = search.send(answer(question))
    except StopIteration as found:
        result: T = found.value
        return result


def _then(search: Search, more: Callable[[Question], Search]) -> Search:
    return (yield from more((yield from search)))


def _in_blocks(
    strategy: Callable[..., Search], items: Sequence[int], multiple: int, **prior: Iterable[int]
) -> Search:
    """A strategy on blocks of items in place of items."""
    blocks = [tuple(items[start : start + multiple]) for start in range(0, len(items), multiple)]
    hit = {
        word: [place for place, block in enumerate(blocks) if not frozenset(suspects).isdisjoint(block)]
        for word, suspects in prior.items()
    }
    join = lambda places: tuple(chain.from_iterable(blocks[place] for place in places))
    return (yield from _mapped(strategy(range(len(blocks)), **hit), join))


def _mapped(search: Search, to: Callable[[Question], Question]) -> Search:
    """The same search in other words."""
    try:
        question = next(search)
        while True:
            question = search.send((yield to(question)))
    except StopIteration as found:
        return to(found.value)


def _without(items: Iterable[int], others: Iterable[int]) -> Question:
    gone = frozenset(others)
    return tuple(item for item in items if item not in gone)
