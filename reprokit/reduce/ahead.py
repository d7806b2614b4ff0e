"""What a plan will ask soon, so that workers with nothing to do can answer it already.

A plan is deterministic: a second one that is sent the answers so far and a guess says what would be asked after it.
Where the guess was right an answer is there before its question. Pure: nothing is run here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from reprokit.reduce.asking import Asking
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome

Known = Callable[[Case], Outcome | None]


class Plan(Protocol):
    """What asks: driven again with the same outcomes, it asks the same questions."""

    phase: str  # what it is at, for the books

    def run(self) -> Asking[None]: ...


def foreseen(
    make: Callable[[], Plan], answers: Sequence[Outcome], guesses: Sequence[Outcome], known: Known
) -> Iterator[Case]:
    """What follows the question whose answer comes next, after these ones; the likeliest first, by breadth.

    make: the plan, from its beginning. known: answers that need no guess.
    """
    futures = deque([*answers, guess] for guess in guesses)
    while futures:
        supposed = futures.popleft()
        following = _after(make, supposed, known)
        if following is not None:
            yield following
            futures.extend([*supposed, guess] for guess in guesses)


def _after(make: Callable[[], Plan], supposed: list[Outcome], known: Known) -> Case | None:
    """The next question whose answer is not known, after these; known ones are added to them."""
    asking = make().run()
    with suppress(StopIteration):
        case = next(asking)
        for outcome in supposed:
            case = asking.send(outcome)
        while (answer := known(case)) is not None:
            supposed.append(answer)
            case = asking.send(answer)
        return case
    return None
