"""Where a value stops being normal: what a detector is given, and the defaults."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isnan

from reprokit.errors import BadInput


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What counts as a failure beyond non-finite values. None turns a limit off. Raises BadInput where one makes no
    sense."""

    loss_above: float | None = None  # the loss, from the first step on
    spike_ratio: float | None = 10.0  # the loss, in multiples of its moving average
    spike_sigma: float | None = 6.0  # the loss, in standard deviations; of its logarithm while it is positive
    spike_window: int = 128  # healthy steps in that average; no verdict before a quarter of them
    grad_norm_above: float | None = 1e6  # L2 norm of all gradients, unscaled and before clipping
    grad_norm_ratio: float | None = None  # the same, in multiples of its moving average; healthy runs reach 100
    scaler_skips: int | None = 10  # optimizer steps that GradScaler skips in a row: one or two are its normal work
    scaler_below: float | None = 1e-4  # GradScaler's scale, when it falls below; fairseq stops training there
    collapse_every: int | None = 100  # steps between two looks at the harness's features
    collapse_deviation: float | None = 1e-3  # of the features from their mean, as a share of their size
    collapse_dimensions: float | None = 1.01  # in which they vary, weighted by how much
    activations: bool = False  # name the modules whose output is not finite; reads the device once a module
    hang_after: float | None = None  # seconds a step may take, the first one too: it is captured while it hangs

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "activations" or value is None:
                continue
            whole = field.name in ("spike_window", "scaler_skips", "collapse_every")
            sound = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not sound or isnan(value) or (value <= 0 and field.name != "loss_above"):
                raise BadInput(f"Limits: {field.name}={value!r}; expected a {'whole ' * whole}number above 0, or None")
        if self.spike_window is None or self.spike_window < 8:
            raise BadInput(f"Limits: spike_window={self.spike_window}; expected 8 or more: fewer steps show no spread")
