"""Batches that a healthy model must survive or refuse: their content at its ends, flat, missing or not a number.

Only content is changed: what floats, and images of bytes. Integers, bools, text and lists are structure (labels, masks,
lengths) and stay as they are, or the batch would be another one in kind. Inputs are never written to. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import sqrt
from typing import Any

import numpy as np
import torch

from reprokit.layout import Layout

SCALE = 1e6  # times, or a part of: a sum of squares of it still fits float32
SAMPLES = "b"
_PICTURE = 3  # axes that a picture has at least

Make = Callable[[torch.Tensor], torch.Tensor]


def content(batch: Any, layout: Layout) -> dict[str, torch.Tensor]:
    """What can be changed, by the path of its entry."""
    found = {entry: _tensor(value) for entry, value in layout.leaves(batch).items()}
    return {entry: tensor for entry, tensor in found.items() if tensor is not None and _is_content(tensor)}


def changed(batch: Any, layout: Layout, make: Make, entries: Collection[str] | None = None) -> Any:
    """The batch with its content, or that of these entries, made anew."""
    known = content(batch, layout)
    wanted = known.keys() if entries is None else entries

    def change(entry: str, value: Any) -> Any:
        if entry not in wanted:
            return value
        made = make(known[entry]).to(known[entry].dtype)
        return made.numpy() if isinstance(value, np.ndarray) else made

    return layout.changed(batch, change)


def large(tensor: torch.Tensor, computed: torch.dtype = torch.float32) -> torch.Tensor:
    """Bytes at their highest; floats a million times as large, or less where what they are computed in ends before."""
    if not tensor.is_floating_point():
        return torch.full_like(tensor, 255)
    return tensor * _scale(tensor.dtype, computed)


def small(tensor: torch.Tensor, computed: torch.dtype = torch.float32) -> torch.Tensor:
    """Bytes at zero; floats a million times as small, or less."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    return tensor / _scale(tensor.dtype, computed)


def constant(tensor: torch.Tensor, _computed: torch.dtype = torch.float32) -> torch.Tensor:
    """Everywhere its mean."""
    mean = tensor.double().nanmean() if tensor.numel() else torch.tensor(0.0)
    return torch.full_like(tensor, float(mean) if tensor.is_floating_point() else round(float(mean)))


def missing(tensor: torch.Tensor) -> torch.Tensor:
    """NaN everywhere; for floats."""
    return torch.full_like(tensor, torch.nan)


def mirrored(tensor: torch.Tensor) -> torch.Tensor:
    """Other content in the same range: what a step must notice if it reads this."""
    return 255 - tensor if not tensor.is_floating_point() else -tensor


def without_samples(batch: Any, layout: Layout) -> Any | None:
    """The batch with no sample in it; None where the layout names no axis of samples."""
    if SAMPLES not in layout.axes:
        return None

    def change(entry: str, value: Any) -> Any:
        axes = layout.axes_of(entry)
        if SAMPLES not in axes:
            return value
        cut = tuple(slice(0) if axis == SAMPLES else slice(None) for axis in axes)
        return value[:0] if isinstance(value, list | tuple) else value[cut]

    return layout.changed(batch, change)


def _tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value.detach() if value.layout == torch.strided and not value.is_nested else None
    if isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype == np.uint8):
        return torch.from_numpy(np.array(value, dtype=value.dtype.newbyteorder("=")))
    return None


def _is_content(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or (tensor.dtype == torch.uint8 and tensor.ndim >= _PICTURE)


def _scale(*dtypes: torch.dtype) -> float:
    """What all of them hold the square of: half precision ends at 65,504."""
    return min(SCALE, *(sqrt(torch.finfo(dtype).max) for dtype in dtypes))
