"""A loss, or a norm of gradients, that jumps.

What is a jump is told by the run itself: a window of its last healthy values. Three things make a plain rule cry wolf.
A loss above zero varies in proportion to its level, so its deviations are those of its logarithm. In a quiet window a
small step, such as augmentation that is switched on, is many deviations; and a heavy-tailed loss has values far from
its mean in its normal work. So a spike must also be twice the mean, and twice as far from it as anything in the window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from math import exp, isfinite, log, sqrt
from statistics import fmean

from reprokit.failure import Kind, Symptom
from reprokit.step.detectors.view import Bound, StepView

_TWICE = 2.0
_LARGEST_EXPONENT = 709.0  # of a float


class Window:
    """The last values that were neither spikes nor non-finite: one of those would blind it for as long as it stays.
    After as many spikes in a row as warm-up takes they are the new level, and the window begins anew."""

    def __init__(self, size: int, ratio: float | None, sigma: float | None) -> None:
        self._values: deque[float] = deque(maxlen=size)
        self._warm = max(2, size // 4)
        self._ratio, self._sigma = ratio, sigma
        self._spikes = 0  # in a row

    def threshold(self) -> tuple[float, float] | None:
        """Above which a value is a spike, and the mean; None before there is enough to tell."""
        if len(self._values) < self._warm:
            return None
        mean = fmean(self._values)
        rules = [_above(self._values, self._sigma)] if self._sigma else []
        rules += [self._ratio * mean] if self._ratio and mean > 0 else []
        if not rules or max(rules) == mean == 0:  # of nothing but zeros
            return None
        return max(min(rules), mean + abs(mean) * (_TWICE - 1), mean + _TWICE * (max(self._values) - mean)), mean

    def healthy(self, value: float) -> None:
        self._values.append(value)
        self._spikes = 0

    def spiked(self) -> None:
        self._spikes += 1
        if self._spikes >= self._warm:
            self._values.clear()


def _above(values: Collection[float], sigma: float) -> float:
    """So many standard deviations above the mean, in the logarithm where there is one."""
    positive = min(values) > 0
    numbers = [log(value) for value in values] if positive else values
    mean = fmean(numbers)
    bound = mean + sigma * sqrt(fmean((number - mean) ** 2 for number in numbers))
    return exp(min(bound, _LARGEST_EXPONENT)) if positive else bound


class _Spike:
    kind: Kind
    where: str

    def __init__(self, above: float | None = None, window: Window | None = None) -> None:
        self._above, self._window = above, window

    def _value(self, view: StepView) -> float | None:
        raise NotImplementedError

    def bound(self) -> Bound:
        """What the next value must not exceed."""
        relative = self._window.threshold() if self._window else None
        return min((self._above, None), relative or (None, None), key=_or_infinity)

    def look(self, view: StepView) -> Symptom | None:
        value = self._value(view)
        if value is None or not isfinite(value):
            return None
        threshold, mean = self.bound() if view.bounds is None else view.bounds[self.kind]
        if threshold is None or value <= threshold:
            if self._window:
                self._window.healthy(value)
            return None
        if self._window:
            self._window.spiked()
        evidence = {"value": value, "threshold": threshold} | ({} if mean is None else {"mean": mean})
        return Symptom(kind=self.kind, where=self.where, evidence=evidence)


def _or_infinity(rule: Bound) -> float:
    return float("inf") if rule[0] is None else rule[0]


class LossSpike(_Spike):
    """The loss is far above its last values, or above a bound. Costs a sum over a window of host floats."""

    kind, where = Kind.LOSS_SPIKE, "loss"

    def _value(self, view: StepView) -> float | None:
        return view.losses.get("loss")


class GradSpike(_Spike):
    """The norm of all gradients is above a bound, or far above its last values. Costs one comparison of host floats, or
    a sum over a window of them; the norm is what shows that gradients are finite, and is there anyway."""

    kind, where = Kind.GRAD_SPIKE, "backward"

    def _value(self, view: StepView) -> float | None:
        return view.grad_norm
