"""Simpler values for an entry of a batch: what is left of the content when only its kind matters.

Each kind of simpler is a map on single values whose numbers come from the whole entry (its mean, its quantiles), so
where values were equal they stay equal, and tensors that overlap in memory still do. All kinds are idempotent: what is
simple already does not change, which is how a caller knows that there is nothing to ask. Shapes, dtypes, strides,
devices and `requires_grad` stay; the input is never written to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from reprokit.errors import BadInput
from reprokit.layout import Layout
from reprokit.step.case import Simpler

DISTINCT = 4  # values that "few" leaves: enough for low, middle and high, and few enough to be read at a glance
_LINES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # as which any dtype of that width is moved
_PYTHON: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


def simplified(batch: Any, layout: Layout, values: Mapping[str, Simpler]) -> Any:
    """The batch with the values of these entries made simpler; shapes and dtypes stay. Raises BadInput."""
    known = layout.leaves(batch)
    for entry in values:
        if entry not in known:
            has = ", ".join(repr(path) for path in known)
            raise BadInput(f"values: the batch has no entry {entry!r}; it has {has or 'none'}")
    change = lambda entry, value: simpler(value, values[entry], entry) if entry in values else value
    return layout.changed(batch, change)


def cast(batch: Any, layout: Layout, dtypes: Mapping[str, str]) -> Any:
    """The batch with the tensors of these entries in another dtype. Raises BadInput."""
    known = layout.leaves(batch)
    for entry, dtype in dtypes.items():
        if not isinstance(known.get(entry), torch.Tensor) or not isinstance(getattr(torch, dtype, None), torch.dtype):
            raise BadInput(f"dtypes: {entry!r} as {dtype!r}: no tensor of the batch, or no dtype")
    to = lambda entry, value: value.to(getattr(torch, dtypes[entry])) if entry in dtypes else value
    return layout.changed(batch, to)


def simpler(value: Any, kind: Simpler, entry: str = "") -> Any:
    """One value made simpler. entry: how to name it in an error. Raises BadInput for what is not made of numbers."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.is_nested or value.is_quantized or value.is_complex():
            raise _refusal(entry, f"a tensor ({value.layout}, {value.dtype})")
        return _tensor(value, kind)
    if isinstance(value, np.ndarray | np.generic):
        return _array(value, kind, entry)
    if type(value) in _PYTHON:
        return _numbers([value], kind, entry)[0]
    if isinstance(value, list | tuple):
        return _sequence(value, kind, entry)
    raise _refusal(entry, f"a {type(value).__name__}")


def _refusal(entry: str, what: str) -> BadInput:
    return BadInput(f"values: {repr(entry) if entry else 'the batch'} is {what}, whose values cannot be made simpler")


def _sequence(value: Any, kind: Simpler, entry: str) -> Any:
    """Numbers are simplified together, anything else one by one."""
    if all(type(one) in _PYTHON for one in value):
        new = _numbers(value, kind, entry)
    else:
        new = [simpler(one, kind, entry) for one in value]
    return type(value)(*new) if hasattr(value, "_fields") else type(value)(new)


def _numbers(value: Any, kind: Simpler, entry: str) -> list[Any]:
    """Python's own. Each keeps its type: of a list with both, the integers are made simpler among themselves."""
    new: list[Any] = list(value)
    for type_, dtype in _PYTHON.items():
        places = [i for i, one in enumerate(value) if type(one) is type_]
        try:
            made = _tensor(torch.tensor([value[i] for i in places], dtype=dtype), kind).tolist()
        except (OverflowError, RuntimeError, ValueError):
            raise _refusal(entry, "an integer of over 64 bits") from None
        for place, one in zip(places, made):
            new[place] = one
    return new


