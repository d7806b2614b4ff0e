"""A healthy batch where nobody has one: smooth content in the range of the batch's own values.

It stands in for the donor of an incident whose very first step failed. Only what floats, and images of bytes, is
generated; integers, bools, text and objects are structure (labels, masks, lengths, paths) and stay as they are.
Content is smooth along the last two axes and differs from element to element: noise of pixels is no image, and a
constant one is the very cause of many failures. Always the same for the same shapes and ranges.
"""

from __future__ import annotations

from math import pi
from typing import Any

import numpy as np
import torch

from reprokit.layout import Layout

_SEED = 20  # any
_SAMPLE = 100_000  # values that a range is taken from: enough for two deciles
_IMAGE = 4  # rows and columns that make an image; below that neighbours need not be alike
_WAVES = 3  # of low frequency along each axis


def generated(batch: Any, layout: Layout) -> Any:
    """A batch of the same shapes and dtypes."""
    generator = torch.Generator().manual_seed(_SEED)
    content = {path: _content(value, generator) for path, value in layout.leaves(batch).items()}
    return layout.changed(batch, lambda path, value: content[path])


def _content(value: Any, generator: torch.Generator) -> Any:
    if isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == np.uint8):
        return _content(torch.from_numpy(np.ascontiguousarray(value)), generator).numpy()
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return value
    if not value.is_floating_point() and not (value.dtype == torch.uint8 and value.ndim > 2):
        return value
    low, high = _range(value)
    field = _field(value.shape, generator)
    new = torch.empty_like(value).copy_(low + (high - low) * field)
    return new.requires_grad_(value.requires_grad)


def _range(value: torch.Tensor) -> tuple[float, float]:
    """The middle eight tenths of the finite values, since what is outside may be what fails."""
    flat = value.detach().flatten()
    some = flat[:: max(1, flat.numel() // _SAMPLE)].double()
    some = some[some.isfinite()].sort().values
    if not len(some) or some[0] == some[-1]:
        return (32.0, 224.0) if value.dtype == torch.uint8 else (0.0, 1.0)
    low, high = float(some[len(some) // 10]), float(some[-1 - len(some) // 10])
    return (low, high) if low < high else (float(some[0]), float(some[-1]))


def _field(shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """Values in [0, 1] on the CPU."""
    if len(shape) < 2 or min(shape[-2:]) < _IMAGE:
        return torch.rand(shape, generator=generator)
    total = torch.zeros(shape)
    for _ in range(_WAVES):
        strength, rise, fall, phase = (torch.rand((*shape[:-2], 1, 1), generator=generator) for _ in range(4))
        rows = torch.linspace(0, 2 * pi, shape[-2])[:, None] * (0.5 + rise)
        columns = torch.linspace(0, 2 * pi, shape[-1])[None, :] * (0.5 + fall)
        total += (0.5 + strength) * torch.cos(rows + columns + 2 * pi * phase)
    return 0.5 + total / (2 * 1.5 * _WAVES)
