"""The reducer's protocol: whatever wants to know something yields a case and is sent its outcome.

Nothing above this line runs anything. Whoever drives such a generator owns the budget, the noise, the cache, the
journal and the order of execution; a generator that is driven again with the same outcomes asks the same questions,
which is what makes a reduction resumable and lets several workers answer ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

from reprokit.reduce.search import Search
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome

Found = TypeVar("Found")
Asking = Generator[Case, Outcome, Found]
Indices = tuple[Any, ...]
"""Of an axis: numbers, or names of entries where it is the axis `key`."""


def through(search: Search, items: Indices, fails: Callable[[Indices], Asking[bool]]) -> Asking[Indices]:
    """Drive a search over the positions of `items` with questions to the one above."""
    try:
        question = next(search)
        while True:
            question = search.send((yield from fails(tuple(items[place] for place in question))))
    except StopIteration as found:
        return tuple(items[place] for place in found.value)
