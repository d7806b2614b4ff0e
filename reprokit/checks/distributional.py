"""Whether a sample has the distribution that it should have.

- `kolmogorov_smirnov`: the largest distance of two distribution functions (Kolmogorov 1933, Smirnov 1939). Exact for
  continuous values; with ties it is conservative, so that it fails less often than alpha says.
- `chi_square`: counts beside expected shares, or beside other counts (Pearson 1900). Its approximation wants expected
  counts of 5 and more (Cochran 1954); fewer are UNANSWERED.
- `kl_divergence`: the divergence of counts from a distribution, in nats, below a bound (Kullback and Leibler 1951).
  From n samples of k categories it comes out about (k - 1) / 2n too large (Miller 1955); where that alone reaches the
  bound the sample is too small, and UNANSWERED.

A test that fails with probability alpha although nothing is wrong passes easily on few samples. Each message therefore
says what difference would have been seen with a power of 80%; `detect` makes a sample that cannot see as much as that
UNANSWERED. Samples must be independent: the frames of one clip are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import comb, isfinite, sqrt
from statistics import NormalDist
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings, simplefilter

from reprokit.checks.data import checked_alpha, sample, shown, unsound
from reprokit.checks.extra import scipy_stats
from reprokit.checks.result import Answer, Result
from reprokit.checks.threshold import POWER
from reprokit.errors import BadInput
from reprokit.replay.verdict import ALPHA

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers

LEAST_EXPECTED = 5  # counts in each category (Cochran 1954)


def kolmogorov_smirnov(
    name: str,
    values: Any,
    reference: Any,
    *,
    alpha: float = ALPHA,
    detect: float | None = None,
) -> Result:
    """Values have the distribution of a reference: another sample, or a distribution function (`scipy.stats.norm.cdf`).

    detect: the distance of distribution functions, up to 1, that the samples must be large enough to see.
    """
    test = _Test(name=name, alpha=checked_alpha(name, alpha), detect=_checked_detect(name, detect))
    stats, one = scipy_stats(name), sample(name, values)
    n, problem = len(one), unsound(one)
    condition = f"{name} has the distribution of its reference (Kolmogorov-Smirnov, alpha {alpha:g})"
    if callable(reference):
        size, least_p = float(n), 0.0
    else:
        other = sample(f"{name}: reference", reference)
        problem = problem or unsound(other, "reference")
        m = len(other)
        size = n * m / (n + m) if n + m else 0.0
        least_p = min(1.0, 2 / comb(n + m, n))  # of two samples that do not overlap
        condition = f"{name} has the distribution of its reference, {m} values (Kolmogorov-Smirnov, alpha {alpha:g})"
    if problem:
        return test.unanswered(condition, n, problem)
    with catch_warnings():
        simplefilter("ignore", RuntimeWarning)  # with many ties it takes the approximation, which is as good there
        found = stats.ks_1samp(one, reference) if callable(reference) else stats.ks_2samp(one, other)
    # at the place of the largest distance the two shares differ with a variance of at most 1/4n + 1/4m
    seen = (float(stats.kstwobign.ppf(1 - alpha)) + _one_sided(POWER) / 2) / sqrt(size)
    return test.judged(
        condition,
        n,
        float(found.pvalue),
        least_p=least_p,
        statistic=("distance", float(found.statistic)),
        seen=("a distance", seen),
    )


def chi_square(
    name: str,
    counts: Any,
    *,
    expected: Any = None,
    reference: Any = None,
    estimated: int = 0,
    alpha: float = ALPHA,
    detect: float | None = None,
) -> Result:
    """Counts by category are as expected: shares (of any sum), or the counts of a reference sample.

    estimated: parameters of the expected shares that were fitted to these counts. detect: the effect size (Cohen's w;
    0.1 is small, 0.3 medium) that the sample must be large enough to see.
    """
    import numpy as np

    if (expected is None) == (reference is None):
        raise BadInput(f"{name}: give expected= (shares) or reference= (counts of another sample), one of them")
    test = _Test(name=name, alpha=checked_alpha(name, alpha), detect=_checked_detect(name, detect))
    stats, seen_counts = scipy_stats(name), _counts(name, counts)
    beside = _weights(f"{name}: expected", expected) if reference is None else _counts(f"{name}: reference", reference)
    condition = f"counts of {name} are as expected (chi-square, alpha {alpha:g})"
    n, problem = int(np.nansum(seen_counts)), _unlike(name, seen_counts, beside)
    if problem:
        return test.unanswered(condition, n, problem)
    if reference is None:
        rows, wanted = seen_counts[None], (beside / beside.sum() * n)[None]
    else:
        rows = np.stack([seen_counts, beside])
        wanted = rows.sum(1, keepdims=True) * rows.sum(0) / rows.sum()
        condition = (
            f"counts of {name} are as in its reference, {int(beside.sum())} counts (chi-square, alpha {alpha:g})"
        )
    if len(impossible := np.flatnonzero((wanted[0] == 0) & (seen_counts > 0))):
        return test.impossible(condition, n, int(impossible[0]))
    used = wanted[0] > 0
    rows, wanted = rows[:, used], wanted[:, used]
    freedom = rows.shape[1] - 1 - estimated
    if freedom < 1:
        return test.unanswered(condition, n, f"{rows.shape[1]} categories leave nothing to differ")
    if (fewest := float(wanted.min())) < LEAST_EXPECTED:
        few = f"a category is expected {shown(fewest)} times, fewer than {LEAST_EXPECTED}; merge some"
        return test.unanswered(condition, n, few)
    statistic = float(((rows - wanted) ** 2 / wanted).sum())
    total = float(rows.sum())
    return test.judged(
        condition,
        n,
        float(stats.chi2.sf(statistic, freedom)),
        statistic=("chi-square", statistic),
        more={"effect": sqrt(statistic / total), "degrees_of_freedom": freedom},
        seen=("an effect (Cohen's w)", sqrt(_noncentrality(freedom, alpha) / total)),
    )


def kl_divergence(name: str, counts: Any, expected: Any, *, at_most: float) -> Result:
    """The divergence of counts by category from expected shares is at most so many nats. Infinite where something was
    counted that is not expected at all."""
    import numpy as np

    if not (isfinite(at_most) and at_most > 0):
        raise BadInput(f"{name}: at_most is {at_most}; a bound on a divergence is a finite number above 0")
    seen, beside = _counts(name, counts), _weights(f"{name}: expected", expected)
    condition = f"KL({name} || expected) <= {shown(at_most)} nats"
    test = _Test(name=name, alpha=None, detect=None)
    n, problem = int(np.nansum(seen)), _unlike(name, seen, beside)
    if problem:
        return test.unanswered(condition, n, problem)
    p, q = seen / seen.sum(), beside / beside.sum()
    if len(impossible := np.flatnonzero((q == 0) & (p > 0))):
        return test.impossible(condition, n, int(impossible[0]))
    categories, bias = int((q > 0).sum()), (int((q > 0).sum()) - 1) / (2 * n)
    value = max(0.0, float((p[p > 0] * np.log(p[p > 0] / q[p > 0])).sum()))
    if bias >= at_most:
        problem = f"{n} samples of {categories} categories come out {shown(bias)} too large by themselves"
    return Result(
        name=name,
        condition=condition,
        expected=f"at most {shown(at_most)} nats",
        observed=f"{shown(value)} nats" + (f"; {problem}" if problem else ""),
        n=n,
        answer=Answer.UNANSWERED if problem else Answer.PASSED if value <= at_most else Answer.FAILED,
        next_step=_advice(problem),
        limits=f"samples of this size come out about {bias:.3g} nats too large; chance is not told from a difference",
        measured={f"{name}_kl": value, "bias": bias, "bound": at_most},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Test:
    """What the answers of these have in common."""

    name: str
    alpha: float | None
    detect: float | None

    def judged(
        self,
        condition: str,
        n: int,
        p_value: float,
        *,
        statistic: tuple[str, float],
        seen: tuple[str, float],
        least_p: float = 0.0,
        more: dict[str, float] | None = None,
    ) -> Result:
        assert self.alpha is not None
        what, least = seen
        problem = ""
        if least_p >= self.alpha:
            problem = f"no outcome of so few could fail: the least p is {shown(least_p)}"
        elif self.detect is not None and least > self.detect:
            problem = f"a sample of this size sees {what} of {shown(least)}, not of {shown(self.detect)}"
        observed = f"{statistic[0]} {shown(statistic[1])}, p = {shown(p_value)}"
        failed = p_value < self.alpha
        return Result(
            name=self.name,
            condition=condition,
            expected=f"p >= {self.alpha:g}",
            observed=f"{observed}; {problem}" if problem else observed,
            n=n,
            answer=Answer.UNANSWERED if problem else Answer.FAILED if failed else Answer.PASSED,
            next_step=_advice(problem),
            limits=f"{what} below about {least:.3g} is seen with less than {POWER:.0%} power; samples are taken as "
            "independent",
            measured={statistic[0].replace("-", "_"): statistic[1], "detectable": least, **(more or {})},
            p_value=None if problem else p_value,
            least_p=least_p,
            alpha=self.alpha,
        )

    def unanswered(self, condition: str, n: int, problem: str) -> Result:
        return self._plain(condition, n, Answer.UNANSWERED, problem, _advice(problem))

    def impossible(self, condition: str, n: int, category: int) -> Result:
        said = f"category {category} was counted and is not expected at all"
        return self._plain(condition, n, Answer.FAILED, said, _advice(""))

    def _plain(self, condition: str, n: int, answer: Answer, said: str, advice: str) -> Result:
        return Result(
            name=self.name,
            condition=condition,
            expected="p >= alpha" if self.alpha is None else f"p >= {self.alpha:g}",
            observed=said,
            n=n,
            answer=answer,
            next_step=advice,
            limits="none was reached: nothing was tested",
            alpha=self.alpha,
        )


def _advice(problem: str) -> str:
    if problem:
        return "mend what makes the sample, or take more of it; a sample that cannot fail proves nothing"
    return "draw both as histograms; then compare preprocessing, seed and dataset version with those of the reference"


def _counts(name: str, values: Any) -> Numbers:
    import numpy as np

    counts = _weights(name, values)
    if ((counts != np.round(counts)) & np.isfinite(counts)).any():
        raise BadInput(f"{name}: counts are whole numbers; shares hide how many samples they are of")
    return counts


def _weights(name: str, values: Any) -> Numbers:
    weights = sample(name, values)
    if (weights < 0).any():
        raise BadInput(f"{name}: {shown(float(weights.min()))} is below 0; counts and shares are not")
    return weights


def _unlike(name: str, counts: Numbers, beside: Numbers) -> str:
    """Why two rows of categories can answer nothing; empty if they can. Raises BadInput where they do not match."""
    if len(counts) != len(beside):
        raise BadInput(f"{name}: {len(counts)} categories beside {len(beside)}; give the same, zeros included")
    problem = unsound(counts, "sample", may_be_constant=True) or unsound(beside, "reference", may_be_constant=True)
    if not problem and not (counts.sum() and beside.sum()):
        return "nothing was counted"
    if not problem and len(counts) < 2:
        return "one category is constant: there is nothing to differ"
    return problem


def _checked_detect(name: str, detect: float | None) -> float | None:
    if detect is not None and not (isfinite(detect) and detect > 0):
        raise BadInput(f"{name}: detect is {detect}; it is a difference above 0 that must be seen")
    return detect


def _one_sided(probability: float) -> float:
    return NormalDist().inv_cdf(probability)


@cache
def _noncentrality(freedom: int, alpha: float) -> float:
    """Of the chi-square that is beyond the critical value with probability POWER."""
    stats = scipy_stats("chi-square")
    critical = float(stats.chi2.ppf(1 - alpha, freedom))
    power: Callable[[float], float] = lambda shift: float(stats.ncx2.sf(critical, freedom, shift))
    low, high = 0.0, 1.0
    while power(high) < POWER:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high
