"""Whether two settings differ, from few attempts at each.

Fisher's exact test: with the number of failures of both together held fixed, how they fall onto two settings that do
not differ is hypergeometric, however few attempts there are and whatever their common rate. The p-value is the
probability of all divisions that are no more likely than the one seen (Fisher 1935). Asking about many factors finds
one by luck, so p-values are multiplied by how many still stand (Holm 1979): the chance of even one false finding
stays below ALPHA, and no assumption about how the factors hang together is needed. Pure arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

ALPHA = 0.05  # as of the verdict: one wrong claim in twenty triages


def fisher(fail: int, n: int, other_fail: int, other_n: int) -> float:
    """Two-sided p-value for `fail` of `n` beside `other_fail` of `other_n`."""
    total, failures = n + other_n, fail + other_fail
    ways = [comb(n, k) * comb(other_n, failures - k) for k in range(min(n, failures) + 1)]
    return min(1.0, sum(one for one in ways if one <= ways[fail]) / comb(total, failures))


def holm(values: Sequence[float]) -> list[float]:
    """The p-values in their order, each corrected for all of them."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[place]))
        adjusted[place] = largest
    return adjusted
