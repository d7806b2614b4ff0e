"""Whether confidences are what they say: of the samples with confidence 0.8, four of five are right.

The expected calibration error sorts samples into bins by confidence and takes the mean of |share right - mean
confidence| over them, weighted by their size (Naeini et al. 2015; 15 bins of equal width, as Guo et al. 2017). From a
finite sample it is above zero for a model that is perfectly calibrated, more so with few samples in many bins. So it is
held against what such a model would show: labels are drawn again from the confidences themselves (consistency
resampling, Bröcker and Smith 2007), and the p-value is the share of draws with an error at least as large. With a bound
(`at_most`) the error itself must be within; where a perfect model would exceed that bound half of the time, the sample
is too small.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

from reprokit.checks.asked import checked_alpha, checked_name, checked_resamples, checked_seed, number, whole
from reprokit.checks.data import sample, shown, unsound
from reprokit.checks.result import Answer, Result
from reprokit.checks.significance import advice
from reprokit.errors import BadInput
from reprokit.replay.verdict import ALPHA

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers

BINS = 15  # as most publications, so that numbers can be compared
RESAMPLES = 1000  # a standard error of 0.007 at 0.05
_MISCALIBRATED = "draw the reliability diagram; fit a temperature on other data, and check again on these"


def calibration(
    name: str,
    confidences: Any,
    correct: Any,
    *,
    at_most: float | None = None,
    bins: int = BINS,
    alpha: float = ALPHA,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Result:
    """Confidences are calibrated, as far as the sample can tell; or with at_most: their calibration error is within it.

    confidences: probabilities, shape (n,). correct: whether each was right, shape (n,), as bools or 0 and 1. at_most: a
    share, between 0 and 1. bins: of equal width. resamples, seed: of the draws alone. Raises BadInput for what is none
    of these, and for two lengths.
    """
    alpha, seed = checked_alpha(checked_name(name), alpha), checked_seed(name, seed)
    bins = whole(name, "bins", bins, "it takes one, or more, up to a million", least=1, most=10**6)
    resamples = checked_resamples(name, resamples, alpha)
    if at_most is not None:
        rule = "a bound on a calibration error is between 0 and 1"
        at_most = number(name, "at_most", at_most, rule, allowed=lambda one: 0 < one < 1)
    sure, right = sample(name, confidences), sample(f"{name}: correct", correct)
    _check(name, sure, right)
    found = _Found()
    problem = unsound(sure) or unsound(right, "row of answers", may_be_constant=True)
    if not problem:
        found = _beside_perfect(sure, right, bins=bins, resamples=resamples, seed=seed)
        problem = _why_not(found, at_most, alpha)
    bounded = at_most is not None
    passed = found.error <= at_most if at_most is not None else found.p_value >= alpha
    within = f"<= {shown(at_most)}" if at_most is not None else f"is what calibrated ones show (alpha {alpha:g})"
    seen = f"error {shown(found.error)}{'' if bounded else f', p = {shown(found.p_value)}'}"
    tested = not bounded and not problem
    return Result(
        name=name,
        condition=f"expected calibration error of {name}, {bins} bins, {within}",
        expected=f"at most {shown(at_most)}" if at_most is not None else f"p >= {alpha:g}",
        observed="; ".join(filter(None, [seen if isfinite(found.error) else "", problem])),
        n=len(sure),
        answer=Answer.UNANSWERED if problem else Answer.PASSED if passed else Answer.FAILED,
        next_step=advice(problem, _MISCALIBRATED),
        limits=f"a perfect model shows about {found.perfect:.3g} on samples of this size, and less than that is not "
        "seen",
        measured={"calibration_error": found.error, "of_a_perfect_model": found.perfect},
        p_value=found.p_value if tested else None,
        least_p=found.least_p if tested else 0.0,
        alpha=None if bounded else alpha,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """Beside a model that is perfectly calibrated; NaN where the sample answers nothing."""

    error: float = nan
    perfect: float = nan  # the median error of such a model
    p_value: float = nan
    least_p: float = nan  # of the worst that could be seen


def _beside_perfect(sure: Numbers, right: Numbers, *, bins: int, resamples: int, seed: int) -> _Found:
    import numpy as np

    places = np.minimum((sure * bins).astype(int), bins - 1)
    generator = np.random.default_rng(seed)
    draws = [_error(places, sure, generator.random(len(sure)) < sure, bins) for _ in range(resamples)]
    error, worst = (_error(places, sure, answers, bins) for answers in (right, sure < 0.5))
    return _Found(
        error=error,
        perfect=float(np.median(draws)),
        p_value=_share_of(draws, error),
        least_p=_share_of(draws, worst),
    )


def _why_not(found: _Found, at_most: float | None, alpha: float) -> str:
    """Why a sample can answer nothing; empty if it can."""
    if at_most is not None:
        return (
            f"a perfect model shows {shown(found.perfect)} on a sample of this size" if found.perfect > at_most else ""
        )
    return f"no outcome of so few could fail: the least p is {shown(found.least_p)}" if found.least_p >= alpha else ""


def _check(name: str, sure: Numbers, right: Numbers) -> None:
    import numpy as np

    if len(sure) != len(right):
        raise BadInput(f"{name}: {len(sure)} confidences beside {len(right)} answers; give one of each a sample")
    if len(out := np.flatnonzero((sure < 0) | (sure > 1))):
        raise BadInput(f"{name}: [{out[0]}] is {shown(float(sure[out[0]]))}, no probability; apply softmax or sigmoid")
    if (np.isfinite(right) & (right != 0) & (right != 1)).any():
        raise BadInput(f"{name}: correct holds other values than 0 and 1; give prediction == label")


def _error(places: Any, sure: Numbers, right: Any, bins: int) -> float:
    import numpy as np

    return float(np.abs(np.bincount(places, weights=right - sure, minlength=bins)).sum() / len(sure))


def _share_of(draws: list[float], seen: float) -> float:
    """Of errors as large as one that was seen, itself among them; sums that differ by rounding alone are as large."""
    return (1 + sum(draw >= seen - 1e-12 for draw in draws)) / (len(draws) + 1)
