"""A metric against a bound, and how far below it may be by chance.

A bound without a margin fails half of all runs of a model that is exactly as good as the bound. A margin is given, or
it is what chance makes of it:

- `History`: earlier values of healthy runs. With a bound, the metric may be below it by t(1 - alpha) standard
  deviations of theirs (Student 1908). Without one it is held against their mean, by the prediction interval of a normal
  distribution, which is sqrt(1 + 1/m) wider since the mean of m values is uncertain as well (Fisher 1935).
- `Bootstrap`: values per sample (see `bootstrap`). By default a metric fails where its samples show that it misses the
  bound; with `strict` it passes only where they show that it keeps it, and alpha is then the chance of a wrong pass.

A value that is not finite is never within a bound: it is UNANSWERED. So is a history that is constant, which says that
the metric measures nothing, or the same run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import NormalDist, stdev
from typing import TYPE_CHECKING, Any

from reprokit.checks.asked import checked_alpha, checked_name, checked_resamples, checked_seed, number, whole
from reprokit.checks.bootstrap import LEAST, Spread, Statistic, spread
from reprokit.checks.data import NotFinite, is_number, read, sample, shown, text, unsound
from reprokit.checks.extra import scipy_stats
from reprokit.checks.result import Answer, Result
from reprokit.checks.significance import POWER, advice
from reprokit.errors import BadInput
from reprokit.replay.verdict import ALPHA

if TYPE_CHECKING:
    from reprokit.checks.data import Numbers

_LOST = (
    "run it with two other seeds: if it fails there too, compare with the last commit that passed and look at the "
    "samples that lost most"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """The margin that earlier values of the same metric leave, each of a healthy run of its own."""

    values: Sequence[float]  # shape (m,), in the unit of the metric
    alpha: float = ALPHA  # chance that one more healthy run fails

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked_alpha("History", self.alpha))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bootstrap:
    """The margin that values per sample leave. Costs a pass over the sample for each draw."""

    alpha: float = ALPHA
    strict: bool = False  # pass only what is shown to keep the bound
    statistic: Statistic | None = None  # of an array of samples, shape (n,), to a number; by default their mean
    resamples: int = 2000  # p-values down to 0.0005, and a standard error of 0.005 at 0.05
    seed: int = 0  # of the draws: the same sample gives the same answer

    def __post_init__(self) -> None:
        object.__setattr__(self, "alpha", checked_alpha("Bootstrap", self.alpha))
        checked_resamples("Bootstrap", self.resamples, self.alpha)
        checked_seed("Bootstrap", self.seed)
        if not (self.statistic is None or callable(self.statistic)):
            raise BadInput(f"Bootstrap: statistic is {text(self.statistic)}; it is a function of an array of samples")


Margin = float | History | Bootstrap


def at_least(
    name: str, value: Any, bound: float | None = None, *, margin: Margin = 0.0, n: int | None = None
) -> Result:
    """value >= bound - margin, all in the unit of the metric.

    value: a number, or one value a sample, shape (n,), of which it is the mean, or the statistic of a Bootstrap. n: of
    how many samples a number is; of values a sample it is told already. The bound may be left out with a History,
    which then holds the value against its mean. Raises BadInput for what is no number, bound, margin or n, and for an
    n that is not how many values there are.
    """
    return _asked(name, 1, bound, margin).of(value, n)


def at_most(name: str, value: Any, bound: float | None = None, *, margin: Margin = 0.0, n: int | None = None) -> Result:
    """value <= bound + margin; else as `at_least`."""
    return _asked(name, -1, bound, margin).of(value, n)


def _asked(name: str, sign: int, bound: Any, margin: Any) -> _Asked:
    checked_name(name)
    if bound is not None:
        bound = number(name, "the bound", bound, "it is a finite number")
    elif not isinstance(margin, History):
        raise BadInput(f"{name}: no bound; give one, or margin=History(values=...) of earlier runs")
    if not isinstance(margin, History | Bootstrap):
        rule = "it is a finite number, not below 0"
        margin = number(name, "the margin", margin, rule, allowed=lambda one: one >= 0)
    return _Asked(name=name, sign=sign, bound=bound, margin=margin)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    name: str
    sign: int  # 1: more is better
    bound: float | None
    margin: Margin

    def of(self, value: Any, n: int | None) -> Result:
        if n is not None or is_number(value):
            n = whole(self.name, "n", n, "say of how many samples the value is, or give one of each")
        if n is not None and is_number(value):
            return self._of_number(value, n)
        values = sample(self.name, value)
        if n not in (None, len(values)):
            raise BadInput(f"{self.name}: n is {n} beside {len(values)} values, one a sample; leave n out, or mend it")
        return self._of_values(values)

    def _of_number(self, value: Any, n: int) -> Result:
        if isinstance(self.margin, Bootstrap):
            raise BadInput(f"{self.name}: a bootstrap needs one value a sample; {text(value)} is one of all")
        if (found := read(self.name, value)) is None:
            raise BadInput(f"{self.name}: {text(value)} is no number that a float can be; give one that is")
        problem = "" if n else "it is of no samples"
        return self._beside(found, n, problem if isfinite(found) else NotFinite(f"{found} is not finite"))

    def _of_values(self, values: Numbers) -> Result:
        problem = unsound(values, may_be_constant=not isinstance(self.margin, Bootstrap))
        if isinstance(self.margin, Bootstrap):
            return self._bootstrapped(values, self.margin, problem)
        mean = _mean(values)
        if not problem and not isfinite(mean):  # finite values may add up to infinity
            problem = NotFinite(f"their mean is {mean}, which is not finite")
        return self._beside(mean, len(values), problem)

    def _beside(self, value: float, n: int, problem: str) -> Result:
        if isinstance(self.margin, History):
            return self._historic(self.margin, value, n, problem)
        assert not isinstance(self.margin, Bootstrap)
        return self._given(self.margin, value, n, problem)

    def _given(self, margin: float, value: float, n: int, problem: str) -> Result:
        assert self.bound is not None
        passed = not problem and self.sign * (value - self.bound) >= -margin
        limits = "" if margin else "no margin: a model that is exactly as good as the bound fails every other time"
        return self._result(self.bound, margin, value, n, problem, source="given", passed=passed, limits=limits)

    def _historic(self, history: History, value: float, n: int, problem: str) -> Result:
        past = sample(f"{self.name}: history", history.values)
        m = len(past)
        center = self.bound if self.bound is not None else _mean(past)
        known: dict[str, Any] = {"source": f"of {m} earlier values, alpha {history.alpha:g}", "alpha": history.alpha}
        if m < 2 and not problem:
            problem = f"{m} earlier values say nothing about how the metric varies"
        problem = problem or unsound(past, "history")
        scale = float("nan") if problem else _deviation(past) * (sqrt(1 + 1 / m) if self.bound is None else 1.0)
        if scale == 0:
            problem = "the history is constant but for rounding"
        if not problem and not (isfinite(scale) and isfinite(center)):
            problem = "the mean and the spread of the history are more than a float holds"
        if problem:
            return self._result(center, float("nan"), value, n, problem, passed=False, **known)
        student = scipy_stats(self.name).t(m - 1)
        p_value = float(student.cdf(self.sign * (value - center) / scale))
        margin = scale * float(student.ppf(1 - history.alpha))
        limits = "a loss of less than the margin is not seen; earlier values are taken as independent and normal"
        passed = p_value >= history.alpha
        return self._result(center, margin, value, n, "", passed=passed, p_value=p_value, limits=limits, **known)

    def _bootstrapped(self, values: Numbers, by: Bootstrap, problem: str) -> Result:
        assert self.bound is not None
        n, strict = len(values), ", strict" if by.strict else ""
        known: dict[str, Any] = {
            "source": f"by {by.resamples} resamples, alpha {by.alpha:g}{strict}",
            "alpha": by.alpha,
        }
        if not problem and n < LEAST:
            problem = f"a bootstrap of {n} samples is not to be trusted; it takes {LEAST}"
        if problem:
            return self._result(self.bound, float("nan"), float("nan"), n, problem, passed=False, **known)
        found = spread(values, self._statistic(by), resamples=by.resamples, seed=by.seed)
        missed, least_p = self._missed(found, self.bound), 1 - self._missed(found, self.sign * inf)
        problem = _why_not(found, least_p, by.alpha)
        edge = found.quantile(1 - by.alpha if (self.sign > 0) is not by.strict else by.alpha)
        shown_missed = 1 - missed < by.alpha
        tested = not by.strict and not problem
        return self._result(
            self.bound,
            self.sign * (edge - found.value),
            found.value,
            n,
            problem,
            passed=missed < by.alpha if by.strict else not shown_missed,
            p_value=1 - missed if tested else None,
            least_p=least_p if tested else 0.0,
            limits=self._limits(found, by),
            **known,
        )

    def _statistic(self, by: Bootstrap) -> Statistic:
        """As a float of any array of samples."""
        if (given := by.statistic) is None:
            return _mean

        def statistic(values: Numbers) -> float:
            if (found := read(self.name, seen := given(values))) is None:
                raise BadInput(f"{self.name}: its statistic gave {text(seen)}; it is a function to one number")
            return found

        return statistic

    def _missed(self, found: Spread, bound: float) -> float:
        """The confidence that the truth is on the wrong side of a bound."""
        below = found.below(bound)
        return below if self.sign > 0 else 1 - below

    def _limits(self, found: Spread, by: Bootstrap) -> str:
        seen = (NormalDist().inv_cdf(1 - by.alpha) + NormalDist().inv_cdf(POWER)) * found.error
        worse, better = ("below", "above") if self.sign > 0 else ("above", "below")
        what = f"a true value {seen:.3g} {better if by.strict else worse} the bound"
        return f"{what} {'passes' if by.strict else 'fails'} with {POWER:.0%} power; samples are taken as independent"

    def _result(
        self,
        bound: float,
        margin: float,
        value: float,
        n: int,
        problem: str,
        *,
        source: str,
        passed: bool,
        **more: Any,
    ) -> Result:
        compared, side = (">=", "least") if self.sign > 0 else ("<=", "most")
        away = "-" if (self.sign > 0) == (margin >= 0) else "+"  # a strict margin is on the other side
        edge = bound - self.sign * margin
        known = isfinite(margin) and isfinite(bound)
        off = f" {away} {shown(abs(margin)) if known else 'a margin'} (margin {source})" if margin else ""
        answer = Answer.UNANSWERED if problem else Answer.PASSED if passed else Answer.FAILED
        return Result(
            name=self.name,
            condition=f"{self.name} {compared} {shown(bound)}{off}",
            expected=f"at {side} {shown(edge)}" if known else f"at {side} {shown(bound)}, less a margin",
            observed="; ".join(filter(None, [shown(value) if isfinite(value) else "", problem])),
            n=n,
            answer=answer,
            next_step=advice(problem, _LOST),
            measured={self.name: value, "bound": bound, "margin": margin},
            **more,
        )


def _deviation(past: Numbers) -> float:
    """The standard deviation of a sample; infinite where no float holds it."""
    try:
        return float(stdev(past.tolist()))
    except OverflowError:
        return inf


def _why_not(found: Spread, least_p: float, alpha: float) -> str:
    """Why a bootstrap can answer nothing; empty if it can."""
    if not isfinite(found.value) or not isfinite(found.error):
        return NotFinite(f"its statistic is {found.value}, and no finite number for each draw")
    if not found.error > 0:
        return "its statistic never varies, which leaves no margin; give one"
    return f"no bound could be missed: the least p is {shown(least_p)}" if least_p >= alpha else ""


def _mean(values: Numbers) -> float:
    import numpy as np

    with np.errstate(over="ignore", invalid="ignore"):
        return float(values.mean()) if len(values) else float("nan")
