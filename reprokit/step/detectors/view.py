"""What a detector is, and what it is shown: numbers on the host, never tensors.

So a detector is tested on recorded curves, and whoever reads the device decides when, and may do so steps late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from reprokit.failure import Kind, Symptom


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """What a GradScaler did in one step."""

    succeeded: bool  # an optimizer step went through
    skipped: int  # that it skipped in a row, up to the end of the step
    scale: float  # after it


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """How far the features of a batch's samples differ."""

    samples: int
    deviation: float  # from their mean, as a share of their size: 0 where all are one
    dimensions: float  # in which they vary: 1 where all lie on one line


Bound = tuple[float | None, float | None]  # a value above the first is a spike; the second is the mean it stands out of


@dataclass(frozen=True, kw_only=True, slots=True)
class StepView:
    """One step in numbers; None for what the step did not come to, or nobody looked at."""

    losses: Mapping[str, float] = field(default_factory=dict)
    grad_norm: float | None = None  # unscaled, before clipping
    scaling: Scaling | None = None
    spectrum: Spectrum | None = None
    bounds: Mapping[Kind, Bound] | None = None  # of spikes, where a device has compared them before this view was made


class Detector(Protocol):
    """Looks at every step in turn, and keeps what it needs of those before. A threshold is written into the evidence
    as an absolute one, so that a replay, which has no steps before, can look for the same."""

    def look(self, view: StepView) -> Symptom | None: ...
