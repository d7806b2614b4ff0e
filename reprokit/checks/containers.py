"""What holds parts, and where the first NaN among them is.

Python's containers take an object for equal to itself before they ask it: `nan in {nan}` and `[nan] == [nan]` are true
of one and the same NaN. So NaN is looked for by itself, in keys and in elements of sets as well. Objects of other
classes answer by their own ==: what they hold is not looked into.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from decimal import Decimal
from numbers import Number
from types import SimpleNamespace
from typing import Any

from reprokit.checks.data import array, is_array, text

_NEVER_NAN = (str, bytes, bytearray, int, type(None))  # which most data are; bools are ints


def first_nan(name: str, value: Any, place: str = "") -> str:
    """As one would write it: "['x'][2, 3]", or "value" for the whole; empty if there is none."""
    if isinstance(value, _NEVER_NAN):
        return ""
    if is_array(value):
        return _in_array(name, value, place)
    if is_nan(value):
        return place or "value"
    return next(filter(None, (first_nan(name, part, f"{place}{key}") for key, part in _parts(value))), "")


def is_nan(value: Any) -> bool:
    """A number that is not equal to itself, of any kind, or a date that is none."""
    if isinstance(value, Decimal):
        return value.is_nan()  # a signalling one refuses to be compared
    numpy = sys.modules.get("numpy")
    scalar = numpy is not None and isinstance(value, numpy.generic) and not isinstance(value, numpy.void)
    return (scalar or isinstance(value, Number)) and bool(value != value)


def is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def attributes(value: object) -> dict[str, Any] | None:
    """Of what compares by them: dataclasses and namespaces. None for all else."""
    if is_dataclass(value) and not isinstance(value, type):
        return {one.name: getattr(value, one.name) for one in fields(value) if hasattr(value, one.name)}
    argparse = sys.modules.get("argparse")
    namespaces = (SimpleNamespace,) if argparse is None else (SimpleNamespace, argparse.Namespace)
    return dict(vars(value)) if isinstance(value, namespaces) else None


def first_true(mask: Any) -> tuple[int, ...]:
    """Its index; a mask of no dimensions has an empty one."""
    import numpy as np

    return tuple(int(one) for one in np.argwhere(mask)[0])


def written(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Each with how one would write that it is taken; an element of a set has no place of its own."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from ((f"[{text(key)}]", one) for one in (key, part))
    elif isinstance(value, Set):
        yield from (("", part) for part in value)
    elif is_sequence(value):
        yield from ((f"[{index}]", part) for index, part in enumerate(value))
    else:
        yield from ((f".{name}", part) for name, part in (attributes(value) or {}).items())


def _in_array(name: str, value: Any, place: str) -> str:
    import numpy as np

    plain = np.asarray(array(name, value))
    if plain.dtype.kind == "O":
        return first_nan(name, plain.tolist(), place)
    if plain.dtype.kind in "biuSU":
        return ""
    mask = plain != plain
    return f"{place}{written(first_true(mask))}" or "value" if mask.any() else ""
