"""Values without parts, that JSON lacks: each has a tag, a way out and a way back.

Strict JSON has no NaN, readers of it disagree on integers above 2**53, and few keep a lone surrogate. What is safe
there is written as itself; everything else is an object whose key "$" is the tag.
"""

from __future__ import annotations

import base64
import pathlib
import re
from collections.abc import Callable, Collection, Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch

EXACT = 2**53  # integers up to here are the same number to every reader of JSON; others are written in hexadecimal

Node = Mapping[str, Any]

_SURROGATE = re.compile("[\ud800-\udfff]")
_NUMBER_KINDS = frozenset("biufcmM")  # bool, numbers, times
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
_PATHS = {
    kind.__name__: kind
    for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath, pathlib.WindowsPath)
}


def clean(text: str) -> bool:
    """Whether JSON keeps it. Two lone surrogates would come back as one character, and strict readers refuse one."""
    return text.isascii() or not _SURROGATE.search(text)


def flat(values: Collection[Any]) -> bool:
    """Whether JSON holds these as they are; without a loop in Python, for lists of a million labels."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return bool(min(values) >= -EXACT and max(values) <= EXACT)
    return (kinds == {float} and all(map(isfinite, values))) or (kinds == {str} and clean("".join(values)))


def is_number(value: object) -> bool:
    """A scalar of NumPy that is plain memory. Their text and bytes are leaves by their exact types."""
    return isinstance(value, np.generic) and value.dtype.kind in _NUMBER_KINDS


def encode_number(value: np.generic) -> Node:
    return {"$": "scalar", "dtype": value.dtype.str, "hex": value.tobytes().hex()}


def _text(text: str) -> Any:
    return text if clean(text) else {"$": "str", "base64": _base64(text.encode("utf-8", "surrogatepass"))}


def _float(number: float) -> Any:
    return number if isfinite(number) else {"$": "float", "value": str(number)}


def _path(path: pathlib.PurePath) -> Node:
    return {"$": "path", "kind": type(path).__name__, "value": _text(str(path))}


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


ENCODE: dict[type, Callable[[Any], Any]] = {
    str: _text,
    int: lambda number: number if -EXACT <= number <= EXACT else {"$": "int", "hex": hex(number)},
    float: _float,
    complex: lambda number: {"$": "complex", "parts": [_float(number.real), _float(number.imag)]},
    bytes: lambda raw: {"$": "bytes", "base64": _base64(raw)},
    bytearray: lambda raw: {"$": "bytearray", "base64": _base64(raw)},
    torch.Size: lambda size: {"$": "size", "items": list(size)},
    torch.dtype: lambda dtype: {"$": "dtype", "value": str(dtype).removeprefix("torch.")},
    torch.device: lambda device: {"$": "device", "value": str(device)},
    np.str_: lambda text: {"$": "numpy_str", "value": _text(str(text))},
    np.bytes_: lambda raw: {"$": "numpy_bytes", "base64": _base64(raw)},
    **dict.fromkeys(_PATHS.values(), _path),
}


def _decoded(node: Any) -> Any:
    return DECODE[node["$"]](node) if isinstance(node, dict) else node


def _raw(node: Node) -> bytes:
    return base64.b64decode(node["base64"], validate=True)


def _decoded_number(node: Node) -> np.generic:
    dtype, raw = np.dtype(str(node["dtype"])), bytes.fromhex(node["hex"])
    if dtype.kind not in _NUMBER_KINDS or dtype.itemsize != len(raw):
        raise ValueError("no number")
    return np.frombuffer(raw, dtype)[0]  # type: ignore[no-any-return]


def _decoded_path(node: Node) -> pathlib.PurePath:
    """A path of the other system comes back pure: this one cannot follow it."""
    kind, text = _PATHS[node["kind"]], _decoded(node["value"])
    try:
        return kind(text)
    except NotImplementedError:
        return _PATHS[f"Pure{node['kind']}"](text)


DECODE: dict[str, Callable[[Node], Any]] = {
    "str": lambda node: _raw(node).decode("utf-8", "surrogatepass"),
    "int": lambda node: int(node["hex"], 16),
    "float": lambda node: float(node["value"]),
    "complex": lambda node: complex(*map(_decoded, node["parts"])),
    "bytes": _raw,
    "bytearray": lambda node: bytearray(_raw(node)),
    "size": lambda node: torch.Size(node["items"]),
    "dtype": lambda node: _DTYPES[node["value"]],
    "device": lambda node: torch.device(node["value"]),
    "numpy_str": lambda node: np.str_(_decoded(node["value"])),
    "numpy_bytes": lambda node: np.bytes_(_raw(node)),
    "scalar": _decoded_number,
    "path": _decoded_path,
}
