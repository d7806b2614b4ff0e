"""The detectors of a run, and those of a replay of what one of them found.

A run's thresholds are relative to its own past. A replay has none: it looks for the kinds that were captured, with the
absolute thresholds of their evidence, so "a spike" becomes "the loss is still above the threshold" and stays one
question for a smaller case. Only the failing step is asked: those before it had thresholds of their own, or nobody had
looked at them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

from reprokit.failure import Kind, Symptom
from reprokit.step.detectors.collapse import Collapse
from reprokit.step.detectors.scaler import ScalerStall
from reprokit.step.detectors.spikes import GradSpike, LossSpike, Window
from reprokit.step.detectors.view import Bound, Detector, StepView
from reprokit.step.limits import Limits


class Watching:
    """Several detectors as one. Empty, it finds nothing and costs nothing."""

    def __init__(self, detectors: Sequence[Detector] = (), *, activations: bool = False) -> None:
        self.activations = activations
        self._detectors = detectors

    @property
    def skips(self) -> int:
        """Optimizer steps that GradScaler has skipped in a row so far."""
        return next((one.count for one in self._detectors if isinstance(one, ScalerStall)), 0)

    def skipped(self, count: int) -> None:
        """So many are they, whatever was seen."""
        for one in self._detectors:
            if isinstance(one, ScalerStall):
                one.count = count

    @property
    def wants_features(self) -> bool:
        """Whether the step that begins must show the features of its batch."""
        return any(isinstance(one, Collapse) and one.due for one in self._detectors)

    def bounds(self) -> dict[Kind, Bound]:
        """Of spikes, for the next step: so a device can compare what nobody has read yet."""
        nothing: Bound = (None, None)
        found = {one.kind: one.bound() for one in self._detectors if isinstance(one, LossSpike | GradSpike)}
        return {Kind.LOSS_SPIKE: nothing, Kind.GRAD_SPIKE: nothing, **found}

    def look(self, view: StepView) -> list[Symptom]:
        """Shown every step, in order."""
        return self.at_door(view) + self.after(view)

    def at_door(self, view: StepView) -> list[Symptom]:
        """What can be said before the optimizer's step."""
        return [found for one in self._detectors if not isinstance(one, ScalerStall) and (found := one.look(view))]

    def after(self, view: StepView) -> list[Symptom]:
        """What needs the end of the step: whether the scaler let it through."""
        return [found for one in self._detectors if isinstance(one, ScalerStall) and (found := one.look(view))]

    def before(self) -> Watching:
        """For the steps before a replay's failing one: what is counted over steps, and nothing that is judged alone."""
        return Watching([one for one in self._detectors if isinstance(one, ScalerStall)])


def of_run(limits: Limits) -> Watching:
    """Those that `limits` ask for."""
    losses = Window(limits.spike_window, limits.spike_ratio, limits.spike_sigma)
    norms = Window(limits.spike_window, limits.grad_norm_ratio, None) if limits.grad_norm_ratio else None
    detectors: list[Detector] = [
        LossSpike(limits.loss_above, losses),
        GradSpike(limits.grad_norm_above, norms),
        ScalerStall(limits.scaler_skips, limits.scaler_below),
    ]
    if limits.collapse_every:
        detectors.append(Collapse(limits.collapse_every, limits.collapse_deviation, limits.collapse_dimensions))
    return Watching(detectors, activations=limits.activations)


def of_replay(symptoms: Iterable[Symptom], skips: int = 0) -> Watching:
    """Those that found these. skips: in a row, before the first step that is run."""
    found = []
    for symptom in symptoms:
        threshold = symptom.evidence.get("threshold")
        if symptom.kind in _AGAIN and isinstance(threshold, int | float) and isfinite(threshold):
            found.append(_AGAIN[symptom.kind](threshold, symptom.evidence, skips))
    return Watching(found)


def of_one_step(
    symptoms: Iterable[Symptom], bounds: Mapping[Kind, Bound], skips: int, *, activations: bool = False
) -> Watching:
    """To look at a step of the run once more: those that found these, and what was a spike for it."""
    found = list(symptoms)
    known = {symptom.kind for symptom in found}
    found += [
        Symptom(kind=kind, where="", evidence={"threshold": above})
        for kind, (above, _) in bounds.items()
        if above is not None and kind not in known
    ]
    return Watching(of_replay(found, skips)._detectors, activations=activations)


def _stall(threshold: float, evidence: Mapping[str, Any], skips: int) -> Detector:
    if evidence.get("measure") == "scale":
        return ScalerStall(below=threshold, count=skips)
    return ScalerStall(int(threshold), count=skips)


def _collapse(threshold: float, evidence: Mapping[str, Any], _skips: int) -> Detector:
    if evidence.get("measure") == "dimensions":
        return Collapse(dimensions=threshold)
    return Collapse(deviation=threshold)


_AGAIN: dict[Kind, Callable[[float, Mapping[str, Any], int], Detector]] = {
    Kind.LOSS_SPIKE: lambda threshold, _evidence, _skips: LossSpike(threshold),
    Kind.GRAD_SPIKE: lambda threshold, _evidence, _skips: GradSpike(threshold),
    Kind.SCALER_STALL: _stall,
    Kind.COLLAPSE: _collapse,
}
