"""Run one training step the way the harness says.

With automatic optimization reprokit does what a plain loop does, in its order: autocast, backward, unscale, a look at
the gradients, clip, the optimizer's step, `zero_grad`. Without it the user's step does all of that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from reprokit.failure import Kind
from reprokit.harness import AUTOCAST, Harness
from reprokit.step.probe import Probe


def run(harness: Harness, batch: Any, probe: Probe, *, micro: int = 0, until: Kind | None = None) -> Any:
    """One call of `harness.step` and what belongs to it; returns what the step returned.

    micro: how many batches this optimizer step has had before. until: nothing after the look that can show this kind is
    run, for candidates that need no more.
    """
    if not harness.automatic_optimization:
        losses = harness.step(batch)
        probe.look_at_losses(losses)
        return losses
    with _autocast(harness):
        losses = harness.step(batch)
    terms = probe.look_at_losses(losses)
    if until is not Kind.NONFINITE_LOSS:
        _backward(harness, terms["loss"])
        if micro + 1 == harness.accumulate:
            _optimize(harness, probe, until)
    return losses


def _autocast(harness: Harness) -> AbstractContextManager[Any]:
    if harness.autocast is None:
        return nullcontext()
    return torch.autocast(harness.device.type, dtype=AUTOCAST[harness.autocast])


def _backward(harness: Harness, loss: torch.Tensor) -> None:
    loss = loss / harness.accumulate if harness.accumulate > 1 else loss
    (harness.scaler.scale(loss) if harness.scaler else loss).backward()


def _optimize(harness: Harness, probe: Probe, until: Kind | None) -> None:
    optimizers = list(harness.optimizers.values())
    if harness.scaler:
        for optimizer in optimizers:
            harness.scaler.unscale_(optimizer)
    else:  # a scaler skips steps with non-finite gradients as its normal work: those are no failures
        probe.look_at_gradients()
    if until is Kind.NONFINITE_GRAD:
        return
    if harness.clip_grad_norm is not None:
        params = [p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]]
        torch.nn.utils.clip_grad_norm_(params, harness.clip_grad_norm)
    for optimizer in optimizers:
        if harness.scaler:
            harness.scaler.step(optimizer)
        else:
            optimizer.step()
    if harness.scaler:
        harness.scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
