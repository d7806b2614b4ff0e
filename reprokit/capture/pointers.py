"""A batch without its content: the names, paths and numbers by which its samples can be found again.

Kept is what is small and says which sample it was: text, numbers, paths, lists of them, and tensors of whole numbers
with one axis at most, into which loaders collate ids and labels. Pixels and encoded files are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from reprokit.tree import Packed

FILE = "pointers"  # in place of `batch`, in an incident's folder of a rank
_CONTENT = ("tensor", "sparse", "array", "bytes", "bytearray", "numpy_bytes")
_IDS = ("int32", "int64", "<i4", "<i8", "uint32", "uint64", "<u4", "<u8")  # a line of smaller ones may be a file
_MISSING = {"$": "missing"}


def of(batch: Packed) -> Packed:
    """The same batch with MISSING in the place of content."""
    data = _stripped(batch.data)
    used = set(_blocks(data))
    return replace(batch, data=data, blocks=tuple(block for block in batch.blocks if block.name in used))


def _stripped(node: Any) -> Any:
    if isinstance(node, list):
        return [_stripped(item) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("$") in _CONTENT:
        return node if _is_id(node) else _MISSING
    return {key: _stripped(value) for key, value in node.items()}


def _is_id(node: Mapping[str, Any]) -> bool:
    return node["$"] in ("tensor", "array") and node["dtype"] in _IDS and len(node["shape"]) <= 1


def _blocks(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _blocks(item)
    elif isinstance(node, dict):
        if node.get("$") in _CONTENT and "in" in node:
            yield node["in"]
        elif "$" not in node or node["$"] not in _CONTENT:
            for value in node.values():
                yield from _blocks(value)
