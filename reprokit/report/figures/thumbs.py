"""A cell of a batch as a few pixels that tell the truth about it.

Averaging over areas keeps what a frame looks like, but one NaN in 50,000 pixels would vanish or spread; so what is not
finite is taken out of the average and kept as a mask, where one bad value marks its pixel. The range is that of all
values, not of the pixels. Each cell is read by itself: a batch of gigabytes needs the memory of one frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from einops import rearrange
from numpy.typing import NDArray
from torch import Tensor

Pixels = NDArray[np.float64]
OVERSAMPLE = 2  # values a side that one pixel averages at least: twice as many change nothing that is seen
LARGEST = 1e150  # is shown as such: differences of larger numbers would overflow
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])  # of ImageNet, as everybody uses them
INSIDE = 0.98  # share of pixels that must fit an encoding: a few wild values do not change what the others mean

_NATIVE = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64}


@dataclass(frozen=True, kw_only=True, slots=True)
class Thumb:
    """One cell."""

    pixels: Pixels  # [h, w, c], means of the finite values
    bad: NDArray[np.bool_]  # [h, w], where any value is NaN or Inf
    low: float  # of the finite values; NaN where there is none
    high: float
    nan: float = 0.0  # share of all values
    inf: float = 0.0
    constant: tuple[float, ...] = ()  # the value of each channel, where each has but one


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How the values of an entry become brightness: (value * std + mean - low) / (high - low)."""

    name: str  # for people
    low: float
    high: float
    normalised: bool = False  # with ImageNet's statistics

    def shown(self, pixels: Pixels) -> Pixels:
        """In [0, 1]."""
        values = pixels * STD + MEAN if self.normalised else pixels
        span = self.high - self.low
        return np.clip((values - self.low) / span, 0, 1) if span > 0 else np.full_like(values, 0.5)


def thumb(value: Tensor, axes: Sequence[str], size: tuple[int, int]) -> Thumb:
    """A cell of an entry, with axes among c, h and w, in at most `size` pixels (height, width)."""
    pattern = " ".join(axis if axis in axes else "1" for axis in ("c", "h", "w"))
    cell = rearrange(_plain(value), f"{' '.join(axes)} -> {pattern}").numpy()
    lows, highs = cell.min(axis=(1, 2)), cell.max(axis=(1, 2))  # NaN spreads into both
    if np.isfinite(lows).all() and np.isfinite(highs).all():
        pixels = _averaged(cell, size, None)
        constant = tuple(map(float, lows)) if (lows == highs).all() else ()
        bad = np.zeros(pixels.shape[:2], bool)
        return Thumb(pixels=pixels, bad=bad, low=float(lows.min()), high=float(highs.max()), constant=constant)
    finite = np.isfinite(cell)
    held = cell[finite]
    return Thumb(
        pixels=_averaged(cell, size, finite),
        bad=_pooled(np.logical_or, ~finite.all(axis=0, keepdims=True), size)[0],
        low=float(held.min()) if held.size else np.nan,
        high=float(held.max()) if held.size else np.nan,
        nan=float(np.isnan(cell).mean()),
        inf=float(np.isinf(cell).mean()),
    )


def scale(thumbs: Sequence[Thumb], dtype: torch.dtype, image: bool) -> Scale:
    """What the values of an entry mean, from how they lie."""
    if dtype == torch.uint8 and image:
        return Scale(name="0 to 255", low=0, high=255)
    held = [one.pixels[~one.bad] for one in thumbs]  # each [n, c]
    values = np.concatenate(held) if held else np.zeros((0, 1))
    if not values.size:
        return Scale(name="no finite value", low=0, high=1)
    if image:
        for known in _ENCODINGS:
            lowest, highest = (known.low - MEAN) / STD, (known.high - MEAN) / STD
            if known.normalised and values.shape[1] != len(MEAN):
                continue
            edges = (lowest, highest) if known.normalised else (known.low, known.high)
            slack = 0.01 * (edges[1] - edges[0])
            if np.mean((values >= edges[0] - slack) & (values <= edges[1] + slack)) >= INSIDE:
                return known
    return _stretched(thumbs, values)


def numbers(value: Any) -> Tensor | None:
    """The entry as a tensor of numbers on any device, or None where it holds something else."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            return None
        value = torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False)))
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_nested or value.is_meta:
        return None
    return value.detach()


_ENCODINGS = (
    Scale(name="0 to 1", low=0, high=1),
    Scale(name="-1 to 1", low=-1, high=1),
    Scale(name="ImageNet-normalised", low=0, high=1, normalised=True),
    Scale(name="0 to 255", low=0, high=255),
)


def _stretched(thumbs: Sequence[Thumb], values: Pixels) -> Scale:
    low, high = (float(edge) for edge in np.percentile(values, (1, 99)))
    lowest, highest = np.nanmin([one.low for one in thumbs]), np.nanmax([one.high for one in thumbs])
    return Scale(name=f"dark {lowest:.3g} to light {highest:.3g}", low=low, high=high)


def _plain(value: Tensor) -> Tensor:
    """On the CPU, in a type that every operation here knows."""
    value = value.cpu()
    if value.is_quantized:
        value = value.dequantize()
    if value.is_complex():
        value = value.abs()
    return value if value.dtype in _NATIVE else value.to(torch.float32)


def _averaged(cell: NDArray[Any], size: tuple[int, int], finite: NDArray[np.bool_] | None) -> Pixels:
    """Means of the finite values, [h, w, c]. Every value counts where one is bad: it may be the only good one."""
    down, across = [1, 1] if finite is not None else [
        max(1, length // (OVERSAMPLE * wanted)) for length, wanted in zip(cell.shape[1:], size)
    ]  # fmt: skip
    few = np.clip(cell[:, ::down, ::across].astype(np.float64), -LARGEST, LARGEST)
    good = np.ones(few.shape, bool) if finite is None else finite
    count = _pooled(np.add, good.astype(np.float64), size)
    means = _pooled(np.add, np.where(good, few, 0.0), size) / np.maximum(count, 1)
    return rearrange(means, "c h w -> h w c")


def _pooled(pool: np.ufunc, cell: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
    """Areas made one by a ufunc, in at most `size` areas."""
    for axis, wanted in zip((1, 2), size):
        length = cell.shape[axis]
        if length > wanted:
            cell = pool.reduceat(cell, np.arange(wanted) * length // wanted, axis=axis)
    return cell
