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
    import numpy as np

    alpha, seed = checked_alpha(checked_name(name), alpha), checked_seed(name, seed)
    bins = whole(name, "bins", bins, "it takes one, or more, up to a million", least=1, most=10**6)
    resamples = checked_resamples(name, resamples, alpha)
    if at_most is not None:
        rule = "a bound on a calibration error is between 0 and 1"
        at_most = number(name, "at_most", at_most, rule, allowed=lambda one: 0 < one < 1)
    sure, right = sample(name, confidences), sample(f"{name}: correct", correct)
    _check(name, sure, right)
    n = len(sure)
    problem = unsound(sure) or unsound(right, "row of answers", may_be_constant=True)
    error = perfect = p_value = least_p = float("nan")
    if not problem:
        places = np.minimum((sure * bins).astype(int), bins - 1)
        generator = np.random.default_rng(seed)
        draws = [_error(places, sure, generator.random(n) < sure, bins) for _ in range(resamples)]
        error, perfect = _error(places, sure, right, bins), float(np.median(draws))
        worst = _error(places, sure, sure < 0.5, bins)
        p_value, least_p = _share_of(draws, error), _share_of(draws, worst)
        if at_most is None and least_p >= alpha:
            problem = f"no outcome of so few could fail: the least p is {shown(least_p)}"
        if at_most is not None and perfect > at_most:
            problem = f"a perfect model shows {shown(perfect)} on a sample of this size"
    passed = error <= at_most if at_most is not None else p_value >= alpha
    tested = at_most is None and not problem
    within = f"<= {shown(at_most)}" if at_most is not None else f"is what calibrated ones show (alpha {alpha:g})"
    seen = f"error {shown(error)}{f', p = {shown(p_value)}' if at_most is None else ''}"
    return Result(
        name=name,
        condition=f"expected calibration error of {name}, {bins} bins, {within}",
        expected=f"at most {shown(at_most)}" if at_most is not None else f"p >= {alpha:g}",
        observed=(f"{seen}; {problem}" if error == error else problem) if problem else seen,
        n=n,
        answer=Answer.UNANSWERED if problem else Answer.PASSED if passed else Answer.FAILED,
        next_step=advice(
            problem, "draw the reliability diagram; fit a temperature on other data, and check again on these"
        ),
        limits=f"a perfect model shows about {perfect:.3g} on samples of this size, and less than that is not seen",
        measured={"calibration_error": error, "of_a_perfect_model": perfect},
        p_value=p_value if tested else None,
        least_p=least_p if tested else 0.0,
        alpha=alpha if at_most is None else None,
    )


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
