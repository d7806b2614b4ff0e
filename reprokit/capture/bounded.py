"""Whether an optimizer's update can make finite parameters infinite, decided by its formula, without a look at them.

To look costs a pass over all parameters. For the common optimizers the formula says as much, where the norm of the
gradients is known to be below a bound, as it is behind a latch that lets no other step through:

- SGD moves a weight by at most lr * (g + wd * w) / (1 - momentum).
- Adam and AdamW (Kingma and Ba, arXiv:1412.6980) move it by at most lr * |m| / (sqrt(v) + eps) and their weight decay.
  v is a mean of squares over the same steps as m, so that by Cauchy-Schwarz |m| / sqrt(v) is at most (1 - beta1) /
  sqrt((1 - beta2) (1 - beta1^2 / beta2)), and eps > 0 keeps 0 / 0 away. Squares of gradients below the bound do not
  overflow.

With the limits below, a weight that is finite, as weights are, is finite for thousands of steps more. Who relies on
this still looks now and then: hooks, memory that fails, and writes that leave no trace are in no formula.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch

LARGEST_NORM = 1e15  # of the gradients: its square is far below 3e38, where float32 ends
LARGEST_RATE = 1e3  # of learning and of decay, whose product is at most 1, or weights grow by themselves
LEAST_EPS = 1e-30
_WIDE = frozenset({torch.float32, torch.float64, torch.bfloat16})  # float16 ends at 65,504


def bounded(optimizer: torch.optim.Optimizer, norm: float | None) -> bool:
    """Whether its next update keeps finite parameters finite. norm: what the gradients' is at most, None: unknown.

    Numbers that lie on a device, as with `capturable=True`, are not read: then this is False.
    """
    if norm is None or norm > LARGEST_NORM or optimizer._optimizer_step_pre_hooks:
        return False
    rule = _RULES.get(type(optimizer))
    return rule is not None and all(rule(group) and _common(group) for group in optimizer.param_groups)


def _common(group: Mapping[str, Any]) -> bool:
    rate, decay = group["lr"], group["weight_decay"]
    shrinks = _within(rate, LARGEST_RATE) and _within(decay, LARGEST_RATE) and rate * decay <= 1
    return shrinks and _WIDE.issuperset([parameter.dtype for parameter in group["params"]])


def _sgd(group: Mapping[str, Any]) -> bool:
    return _within(group["momentum"], 0.9999) and _within(group["dampening"], 1.0)


def _adam(group: Mapping[str, Any]) -> bool:
    beta1, beta2 = group["betas"]
    usual = _within(beta1, 0.9999) and _within(beta2, 0.999999) and beta1 * beta1 < beta2
    return usual and type(group["eps"]) is float and LEAST_EPS <= group["eps"] < 1


def _within(value: object, most: float) -> bool:
    """A number of the host, from 0 to that."""
    return isinstance(value, int | float) and isfinite(value) and 0 <= value <= most


_RULES = {torch.optim.SGD: _sgd, torch.optim.Adam: _adam, torch.optim.AdamW: _adam}
