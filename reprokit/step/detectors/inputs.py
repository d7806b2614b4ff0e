"""What the inputs of a step look like: types, ranges, and what is odd about them. Evidence for people, never a failure:
a batch of zeros may be meant. Costs a pass over the batch, and is taken only when an incident is written. Range and
non-finite values are those of all values; mean and deviation of every so many of them, a million at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch

from reprokit.layout import Layout

# One channel of an image in 0..1 becomes (x - mean) / std: within -2.2 and 2.7 with the usual statistics of ImageNet,
# whose means are about 0.45 and whose deviations are about 0.225. Done again it lies within these, with a mean near -2.
_TWICE_LOW, _TWICE_HIGH, _TWICE_TYPICAL_LOW = -11.5, 10.0, -5.0
_PICTURE = 3  # axes that a picture has at least
_SAMPLE = 1 << 20


def look(batch: Any, layout: Layout) -> dict[str, Any]:
    """Each tensor or array of a batch, by name, as JSON has it. Where one cannot be told, the reason."""
    found: dict[str, Any] = {}
    for name, value in _inside(layout.leaves(batch)):
        try:
            found[name] = _described(_tensor(value))
        except Exception as trouble:  # not worth an incident
            found[name] = {"notes": [f"could not be looked at: {type(trouble).__name__}"]}
    return found


def _inside(entries: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and arrays of numbers, however deep in what the layout does not list."""
    for key, value in entries.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _inside(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield from _inside(dict(enumerate(value)), f"{name}.")
        elif isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc"):
            yield name, value


def _tensor(value: torch.Tensor | np.ndarray[Any, Any]) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach()
    return torch.as_tensor(np.ascontiguousarray(value).astype(value.dtype.newbyteorder("="), copy=False))


def _described(tensor: torch.Tensor) -> dict[str, Any]:
    about: dict[str, Any] = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.numel() == 0 or tensor.is_quantized:
        return about | {"notes": ["no values"] if tensor.numel() == 0 else []}
    if tensor.is_complex():  # whose values have no order, and so no range
        bad = int((~torch.view_as_real(tensor.resolve_conj()).isfinite()).any(-1).sum())
        about |= {"nonfinite": bad} if bad else {}
        return about | {"notes": _notes(tensor, about)}
    about |= _numbers(tensor)
    return about | {"notes": _notes(tensor, about)}


def _numbers(tensor: torch.Tensor) -> dict[str, Any]:
    flat = tensor.reshape(-1)
    if flat.itemsize == 1:  # bool and float8 have no kernels for this
        flat = flat.to(torch.uint8) if flat.dtype == torch.bool else flat.float() if flat.is_floating_point() else flat
    about: dict[str, Any] = {}
    low, high = torch.aminmax(flat)
    if not (low.isfinite() and high.isfinite()):
        finite = flat[flat.isfinite()]
        about["nonfinite"], flat = flat.numel() - finite.numel(), finite
        if not flat.numel():
            return about
        low, high = torch.aminmax(flat)
    sample = flat[:: -(-flat.numel() // _SAMPLE)].double()
    mean, std = float(sample.mean()), float(sample.std(correction=0))
    numbers = {"min": float(low), "max": float(high), "mean": mean, "std": std}
    return about | {name: number for name, number in numbers.items() if isfinite(number)}


def _notes(tensor: torch.Tensor, about: Mapping[str, Any]) -> list[str]:
    notes = [f"{about['nonfinite']} of {tensor.numel()} values are not finite"] if "nonfinite" in about else []
    if "min" not in about:
        return notes
    low, high = about["min"], about["max"]
    if low == high:
        return [*notes, *(["all zero"] if high == 0 else [f"constant {high:g}"] if tensor.numel() > 1 else [])]
    if tensor.ndim < _PICTURE:
        return notes
    if tensor.dtype == torch.uint8:
        return [*notes, *(["uint8 of 0 and 1 alone: scaled before it became whole numbers?"] if high == 1 else [])]
    return [*notes, *(_notes_on_floats(about) if tensor.is_floating_point() else [])]


def _notes_on_floats(about: Mapping[str, Any]) -> list[str]:
    low, high, mean, std = (about.get(name, 0.0) for name in ("min", "max", "mean", "std"))
    if low >= 0 and high <= 1 / 255:
        return ["within 0 and 1/255: divided by 255 twice?"]
    if low >= 0 and 2 < high <= 255:
        return ["a range of 0 to 255 in floating point: not divided by 255?"]
    if -2.5 < low < 0 and 200 < high < 1200:
        return ["within -2 and 1,200: normalised without a division by 255?"]
    if _TWICE_LOW <= low < _TWICE_TYPICAL_LOW and high <= _TWICE_HIGH and -4 < mean < -0.5 and std > 2:
        return ["low, wide and off its zero: normalised twice?"]
    return []
