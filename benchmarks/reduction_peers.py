"""The reducers that ours is measured against, each behind the same call: how many items, does this subset fail.

All get the same predicate, which counts a question once, however often it is asked: caches are free for everybody. That
all of the items fail and none of them do not is known beforehand. Each runs until it says by itself that nothing more
can go, in the setting that asks least.
"""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence

from ddmin import DDMin
from hypothesis.internal.conjecture.junkdrawer import find_integer
from lithium.strategies import Minimize
from lithium.testcases import Testcase

from reprokit.reduce.search import drive, minimal

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks pkg_resources, which is about to go, for its own version
    from picire import DD, Outcome, OutcomeCache, config_iterators

Fails = Callable[[Sequence[int]], bool]


class Counted:
    """Does a subset, in ascending order, hold all culprits? `calls` counts distinct questions."""

    def __init__(self, n: int, culprits: Collection[int]) -> None:
        self._n, self._culprits = n, sorted(culprits)
        self._answers: dict[tuple[int, ...], bool] = {}

    @property
    def calls(self) -> int:
        return len(self._answers)

    def __call__(self, kept: Sequence[int]) -> bool:
        question = tuple(kept)
        if len(question) in (0, self._n):
            return bool(question)
        if question not in self._answers:
            self._answers[question] = all(_holds(question, culprit) for culprit in self._culprits)
        return self._answers[question]


def _holds(question: Sequence[int], item: int) -> bool:
    place = bisect_left(question, item)
    return place < len(question) and question[place] == item


def reprokit(n: int, fails: Fails) -> Iterable[int]:
    """`minimal`, closing pass included."""
    return drive(minimal(range(n)), fails)


def picire(n: int, fails: Fails) -> Iterable[int]:
    """Complements alone (`--subset-iterator skip`), which never asks more than the default in these scenarios. Without
    its cache, for ours does the same and is smaller."""
    ask = lambda kept, _: Outcome.FAIL if fails(kept) else Outcome.PASS
    return DD(ask, cache=OutcomeCache(), subset_iterator=config_iterators.skip)(list(range(n)))


def lithium(n: int, fails: Fails) -> Iterable[int]:
    """`minimize`, its default strategy."""
    reduction = Minimize().reduce(_Items(n))
    for attempt in reduction:
        reduction.feedback(fails(_numbers(attempt)))
    return _numbers(reduction.testcase)


def ddmin(n: int, fails: Fails) -> Iterable[int]:
    """It takes True for a pass."""
    return DDMin(list(range(n)), lambda kept: not fails(kept)).execute()


def hypothesis(n: int, fails: Fails) -> Iterable[int]:
    """Chunks of adaptive length deleted from the back, as its shrinker of collections does, until a pass deletes
    nothing."""
    kept, before = tuple(range(n)), None
    while kept != before:
        before, end = kept, len(kept)
        while end > 0:
            deleted = find_integer(lambda k: k <= end and fails(kept[: end - k] + kept[end:]))  # noqa: B023
            kept, end = kept[: end - deleted] + kept[end:], end - max(deleted, 1)
    return kept


class _Items(Testcase):
    """Four bytes for each number."""

    atom = "item"

    def __init__(self, n: int = 0) -> None:
        super().__init__()
        self.parts = [number.to_bytes(4) for number in range(n)]
        self.reducible = [True] * n

    def split_parts(self, data: bytes) -> None:
        raise NotImplementedError("made from numbers, not from a file")


def _numbers(items: Testcase) -> tuple[int, ...]:
    return tuple(map(int.from_bytes, items.parts))


TOOLS: dict[str, Callable[[int, Fails], Iterable[int]]] = {
    "reprokit": reprokit,
    "picire": picire,
    "lithium": lithium,
    "ddmin": ddmin,
    "find_integer": hypothesis,
}
