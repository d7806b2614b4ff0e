"""Harnesses of other kinds than the reference model: each is one thing that a user may hand over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn

from reprokit.harness import Harness
from reprokit.smoke.gate import Finding, Gate, Subject

VIDEO = {"clip": "b t c h w"}


def build(config: Any) -> Harness:
    """What subjects are named after; each has a build of its own."""
    return harness()


def clips(number: int = 0, shape: tuple[int, ...] = (4, 2, 3, 8, 8)) -> Tensor:
    return torch.randint(0, 256, shape, generator=Generator().manual_seed(number), dtype=torch.uint8)


def harness(
    step: Callable[[nn.Module, Any], Any] | None = None, net: nn.Module | None = None, layout: Any = None, **fields: Any
) -> Harness:
    """A small convolution over frames; step: of the module and a batch."""
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.Conv2d(4, 2, 3))
    step = step or (lambda net, batch: net(batch["clip"].flatten(0, 1).float() / 255).square().mean())
    given = {"modules": {"net": net}, "optimizer": torch.optim.SGD(net.parameters(), lr=0.1)} | fields
    return Harness(step=lambda batch: step(net, batch), layout=layout or VIDEO, **given)


def subject(made: Callable[[], Harness] = harness, batches: Any = None, **changes: Any) -> Subject:
    batches = [{"clip": clips(0)}, {"clip": clips(1)}] if batches is None else batches
    given = {"build": lambda config: made(), "config": {}, "entrypoint": "plain.py:build", "batches": batches}
    return Subject(**{**given, "no_batches": "" if batches else "the harness has no loader", **changes})


def rows(gate: Gate, of: Subject) -> dict[str, Finding]:
    """What a gate found, by its checks."""
    found = list(gate.look(of))
    assert len({one.check for one in found}) == len(found)
    return {one.check: one for one in found}
