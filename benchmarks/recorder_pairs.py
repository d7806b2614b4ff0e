"""Two things timed in turn, and what their ratios support."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from math import comb
from statistics import median
from time import perf_counter, process_time
from typing import Any

Step = Callable[[], object]

CONFIDENCE = 0.95


def timed(do: Step) -> float:
    began = perf_counter()
    do()
    return perf_counter() - began


def in_turn(pairs: int, doing: Mapping[str, Step], block: int = 1) -> dict[str, list[float]]:
    """Seconds of each, after one round that is not counted; every second round in the other order. block: how often a
    thing is done before it is the other's turn, for what costs more now and then; seconds are of one of them."""
    seconds: dict[str, list[float]] = {name: [] for name in doing}
    for number in range(-1, pairs):
        for name in list(doing)[:: 1 if number % 2 else -1]:
            took = sum(timed(doing[name]) for _ in range(block))
            if number >= 0:
                seconds[name].append(took / block)
    return seconds


def afresh(
    pairs: int, making: Mapping[str, Callable[[], AbstractContextManager[Step]]], block: int, warm: int
) -> dict[str, list[tuple[float, float]]]:
    """The same, each pair with things made anew: where a model happens to lie in memory moves a step by some percent,
    which turns of the same two would never average out. Seconds on the clock, and of all threads of this process."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in making}
    for number in range(pairs):
        with ExitStack() as stack:
            steps = {name: stack.enter_context(make()) for name, make in making.items()}
            for step in steps.values():
                for _ in range(warm):
                    step()
            for name in list(steps)[:: 1 if number % 2 else -1]:
                began, used = perf_counter(), process_time()
                for _ in range(block):
                    steps[name]()
                took[name].append(((perf_counter() - began) / block, (process_time() - used) / block))
        gc.collect()
    return took


def ratio(name: str, above: list[float], below: list[float]) -> dict[str, Any]:
    """A row: the median of the pairs' ratios, and an interval for it that assumes nothing of how they are spread."""
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    low, high = _ranks(len(ratios))
    return {"name": name, "value": median(ratios), "low": ratios[low], "high": ratios[high], "unit": "ratio"}


def seconds(name: str, values: list[float]) -> dict[str, Any]:
    ordered = sorted(values)
    low, high = _ranks(len(ordered))
    return {"name": name, "value": median(ordered), "low": ordered[low], "high": ordered[high], "unit": "s"}


def _ranks(n: int) -> tuple[int, int]:
    """Order statistics around the median that cover it with the confidence; all there is, where n is too small."""
    tail = 0.0
    for rank, chance in enumerate(_binomial(n)):
        tail += chance
        if 2 * tail > 1 - CONFIDENCE:
            low = max(0, rank - 1)
            return low, n - 1 - low
    return 0, n - 1


def _binomial(n: int) -> Iterator[float]:
    for k in range(n + 1):
        yield comb(n, k) / 2**n