def _array(value: Any, kind: Simpler, entry: str) -> Any:
    """NumPy's arrays and scalars; the order of axes in memory stays."""
    array = np.asarray(value)
    try:
        plain = torch.from_numpy(np.array(array, dtype=array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise _refusal(entry, f"an array of {array.dtype}") from None
    if plain.is_complex():
        raise _refusal(entry, f"an array of {array.dtype}")
    new = np.empty_like(array, subok=False)
    new[...] = _tensor(plain, kind).numpy()
    return new if isinstance(value, np.ndarray) else new[()]


def _tensor(tensor: torch.Tensor, kind: Simpler) -> torch.Tensor:
    plain = tensor.detach()
    if not plain.numel():
        return plain.clone().requires_grad_(tensor.requires_grad)
    values = plain.reshape(-1).cpu()
    made = _simple(values.double() if values.is_floating_point() else values, kind).to(values.dtype)
    special = _special(values) if kind in ("special", "few", "unit") else torch.zeros_like(values, dtype=torch.bool)
    line = _LINES[values.element_size()]  # as bits: a NaN keeps its payload, and unsigned types have no `where`
    kept = torch.where(special, values.view(line), made.view(line)).view(values.dtype)
    return _laid_out(kept, plain).requires_grad_(tensor.requires_grad)


def _laid_out(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Values in logical order, put into memory with the strides of `like`; equal memory gets equal values."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride()))
    memory = torch.zeros(reach, dtype=like.dtype, device=like.device)
    line = _LINES[like.element_size()]
    places = torch.arange(reach).as_strided(like.shape, like.stride()).reshape(-1).to(like.device)
    memory.view(line)[places] = values.to(like.device).view(line)
    return memory.as_strided(like.shape, like.stride())


def _special(values: torch.Tensor) -> torch.Tensor:
    """What is no ordinary number: NaN and infinities; of integers the ends of their range, but for zero."""
    if values.is_floating_point():
        return ~values.double().isfinite()
    if values.dtype is torch.bool:
        return torch.zeros_like(values)
    limits, line = torch.iinfo(values.dtype), _LINES[values.element_size()]
    bits = values.view(line)  # of an unsigned type the highest value is -1 there
    if limits.min == 0:
        return bits == -1
    return (bits == limits.min) | (bits == limits.max)


def _simple(values: torch.Tensor, kind: Simpler) -> torch.Tensor:
    """All of them simplified as if none was special. Floats come as float64, which holds every other float."""
    if kind in ("zero", "special"):
        return torch.zeros_like(values)
    if kind in ("finite", "unit"):
        return _finite(values) if kind == "finite" else _unit(values)
    if kind == "constant":
        return _mean(values) if values.is_floating_point() else _most_frequent(values)
    return _few(values)


def _finite(values: torch.Tensor) -> torch.Tensor:
    return values.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) if values.is_floating_point() else values


def _unit(values: torch.Tensor) -> torch.Tensor:
    """From the least to the greatest: 0 to 1. What has one value is put into that range; integers are no amounts."""
    finite = values[values.isfinite()] if values.is_floating_point() else values[:0]
    if not finite.numel():
        return values
    low, high = finite.min(), finite.max()
    if low == high:
        return values.clamp(0, 1)
    half = (high / 2 - low / 2).clamp_min(torch.finfo(torch.float64).tiny)  # no difference overflows
    return ((values / 2 - low / 2) / half).clamp(0, 1)


def _mean(values: torch.Tensor) -> torch.Tensor:
    """Of the finite ones; scaled, so that no sum overflows, and never outside of their range."""
    finite = values[values.isfinite()]
    if not finite.numel():
        return torch.zeros_like(values)
    scale = finite.abs().max()
    mean = (finite / scale).mean() * scale if scale > 0 else scale
    return mean.clamp(finite.min(), finite.max()).expand_as(values)


def _most_frequent(values: torch.Tensor) -> torch.Tensor:
    """Of several the smallest."""
    line = _ordered(values)
    found, counts = line.unique(return_counts=True)
    return _as_before(found[counts.argmax()].expand_as(line), values)


def _few(values: torch.Tensor) -> torch.Tensor:
    """Each becomes the nearest of four quantiles, which are values of the entry; up to four are left as they are."""
    floats = values.is_floating_point()
    line = values if floats else _ordered(values)
    usual = line[line.isfinite()] if floats else line[~_special(values)]
    if len(usual.unique()) <= DISTINCT:
        return values
    ordered = usual.sort().values
    ranks = [(2 * i + 1) * len(ordered) // (2 * DISTINCT) for i in range(DISTINCT)]
    levels = ordered[ranks].unique()
    middles = (levels[:-1].double() / 2) + (levels[1:].double() / 2)  # halves first: no sum overflows
    return _as_before(levels[torch.bucketize(line.double(), middles)], values)


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Integers and bools as int64; what does not fit is negative there, and comes back as it went."""
    return values.view(torch.int64) if values.dtype is torch.uint64 else values.long()


def _as_before(line: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if values.dtype is torch.uint64:
        return line.contiguous().view(torch.uint64)
    return line.to(values.dtype)
