"""How far a statistic of a sample may be from that of what was sampled, without assuming its distribution.

The sample is drawn from with replacement, and how the statistic of such draws lies around that of the sample stands in
for how the latter lies around the truth (Efron 1979). The percentiles are bias-corrected and accelerated (Efron 1987:
BCa), since the plain ones are off by the skewness that per-sample losses have. Read backwards, the same percentiles
give the confidence that the truth is below a bound: what a p-value needs. The acceleration is the jackknife's, over
blocks where samples are many. Draws come from a generator of their own: a check is no source of flakiness. Needs
samples that are independent: frames of one clip are not, means of clips are. It is an approximation, which heavy tails
spoil (Hesterberg 2015): how much is measured in docs/checks.md. Pure arithmetic over a NumPy array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers

Statistic = Callable[["Numbers"], float]

LEAST = 30  # samples: with 20, an interval of 95% covers 91% of the time for an exponential, 87% for an accuracy of 0.9
BLOCKS = 200  # of the jackknife: the acceleration is an average, which more of them do not make better

_NORMAL = NormalDist()


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Of a statistic over redrawn samples."""

    value: float  # of the sample itself
    draws: Numbers  # of redrawn samples, shape (resamples,), sorted
    bias: float  # z0: where the value lies among the draws, in standard deviations of a normal distribution
    acceleration: float  # how fast the spread grows with the value

    def quantile(self, level: float) -> float:
        """The truth is below this with confidence `level`."""
        shift = self.bias + _NORMAL.inv_cdf(level)
        share = _NORMAL.cdf(self.bias + shift / max(1 - self.acceleration * shift, 1e-9))
        place = round(share * (len(self.draws) + 1)) - 1
        return float(self.draws[min(max(place, 0), len(self.draws) - 1)])

    def below(self, bound: float) -> float:
        """The confidence that the truth is below a bound: `quantile`, read backwards."""
        shift = _place(self.draws, bound) - self.bias
        stretched = 1 + self.acceleration * shift
        if stretched <= 0:
            return 0.0 if shift < 0 else 1.0
        return _NORMAL.cdf(shift / stretched - self.bias)

    @property
    def error(self) -> float:
        """The standard error."""
        import numpy as np

        with np.errstate(over="ignore", invalid="ignore"):
            away = self.draws - self.value
            return _largest(away) * float(_scaled(away).std(ddof=1))


def spread(values: Numbers, statistic: Statistic, *, resamples: int, seed: int) -> Spread:
    """Of a statistic of a sample without NaN, shape (n,). Costs `resamples` draws, and a jackknife of up to BLOCKS."""
    import numpy as np

    generator = np.random.default_rng(seed)
    n, value = len(values), float(statistic(values))
    draws = np.sort([float(statistic(values[generator.integers(n, size=n)])) for _ in range(resamples)])
    blocks = np.array_split(generator.permutation(n), min(n, BLOCKS))
    without = np.array([float(statistic(np.delete(values, block))) for block in blocks])
    with np.errstate(over="ignore", invalid="ignore"):
        pulls = _scaled(without.mean() - without)
        squares = float((pulls**2).sum())
        acceleration = float((pulls**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    return Spread(value=value, draws=draws, bias=_place(draws, value), acceleration=acceleration)


def _place(draws: Numbers, value: float) -> float:
    """Where a value lies among the draws; ties count half, since metrics such as an accuracy have many."""
    below, ties = float((draws < value).sum()), float((draws == value).sum())
    least = 1 / (len(draws) + 1)  # what lies outside all draws is as rare as that at most
    return _NORMAL.inv_cdf(min(max((below + ties / 2) / len(draws), least), 1 - least))


def _scaled(values: Numbers) -> Numbers:
    """So that the largest is 1: powers of losses of 1e200 are no numbers, nor are those of 1e-200."""
    return values / (_largest(values) or 1.0)


def _largest(values: Numbers) -> float:
    return float(abs(values).max())
