"""A batch taken apart: its numbers, its texts, and the containers around them; and which numbers are structure.

Structure is what a twin keeps as it is: bools, integers that are all 0 or 1, and small integers of which there is one
for each sample, view or frame (labels, lengths, time indices). They say which positions count and how things belong
together, and a step has no other way to learn it; what is in a picture or a text is not in them. A mask that was drawn
from a picture shows an outline, which is why whoever makes a twin is told of every such entry. Identifiers are larger
than labels, and are not kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.layout import SHARED, Layout
from reprokit.reduce.patterns import Array

LABELS = 1024  # integers from here on may identify something, and are no labels
KINDS = 16  # distinct integers that still are labels or time indices
_RUNS = 10_000  # of structure that is written out: beyond them a recipe is no longer read by anybody
_NUMBERS: dict[type, str] = {bool: "bool", int: "int64", float: "float64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Leaf:
    """The numbers of one entry."""

    entry: str
    array: Array  # in logical order; of dtypes that NumPy lacks as float32
    form: Mapping[str, Any]  # kind, dtype, shape, and what else the entry is besides numbers
    structure: bool  # kept as it is


@dataclass(kw_only=True, slots=True)
class Content:
    """A batch taken apart."""

    leaves: list[Leaf] = field(default_factory=list)
    texts: dict[Any, int] = field(default_factory=dict)  # text, bytes or path -> the number of its name
    nest: Any = None


def take_apart(batch: Any, layout: Layout) -> Content:
    """Numbers, texts and containers of a batch. Raises BadInput for anything else."""
    content = Content()
    content.nest = _walk(batch, "", layout, content)
    return content


def _walk(node: Any, path: str, layout: Layout, content: Content) -> Any:
    def inside(key: object, child: Any) -> Any:
        return _walk(child, f"{path}.{key}" if path else str(key), layout, content)

    if node is None or node is tree.MISSING:
        return None
    if isinstance(node, str | bytes | PurePath):
        kind = "text" if isinstance(node, str) else "bytes" if isinstance(node, bytes) else "path"
        return {kind: content.texts.setdefault(node, len(content.texts))}
    if isinstance(node, np.ndarray) and node.dtype.kind in "US":
        names = [content.texts.setdefault(one, len(content.texts)) for one in node.reshape(-1).tolist()]
        return {"words": [list(node.shape), names]}
    if (found := _numbers(node)) is not None:
        array, form = found
        structure = _is_structure(array, layout.axes_of(path), form)
        content.leaves.append(Leaf(entry=path, array=array, form=form, structure=structure))
        return {"leaf": len(content.leaves) - 1}
    if isinstance(node, Mapping) and all(type(key) in (str, int) for key in node):
        return {"dict": [[key, inside(key, child)] for key, child in node.items()]}
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        children = [inside(key, child) for key, child in zip(node._fields, node)]
        return {"namedtuple": [type(node).__name__, list(node._fields), children]}
    if isinstance(node, list | tuple):
        kind = "list" if isinstance(node, list) else "tuple"
        return {kind: [inside(i, child) for i, child in enumerate(node)]}
    what = f"{path or 'the batch'}: a {type(node).__name__}"
    raise BadInput(f"{what} cannot be made from noise; leave it out of the batch, or make it tensors, numbers or text")


def _numbers(node: Any) -> tuple[Array, dict[str, Any]] | None:
    """Numbers in logical order, and their form; None where a node has none, or of a kind that cannot be made."""
    if isinstance(node, torch.Tensor):
        return _tensor(node)
    if isinstance(node, np.ndarray):
        order = _outermost_first([abs(stride) for stride in node.strides])
        plain = np.array(node, dtype=node.dtype.newbyteorder("="), order="C")
        form = {"kind": "array", "byteorder": node.dtype.byteorder, "order": order}
        known = plain.dtype.kind in "biuf" and plain.dtype.itemsize <= 8
        return (plain, _form(plain, str(plain.dtype), form)) if known else None
    if type(node) in _NUMBERS:
        return _python([node], "number", ())
    if isinstance(node, list | tuple) and node and not hasattr(node, "_fields"):
        return _python(list(node), "list" if isinstance(node, list) else "tuple", (len(node),))
    return None


def _tensor(tensor: torch.Tensor) -> tuple[Array, dict[str, Any]] | None:
    plain = tensor.detach()
    if plain.layout != torch.strided or plain.is_nested or plain.is_quantized or plain.is_complex():
        return None
    dtype = str(plain.dtype).removeprefix("torch.")
    order = _outermost_first(plain.stride())
    form = {"kind": "tensor", "device": str(plain.device), "requires_grad": tensor.requires_grad, "order": order}
    known = not plain.is_floating_point() or dtype in ("float64", "float32", "float16")
    array = (plain if known else plain.float()).cpu().contiguous().numpy()
    return array, _form(array, dtype, form)


def _outermost_first(strides: Sequence[int]) -> list[int]:
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def _python(values: list[Any], kind: str, shape: tuple[int, ...]) -> tuple[Array, dict[str, Any]] | None:
    types = set(map(type, values))
    if len(types) != 1 or (dtype := _NUMBERS.get(types.pop())) is None:
        return None
    try:
        array = np.array(values, dtype).reshape(shape)
    except OverflowError:
        return None
    return array, _form(array, dtype, {"kind": kind})


def _form(array: Array, dtype: str, form: Mapping[str, Any]) -> dict[str, Any]:
    return {**form, "dtype": dtype, "shape": list(array.shape)}


def _is_structure(array: Array, axes: tuple[str, ...], form: Mapping[str, Any]) -> bool:
    if array.dtype.kind == "f" or _runs_in(array) > _RUNS:
        return False
    if array.dtype.kind == "b" or bool(((array == 0) | (array == 1)).all()):
        return True
    one_each = all(axis in SHARED for axis in axes) and len(axes) == array.ndim
    small = not array.size or (int(array.max()) < LABELS and int(array.min()) > -LABELS)
    return one_each and small and form["dtype"] != "uint8" and len(np.unique(array)) <= KINDS


def _runs_in(array: Array) -> int:
    line = array.reshape(-1)
    return int((line[1:] != line[:-1]).sum()) + 1
