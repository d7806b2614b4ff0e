"""A GradScaler that no longer lets the optimizer step.

It skips a step whose gradients are not finite and lowers its scale; one that gets through counts up its growth tracker.
So scale and tracker before and after tell what it did, whichever loop called it, and however often within one step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Any

import torch

from reprokit.failure import Kind, Symptom
from reprokit.step.detectors.view import Scaling, StepView


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """A GradScaler at one moment."""

    scale: float
    tracker: int  # steps without a skip
    backoff: float

    @classmethod
    def read(cls, scaler: torch.amp.GradScaler | None) -> Scale | None:
        """None where there is none, or it is disabled. Reads two values of the device."""
        state: dict[str, Any] = scaler.state_dict() if scaler else {}
        if not state:
            return None
        return cls(scale=state["scale"], tracker=state["_growth_tracker"], backoff=state["backoff_factor"])


def between(before: Scale, after: Scale) -> Scaling:
    """What a scaler did from one moment to the next."""
    succeeded = after.scale > before.scale or after.tracker > (before.tracker if after.scale == before.scale else 0)
    return Scaling(succeeded=succeeded, skipped=0 if succeeded else _skipped(before, after), scale=after.scale)


def _skipped(before: Scale, after: Scale) -> int:
    if after.scale == before.scale:  # at 0 it can fall no further; and it may be told not to fall
        return int(after.scale == 0 or after.tracker < before.tracker)
    if after.scale <= 0 or not 0 < before.backoff < 1:
        return 1
    return max(1, round(log(after.scale / before.scale) / log(before.backoff)))


class ScalerStall:
    """GradScaler has skipped `skips` steps in a row, or its scale has fallen below a bound. Costs one comparison of
    host floats; single skips are its normal work."""

    def __init__(self, skips: int | None = None, below: float | None = None, *, count: int = 0) -> None:
        self.count = count  # skipped in a row so far
        self._skips, self._below = skips, below

    def look(self, view: StepView) -> Symptom | None:
        scaling = view.scaling
        if scaling is None:
            return None
        self.count = scaling.skipped + (0 if scaling.succeeded else self.count)
        if not scaling.skipped:
            return None
        if self._skips is not None and self.count >= self._skips:
            return _stall("skips in a row", self.count, self._skips, scaling)
        if self._below is not None and scaling.scale < self._below:
            return _stall("scale", scaling.scale, self._below, scaling)
        return None


def _stall(measure: str, value: float, threshold: float, scaling: Scaling) -> Symptom:
    evidence = {"measure": measure, "value": value, "threshold": threshold, "scale": scaling.scale}
    return Symptom(kind=Kind.SCALER_STALL, where="optimizer", evidence=evidence)
