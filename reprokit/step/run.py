"""Run one training step the way the harness says.

With automatic optimization reprokit does what a plain loop does, in its order: autocast, backward, unscale, a look at
the gradients, clip, the optimizer's step, `zero_grad`. Without it the user's step does all of that.
"""

from __future__ import annotations

from typing import Any

import torch

from reprokit.failure import Kind
from reprokit.harness import Harness, autocasting
from reprokit.step.probe import Clipped, Probe


def run(harness: Harness, batch: Any, probe: Probe, *, micro: int = 0, until: Kind | None = None) -> Any:
    """One call of `harness.step` and what belongs to it; returns what the step returned.

    micro: how many batches this optimizer step has had before. until: nothing after the look that can show this kind is
    run, for candidates that need no more.
    """
    if not harness.automatic_optimization:
        losses = harness.step(batch)
        probe.look_at_losses(losses)
        return losses
    with autocasting(harness):
        losses = harness.step(batch)
    terms = probe.look_at_losses(losses)
    if until is not Kind.NONFINITE_LOSS:
        _backward(harness, terms["loss"])
        if micro + 1 == harness.accumulate:
            _optimize(harness, probe, until)
    return losses


def _backward(harness: Harness, loss: torch.Tensor) -> None:
    loss = loss / harness.accumulate if harness.accumulate > 1 else loss
    (harness.scaler.scale(loss) if harness.scaler else loss).backward()


def _optimize(harness: Harness, probe: Probe, until: Kind | None) -> None:
    optimizers = list(harness.optimizers.values())
    if harness.scaler:
        for optimizer in optimizers:
            harness.scaler.unscale_(optimizer)
    skips = harness.scaler is not None and harness.scaler.is_enabled()
    params = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
    total = _total_norm(params) if harness.clip_grad_norm is not None else None
    # that a scaler skips non-finite gradients is its normal work, and no failure
    probe.look_at_gradients(judge=not skips, clipped=None if total is None else Clipped(params, total))
    if until is Kind.NONFINITE_GRAD:
        return
    if harness.clip_grad_norm is not None and total is not None:
        torch.nn.utils.clip_grads_with_norm_(params, harness.clip_grad_norm, total)
    for optimizer in optimizers:
        if harness.scaler:
            harness.scaler.step(optimizer)
        else:
            optimizer.step()
    if harness.scaler:
        harness.scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)


def _total_norm(params: list[torch.Tensor]) -> torch.Tensor:
    """The first half of `clip_grad_norm_`, which would tell the norm only when the gradients are clipped."""
    return torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
