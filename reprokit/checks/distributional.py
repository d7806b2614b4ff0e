"""Whether a sample has the distribution that it should have.

`kolmogorov_smirnov` takes the largest distance of two distribution functions (Kolmogorov 1933, Smirnov 1939). It is
exact for continuous values; with ties it is conservative, so that it fails less often than alpha says. Samples must be
independent: the frames of one clip are not.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, lgamma, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from reprokit.checks.asked import checked_alpha, checked_name
from reprokit.checks.data import sample, unsound
from reprokit.checks.extra import scipy_stats
from reprokit.checks.result import Result
from reprokit.checks.significance import POWER, Question, checked_detect
from reprokit.errors import BadInput
from reprokit.replay.verdict import ALPHA

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers


def kolmogorov_smirnov(
    name: str,
    values: Any,
    reference: Any,
    *,
    alpha: float = ALPHA,
    detect: float | None = None,
) -> Result:
    """Values have the distribution of a reference: another sample, or a distribution function (`scipy.stats.norm.cdf`).

    values, and a sample as the reference: shapes (n,) and (m,), in one unit. detect: the distance of distribution
    functions, up to 1, that the samples must be large enough to see. Raises BadInput for what is no sample or no
    distribution function, and where scipy is not installed.
    """
    alpha = checked_alpha(checked_name(name), alpha)
    test = Question(name=name, alpha=alpha, detect=checked_detect(name, detect))
    stats, one = scipy_stats(name), sample(name, values)
    n, problem = len(one), unsound(one)
    beside = "its reference"
    if callable(reference):
        size, least_p = float(n), 0.0
    else:
        other = sample(f"{name}: reference", reference)
        problem = problem or unsound(other, "reference")
        m = len(other)
        size = n * m / (n + m) if n + m else 0.0
        least_p = min(1.0, 2 * exp(lgamma(n + 1) + lgamma(m + 1) - lgamma(n + m + 1)))  # of samples that do not overlap
        beside = f"its reference, {m} values"
    condition = f"{name} has the distribution of {beside} (Kolmogorov-Smirnov, alpha {alpha:g})"
    if problem:
        return test.unanswered(condition, n, problem)
    if callable(reference):
        _check_distribution(name, one, reference)
    with catch_warnings():  # where its exact arithmetic overflows it takes the approximation, and says so
        simplefilter("ignore", RuntimeWarning)
        found = stats.ks_1samp(one, reference) if callable(reference) else stats.ks_2samp(one, other)
    # at the place of the largest distance the two shares differ with a variance of at most 1/4n + 1/4m
    seen = (float(stats.kstwobign.ppf(1 - alpha)) + NormalDist().inv_cdf(POWER) / 2) / sqrt(size)
    return test.judged(
        condition,
        n,
        float(found.pvalue),
        least_p=least_p,
        statistic=("distance", float(found.statistic)),
        seen=("a distance", seen),
    )


def _check_distribution(name: str, values: Numbers, cdf: Callable[[Any], Any]) -> None:
    """A density in place of a distribution function gives a p-value as well, which means nothing."""
    import numpy as np

    try:
        levels = np.asarray(cdf(np.sort(values)), dtype=np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # scipy.stats.norm itself gives a distribution
        levels = np.empty(0)
    if levels.shape != values.shape or not (np.isfinite(levels) & (levels >= 0) & (levels <= 1)).all():
        raise BadInput(f"{name}: the reference does not give one probability a value; hand over a .cdf")
    if (np.diff(levels) < -1e-12).any():
        raise BadInput(
            f"{name}: the reference falls where values rise, so it is no distribution function; not its .pdf"
        )
