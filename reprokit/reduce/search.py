"""Search for a small failing subset, without running anything.

A search is a generator: it yields the subset that it wants to know about and is sent True if that still fails. Whoever
drives it owns the budget, the noise, the cache and the order of execution, so every strategy is a few lines and is
tested on plain integers. All of them start from a set that is known to fail, end with one that was seen to fail, and
take it that an empty set does not.

Most failures have one culprit, and it takes log2 n questions to name one of n. So a search first finds the shortest
prefix that fails, whose last element is needed if failing is monotone, and then asks whether that element is enough by
itself. Only where it is not does more work begin.
"""

from collections.abc import Callable, Generator, Sequence

Question = tuple[int, ...]
Search = Generator[Question, bool, Question]


def crop(items: Sequence[int]) -> Search:
    """The tightest window that fails, if failing is monotone: 2 log2 n questions, half of it for one culprit."""
    end = yield from _shortest(len(items), lambda size: tuple(items[:size]))
    if end > 1 and (yield tuple(items[end - 1 : end])):
        return tuple(items[end - 1 : end])
    size = yield from _shortest(end, lambda size: tuple(items[end - size : end]), passes=1)
    return tuple(items[end - size : end])


def smallest(items: Sequence[int]) -> Search:
    """A smallest set that fails, if failing is monotone: k log2 n questions for k scattered elements, k + log2 n for k
    neighbours. Each round finds the last element that is still needed, and then asks for its neighbours one by one."""
    rest, found = tuple(items), Question()
    while rest:
        end = yield from _shortest(len(rest), lambda size: rest[:size] + found)  # noqa: B023  # used up in this round
        rest, found, alone = rest[: end - 1], rest[end - 1 : end] + found, True
        if not rest or (yield found):
            break
        while rest and not (yield rest[:-1] + found):
            rest, found, alone = rest[:-1], rest[-1:] + found, False
        rest = rest[:-1]
        if not alone and rest and (yield found):
            break
    return found


def one_minimal(items: Sequence[int]) -> Search:
    """Drop single elements until none can go. Assumes nothing; after it, every element has been shown to matter."""
    kept, tried = tuple(items), 0
    while tried < len(kept) and len(kept) > 1:
        without = kept[:tried] + kept[tried + 1 :]
        kept, tried = (without, 0) if (yield without) else (kept, tried + 1)
    return kept


def contiguous(items: Sequence[int]) -> Search:
    """A window first and then what is needed of it: for axes on which neighbours belong together, as frames do."""
    window = yield from crop(items)
    return (yield from smallest(window)) if len(window) > 2 else window


def _shortest(n: int, window: Callable[[int], Question], passes: int = 0) -> Generator[Question, bool, int]:
    """Smallest size whose window fails, given that n does and `passes` does not."""
    fails = n
    while fails - passes > 1:
        middle = (passes + fails) // 2
        passes, fails = (passes, middle) if (yield window(middle)) else (middle, fails)
    return fails


def drive(search: Search, fails: Callable[[Question], bool]) -> Question:
    """Run a search against whatever answers its questions, one after the other."""
    try:
        question = next(search)
        while True:
            question = search.send(fails(question))
    except StopIteration as found:
        answer: Question = found.value
        return answer
