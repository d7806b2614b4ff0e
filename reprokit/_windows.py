"""Tensors and arrays as windows on memory: dtype, shape, strides and an offset are all there is to say about one.

Describing a window keeps nothing of its graph; making it again checks that it stays inside its block before torch or
NumPy is told to look there, since neither would notice. Sparse tensors are several windows, one for each part.
Conjugate and negative views are windows with a flag, over memory that others may see without it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import torch

from reprokit import _storage
from reprokit._storage import Block, Placed, Span

MAX_DIMENSIONS = 64  # NumPy's limit; torch has none that matters
MAX_ELEMENTS = 2**59  # with an item size on top, the product still fits in 64 bits

Array = np.ndarray[Any, Any]
Node = dict[str, Any]
Found = list[tuple[Node, Span]]

_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_COMPRESSED = {str(kind): kind for kind in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)}
_ARRAY_KINDS = frozenset("biufcmMUS")  # bool, numbers, times, fixed-width text: memory without pointers


class NoForm(Exception):
    """Not a window on plain memory. The message says what it is instead."""


def describe(value: torch.Tensor | Array, label: str, found: Found) -> Node:
    """What it takes to make it again. Windows are added to `found`; `settle` completes their nodes."""
    if isinstance(value, np.ndarray):
        return _array(value, label, found)
    node = _tensor(value.detach(), label, found)
    if value.requires_grad:
        node["requires_grad"] = True
    if type(value) is torch.nn.Parameter:
        node["parameter"] = True
    return node


def settle(found: Found) -> tuple[Block, ...]:
    """The blocks behind all windows of a tree, and to each node where in which block it is."""
    blocks, homes = _storage.group([span for _, span in found])
    for (node, _), (block, start) in zip(found, homes, strict=True):
        node["in"] = block
        node["offset"] += start
    return tuple(blocks)


def rebuild(node: Mapping[str, Any], placed: Mapping[str, Placed]) -> torch.Tensor | Array:
    """The inverse of `describe`. Raises what Python raises at a wrong kind of value; looks at no memory but its own."""
    if node["$"] == "array":
        return _rebuilt_array(node, placed)
    tensor = _rebuilt_sparse(node, placed) if node["$"] == "sparse" else _rebuilt_tensor(node, placed)
    grad = node.get("requires_grad", False)
    if node.get("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=grad)
    return tensor.requires_grad_() if grad else tensor


def digest(tensor: torch.Tensor) -> str:
    """Of layout, dtype, shape and bytes in logical order: equal for equal bits, wherever and however they lie."""
    plain = tensor.detach()
    hasher = hashlib.sha256(f"{plain.layout} {_name(plain.dtype)} {tuple(plain.shape)}\n".encode())
    if plain.layout is torch.strided:
        dense = plain.cpu().resolve_conj().resolve_neg().contiguous()
        line = dense.as_strided((dense.numel(),), (1,))  # a dimension of one may have any stride, which `view` minds
        hasher.update(line.view(torch.uint8).numpy().data)
    else:
        for part in _parts(plain):
            hasher.update(digest(part).encode())
    return hasher.hexdigest()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _tensor(tensor: torch.Tensor, label: str, found: Found) -> Node:
    if tensor.layout is not torch.strided:
        return _sparse(tensor, label, found)
    if tensor.is_nested or tensor.is_quantized or tensor.is_meta:
        raise NoForm(f"torch.Tensor ({tensor.layout}, {tensor.dtype}, on {tensor.device})")
    try:
        start = tensor.data_ptr()
    except RuntimeError:
        raise NoForm("torch.Tensor without memory") from None
    if not start and tensor.numel():
        raise NoForm("torch.Tensor whose memory was freed, or was never there")
    shape, strides, name = tuple(tensor.shape), tensor.stride(), _name(tensor.dtype)
    node = {"$": "tensor", "dtype": name, "shape": list(shape), "offset": 0}
    if strides != _contiguous(shape):
        node["stride"] = list(strides)
    flags = [flag for flag, held in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if held]
    node |= dict.fromkeys(flags, True)
    as_is = tensor.is_contiguous() and not flags
    found.append((node, _span(node, tensor, label, start, name, tensor.itemsize, as_is)))
    return node


def _sparse(tensor: torch.Tensor, label: str, found: Found) -> Node:
    layout = str(tensor.layout)
    if layout != "torch.sparse_coo" and layout not in _COMPRESSED:
        raise NoForm(f"torch.Tensor ({layout})")
    parts = [_tensor(part.detach(), f"{label}.{i}", found) for i, part in enumerate(_parts(tensor))]
    node = {"$": "sparse", "layout": layout, "shape": list(tensor.shape), "parts": parts}
    return node | ({} if layout in _COMPRESSED else {"coalesced": tensor.is_coalesced()})


def _array(array: Array, label: str, found: Found) -> Node:
    if array.dtype.kind not in _ARRAY_KINDS or not array.itemsize:
        raise NoForm(f"numpy.ndarray of dtype {array.dtype}")
    node = {"$": "array", "dtype": array.dtype.str, "shape": list(array.shape), "offset": 0}
    if array.strides != tuple(stride * array.itemsize for stride in _contiguous(array.shape)):
        node["stride"] = list(array.strides)
    name = array.dtype.name if array.dtype.isnative else ""
    start = array.__array_interface__["data"][0]
    found.append((node, _span(node, array, label, start, name, 1, array.flags.c_contiguous)))
    return node


def _span(
    node: Node, owner: torch.Tensor | Array, label: str, start: int, dtype: str, unit: int, as_is: bool
) -> Span:
    """The memory of a window whose strides count in `unit` bytes; `as_is` if that is its elements in order."""
    shape, size = tuple(node["shape"]), owner.itemsize
    low, high = 0, (prod(shape) - 1) * size  # empty: no bytes
    if "stride" in node and 0 not in shape:
        low, high = (unit * reach for reach in _storage.extent(shape, node["stride"]))
    node["offset"] = -low
    code = _storage.CODES.get(dtype) or _storage.PAIRS.get(dtype)
    natural = shape + (2,) * (dtype in _storage.PAIRS) if as_is and code else None
    nbytes = high - low + size
    return Span(owner=owner, label=label, start=start + low, nbytes=nbytes, dtype=code or "U8", shape=natural)


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a contiguous tensor, as torch counts them: a dimension of zero counts as one."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.append(strides[-1] * max(size, 1))
    return tuple(reversed(strides)) if shape else ()


def _parts(sparse: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if sparse.layout is torch.sparse_coo:
        return sparse._indices(), sparse._values()
    if sparse.layout in (torch.sparse_csr, torch.sparse_bsr):
        return sparse.crow_indices(), sparse.col_indices(), sparse.values()
    return sparse.ccol_indices(), sparse.row_indices(), sparse.values()


def _rebuilt_tensor(node: Mapping[str, Any], placed: Mapping[str, Placed]) -> torch.Tensor:
    dtype, block = _DTYPES[node["dtype"]], placed[node["in"]]
    if dtype in _QUANTIZED:
        raise ValueError("no plain numbers")
    start, shape, strides = _checked(node, block, dtype.itemsize, unit=dtype.itemsize)
    if start % dtype.itemsize:  # only over memory that NumPy or a buffer gave, at an odd address
        line = torch.frombuffer(block.memory.numpy().data, dtype=dtype, offset=start)
        tensor = line.as_strided(shape, strides, 0)
    else:
        tensor = torch.empty(0, dtype=dtype, device=block.memory.device)
        tensor.set_(block.memory.untyped_storage(), start // dtype.itemsize, shape, strides)
    tensor = torch._neg_view(tensor) if node.get("neg") else tensor
    return tensor.conj() if node.get("conj") else tensor


def _rebuilt_sparse(node: Mapping[str, Any], placed: Mapping[str, Placed]) -> torch.Tensor:
    parts, shape = [_rebuilt_tensor(part, placed) for part in node["parts"]], node["shape"]
    if node["layout"] in _COMPRESSED:
        compressed, plain, values = parts
        layout = _COMPRESSED[node["layout"]]
        return torch.sparse_compressed_tensor(compressed, plain, values, shape, layout=layout, check_invariants=True)
    indices, values = parts
    coalesced: bool = node["coalesced"]
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True, is_coalesced=coalesced)


def _rebuilt_array(node: Mapping[str, Any], placed: Mapping[str, Placed]) -> Array:
    dtype, block = np.dtype(str(node["dtype"])), placed[node["in"]]
    if dtype.kind not in _ARRAY_KINDS or not dtype.itemsize:
        raise ValueError("no plain numbers")
    start, shape, strides = _checked(node, block, dtype.itemsize, unit=1)
    array: Array = np.ndarray(shape, dtype, block.memory.cpu().numpy().data, start, strides)
    if dtype.kind == "U" and not _is_text(array):
        raise ValueError("no characters")
    return array


def _is_text(array: Array) -> bool:
    """Whether all of it are characters; NumPy would find out when somebody reads them."""
    codes = np.ascontiguousarray(array).reshape(-1).view(array.dtype.str[0] + "u4")
    return not codes.size or int(codes.max()) <= sys.maxunicode


def _checked(
    node: Mapping[str, Any], block: Placed, itemsize: int, *, unit: int
) -> tuple[int, Sequence[int], Sequence[int]]:
    """Start in the memory, shape, and strides in `unit` bytes, once all elements are known to lie in the block."""
    offset, shape = node["offset"], node["shape"]
    if len(shape) > MAX_DIMENSIONS or not all(type(size) is int and size >= 0 for size in (offset, *shape)):
        raise ValueError("not a size")
    if prod(max(size, 1) for size in shape) > MAX_ELEMENTS:
        raise ValueError("more elements than there can be")
    strides: Sequence[int] = node.get("stride") or [stride * itemsize // unit for stride in _contiguous(shape)]
    if not all(type(stride) is int for stride in strides):
        raise ValueError("not a stride")
    low, high = _storage.extent(shape, strides)
    low, high = (offset + low * unit, offset + high * unit + itemsize) if 0 not in shape else (offset, offset)
    if low < 0 or high > block.nbytes:
        raise ValueError("outside its block")
    return block.start + offset, shape, strides
