"""Whether categories are as frequent as they should be.

- `chi_square`: counts beside expected shares, or beside other counts (Pearson 1900). Its approximation wants expected
  counts of 5 and more (Cochran 1954); fewer are UNANSWERED.
- `kl_divergence`: the divergence of counts from a distribution, in nats, below a bound (Kullback and Leibler 1951).
  From n samples of k categories it comes out about (k - 1) / 2n too large (Miller 1955); where that alone reaches the
  bound the sample is too small, and UNANSWERED.

Something that was counted and is not expected at all is a failure, not a matter of chance. Samples must be independent:
the frames of one clip are not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt
from typing import TYPE_CHECKING, Any

from reprokit.checks.asked import checked_alpha, checked_name, number, whole
from reprokit.checks.data import sample, shown, unsound
from reprokit.checks.extra import scipy_stats
from reprokit.checks.result import Answer, Result
from reprokit.checks.significance import HISTOGRAMS, POWER, Question, advice, checked_detect
from reprokit.errors import BadInput
from reprokit.replay.verdict import ALPHA

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers

LEAST_EXPECTED = 5  # counts in each category (Cochran 1954)
MOST_COUNTED = 2**53  # in one category: beyond, a float does not tell a count from the next


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

    counts, and expected or reference: shape (k,), a category each. estimated: parameters of the expected shares that
    were fitted to these counts. detect: the effect size (Cohen's w; 0.1 is small, 0.3 medium) that the sample must be
    large enough to see. n: of counts. Raises BadInput for what are no counts or shares, for unlike categories, and
    where scipy is not installed.
    """
    import numpy as np

    checked_name(name)
    if (expected is None) == (reference is None):
        raise BadInput(f"{name}: give expected= (shares) or reference= (counts of another sample), one of them")
    estimated = whole(name, "estimated", estimated, "it is how many parameters were fitted to these counts")
    alpha = checked_alpha(name, alpha)
    test = Question(name=name, alpha=alpha, detect=checked_detect(name, detect))
    stats, seen_counts = scipy_stats(name), _counts(name, counts)
    beside = _weights(f"{name}: expected", expected) if reference is None else _counts(f"{name}: reference", reference)
    as_what = "as expected" if reference is None else f"as in its reference, {_total(beside)} counts"
    condition = f"counts of {name} are {as_what} (chi-square, alpha {alpha:g})"
    n, problem = _total(seen_counts), _unlike(name, seen_counts, beside)
    if problem:
        return test.unanswered(condition, n, problem)
    if reference is None:
        rows, wanted = seen_counts[None], (beside / beside.sum() * n)[None]
    else:
        rows = np.stack([seen_counts, beside])
        wanted = rows.sum(1, keepdims=True) * rows.sum(0) / rows.sum()
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
    """The divergence of counts by category from expected shares is at most so many nats: the sum of p log(p / q). It
    is infinite where something was counted that is not expected at all.

    counts, expected: shape (k,), a category each. n: of counts. Raises BadInput for what are no counts or shares, and
    for unlike categories.
    """
    import numpy as np

    rule = "a bound on a divergence is a finite number above 0"
    at_most = number(checked_name(name), "at_most", at_most, rule, allowed=lambda one: one > 0)
    seen, beside = _counts(name, counts), _weights(f"{name}: expected", expected)
    condition = f"KL({name} || expected) <= {shown(at_most)} nats"
    test = Question(name=name, alpha=None, bound=f"at most {shown(at_most)} nats")
    n, problem = _total(seen), _unlike(name, seen, beside)
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
        expected=test.expected,
        observed=f"{shown(value)} nats" + (f"; {problem}" if problem else ""),
        n=n,
        answer=Answer.UNANSWERED if problem else Answer.PASSED if value <= at_most else Answer.FAILED,
        next_step=advice(problem, HISTOGRAMS),
        limits=f"samples of this size come out about {bias:.3g} nats too large; chance is not told from a difference",
        measured={f"{name}_kl": value, "bias": bias, "bound": at_most},
    )


def _counts(name: str, values: Any) -> Numbers:
    import numpy as np

    counts = _weights(name, values)
    if ((counts != np.round(counts)) & np.isfinite(counts)).any():
        raise BadInput(f"{name}: counts are whole numbers; shares hide how many samples they are of")
    if (np.isfinite(counts) & (counts > MOST_COUNTED)).any():
        raise BadInput(f"{name}: {shown(float(counts.max()))} is no count; give how often each category was seen")
    return counts


def _total(counts: Numbers) -> int:
    """Of what was counted, where something may be no number."""
    import numpy as np

    return int(counts[np.isfinite(counts)].sum())


def _weights(name: str, values: Any) -> Numbers:
    import numpy as np

    weights = sample(name, values)
    if (weights < 0).any():
        raise BadInput(f"{name}: {shown(float(weights.min()))} is below 0; counts and shares are not")
    with np.errstate(over="ignore"):
        if np.isfinite(weights).all() and not np.isfinite(weights.sum()):
            raise BadInput(f"{name}: they add up to more than a float holds; give shares of 1")
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
