"""What failed, and when two failures are the same one.

A training step can fail in several ways at once: one NaN pixel makes the loss, the gradients and then the parameters
non-finite. The kinds are listed in causal order, and the first that holds names the failure; the others are symptoms. A
signature is coarse on purpose: a smaller case has other shapes, other numbers and other parameter names in its messages,
and is still the same failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """Closed, in causal order: the first that holds is the failure's kind."""

    EXCEPTION = "exception"
    OOM = "oom"
    HANG = "hang"
    CRASH = "crash"
    NONFINITE_LOSS = "nonfinite_loss"
    NONFINITE_GRAD = "nonfinite_grad"
    NONFINITE_PARAM = "nonfinite_param"
    LOSS_SPIKE = "loss_spike"
    GRAD_SPIKE = "grad_spike"
    SCALER_STALL = "scaler_stall"
    COLLAPSE = "collapse"


@dataclass(frozen=True, kw_only=True, slots=True)
class Symptom:
    """One kind that held, where, and what was seen: for people, never compared."""

    kind: Kind
    where: str  # a loss term, or a phase: forward, backward, optimizer
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Signature:
    """What makes two failures the same one. Exceptions carry type, function and normalised message too."""

    kind: Kind
    where: str
    exception: str = ""
    function: str = ""  # relative to the source root: "train.py:step"
    message: str = ""  # normalised
