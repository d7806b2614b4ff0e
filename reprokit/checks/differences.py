"""Where two data differ first, and in how many places: nested containers, tensors, arrays, texts, numbers.

The order is that of the data: keys as the expected mapping has them, elements by row. NaN differs from everything,
itself included, and is told apart, since what holds a NaN answers no question about equality. How numbers are compared
is the caller's: see `equal`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass
from numbers import Number
from typing import Any, Protocol

from reprokit.checks.data import array, dtype, is_array, is_tensor
from reprokit.errors import BadInput

AROUND = 20  # characters of a text on either side of where it differs
LONGEST = 120  # characters of a value in a message


class Judge(Protocol):
    """How numbers are compared."""

    strict: bool  # the kind of container, of number and the dtype count as well

    def differ(self, got: Any, expected: Any, dtypes: tuple[str, str]) -> Any:
        """Where arrays of one shape differ, as a mask. NaN differs."""


@dataclass(kw_only=True, slots=True)
class Found:
    """What a walk through both has seen."""

    n: int = 0  # elements and leaves that were compared
    differ: int = 0
    where: str = ""  # the first that differ: "['x'][2, 3]"
    got: str = ""
    expected: str = ""
    nan: str = ""  # where the first NaN is

    def miss(self, where: str, got: str, expected: str, count: int = 1) -> None:
        if not self.differ:
            self.where, self.got, self.expected = where or "value", got, expected
        self.differ += count


def compare(name: str, got: object, expected: object, judge: Judge) -> Found:
    """Raises BadInput for what cannot be compared."""
    found = Found()
    try:
        _walk(name, got, expected, "", judge, found)
    except RecursionError:
        raise BadInput(f"{name}: it contains itself, or is nested too deep to compare; compare its parts") from None
    return found


def text(value: object) -> str:
    """As a message has it."""
    numpy = sys.modules.get("numpy")
    plain = str(value) if numpy is not None and isinstance(value, numpy.generic) else repr(value)
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]}..."


def _walk(name: str, got: Any, expected: Any, place: str, judge: Judge, found: Found) -> None:
    def deeper(one: Any, other: Any, key: str) -> None:
        _walk(name, one, other, f"{place}{key}", judge, found)

    if is_array(got) or is_array(expected):
        _arrays(name, got, expected, place, judge, found)
    elif isinstance(expected, Mapping) and isinstance(got, Mapping):
        _mappings(got, expected, place, deeper, found)
    elif _is_sequence(expected) and _is_sequence(got) and (_kind(got) is _kind(expected) or not judge.strict):
        _sequences(got, expected, place, deeper, found)
    elif is_dataclass(expected) and type(got) is type(expected) and not isinstance(expected, type):
        for one in fields(expected):
            deeper(getattr(got, one.name), getattr(expected, one.name), f".{one.name}")
    elif isinstance(expected, str | bytes) and type(got) is type(expected):
        _texts(got, expected, place, found)
    else:
        _leaves(name, got, expected, place, judge, found)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray)


def _kind(value: object) -> type:
    return tuple if isinstance(value, tuple) else list if isinstance(value, list) else type(value)


def _mappings(
    got: Mapping[Any, Any], expected: Mapping[Any, Any], place: str, deeper: Callable[..., None], found: Found
) -> None:
    for key, value in expected.items():
        if key in got:
            deeper(got[key], value, f"[{key!r}]")
        else:
            found.n += 1
            found.miss(f"{place}[{key!r}]", "nothing", text(value))
    for key, value in got.items():
        if key not in expected:
            found.n += 1
            found.miss(f"{place}[{key!r}]", text(value), "nothing")


def _sequences(
    got: Sequence[Any], expected: Sequence[Any], place: str, deeper: Callable[..., None], found: Found
) -> None:
    for index, (one, other) in enumerate(zip(got, expected)):
        deeper(one, other, f"[{index}]")
    common = min(len(got), len(expected))
    if more := max(len(got), len(expected)) - common:
        one, other = (
            f"{text(side[common])} (of {len(side)})" if len(side) > common else "its end" for side in (got, expected)
        )
        found.n += more
        found.miss(f"{place}[{common}]", one, other, count=more)


def _texts(got: Any, expected: Any, place: str, found: Found) -> None:
    found.n += 1
    if got == expected:
        return
    at = next((i for i, (one, other) in enumerate(zip(got, expected)) if one != other), min(len(got), len(expected)))
    around = slice(max(0, at - AROUND), at + AROUND)
    found.miss(f"{place}[{at}]", text(got[around]), text(expected[around]))


def _arrays(name: str, got: Any, expected: Any, place: str, judge: Judge, found: Found) -> None:
    import numpy as np

    if judge.strict and (is_array(got), is_tensor(got)) != (is_array(expected), is_tensor(expected)):
        found.n += 1
        return found.miss(place, f"a {_type(got)}", f"a {_type(expected)}")
    dtypes = tuple(dtype(side) if is_array(side) else "float64" for side in (got, expected))
    try:
        one, other = (np.asarray(array(name, side)) for side in (got, expected))
    except ValueError as error:
        raise BadInput(f"{name}: what stands beside an array is none ({error}); give both as arrays") from None
    if one.shape != other.shape or (judge.strict and dtypes[0] != dtypes[1]):
        found.n += 1
        return found.miss(place, f"shape {one.shape}, {dtypes[0]}", f"shape {other.shape}, {dtypes[1]}")
    if "O" in (one.dtype.kind, other.dtype.kind):
        return _walk(name, one.tolist(), other.tolist(), place, judge, found)
    found.n += one.size
    mask = np.asarray(judge.differ(one, other, (dtypes[0], dtypes[1])))
    _nan((one != one) | (other != other), place, found)
    if count := int(mask.sum()):
        index = tuple(int(i) for i in np.argwhere(mask)[0])
        found.miss(f"{place}{_index(index)}", text(one[index]), text(other[index]), count)


def _nan(mask: Any, place: str, found: Found) -> None:
    import numpy as np

    if not found.nan and mask.any():
        found.nan = f"{place}{_index(tuple(int(i) for i in np.argwhere(mask)[0]))}" or "value"


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _leaves(name: str, got: Any, expected: Any, place: str, judge: Judge, found: Found) -> None:
    found.n += 1
    if not found.nan and any(_is_nan(side) for side in (got, expected)):
        found.nan = place or "value"
    if _are_numbers(got, expected):
        same = got == expected if judge.strict else not _numbers_differ(got, expected, judge)
    else:
        try:
            same = bool(got == expected) and (type(got) is type(expected) or not judge.strict)
        except Exception as error:
            raise BadInput(
                f"{name}: {place or 'value'}: {_type(got)} and {_type(expected)} do not say whether they are equal "
                f"({type(error).__name__}); compare what they hold"
            ) from None
    if not same or found.nan == (place or "value"):
        unlike = type(got) is not type(expected) and text(got) == text(expected)
        one, other = (f"{text(side)} ({_type(side)})" if unlike else text(side) for side in (got, expected))
        found.miss(place, one, other)


def _is_nan(value: Any) -> bool:
    """A float that is NaN, and a set that holds one: `nan in {nan}` is true of the same object."""
    if isinstance(value, Set):
        return any(_is_nan(one) for one in value)
    return isinstance(value, Number) and bool(value != value)


def _are_numbers(got: object, expected: object) -> bool:
    """A bool is no number: True beside 1 is a mistake more often than not."""
    numpy = sys.modules.get("numpy")
    truths = bool if numpy is None else (bool, numpy.bool_)
    return all(isinstance(side, Number) and not isinstance(side, truths) for side in (got, expected))


def _numbers_differ(got: Any, expected: Any, judge: Judge) -> bool:
    import numpy as np

    one, other = np.asarray(got), np.asarray(expected)
    if "O" in (one.dtype.kind, other.dtype.kind):  # integers beyond 64 bits, fractions
        return bool(got != expected)
    kinds = tuple(dtype(side) if hasattr(side, "dtype") else "float64" for side in (got, expected))
    return bool(judge.differ(one, other, (kinds[0], kinds[1])))
