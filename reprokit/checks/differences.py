"""Where two data differ first, and in how many places: nested containers, tensors, arrays, texts, numbers.

The order is that of the data: keys as the expected mapping has them, elements by row. NaN differs from everything,
itself included, and is told apart, since what holds a NaN answers no question about equality. Keys, and elements of
sets, are paired by their hash, which takes True for 1 and a NaN for itself; each pair is then compared as all else is.
How numbers are compared is the caller's: see `equal`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from numbers import Number
from typing import Any, Protocol

from reprokit.checks.containers import attributes, first_nan, first_true, is_nan, is_sequence, written
from reprokit.checks.data import array, dtype, is_array, is_tensor, text
from reprokit.errors import BadInput

AROUND = 20  # characters of a text on either side of where it differs


class Judge(Protocol):
    """How numbers are compared."""

    strict: bool  # the kind of container, of number and the dtype count as well

    def differ(self, got: Any, expected: Any, dtypes: tuple[str, str]) -> Any:
        """Where NumPy arrays of one shape differ, as a mask. NaN differs. Python's numbers that NumPy lacks (integers
        beyond 64 bits, fractions) come alone, as objects in arrays of no dimensions."""


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

    def alone(self, where: str, got: str, expected: str, count: int = 1) -> None:
        """What only one of the two has."""
        self.n += count
        self.miss(where, got, expected, count)


def compare(name: str, got: object, expected: object, judge: Judge) -> Found:
    """Raises BadInput for what cannot be compared."""
    walk = _Walk(name=name, judge=judge)
    try:
        walk.both(got, expected, "")
        walk.found.nan = first_nan(name, got) or first_nan(name, expected)
    except RecursionError:
        raise BadInput(f"{name}: it contains itself, or is nested too deep to compare; compare its parts") from None
    return walk.found


@dataclass(kw_only=True, slots=True)
class _Walk:
    name: str
    judge: Judge
    found: Found = field(default_factory=Found)

    def both(self, got: Any, expected: Any, place: str) -> None:
        if is_array(got) or is_array(expected):
            self._arrays(got, expected, place)
        elif isinstance(expected, Mapping) and isinstance(got, Mapping):
            self._named(got, expected, lambda key: f"{place}[{text(key)}]")
        elif is_sequence(expected) and is_sequence(got) and self._one_kind(got, expected):
            self._sequences(got, expected, place)
        elif isinstance(expected, Set) and isinstance(got, Set) and self._one_kind(got, expected):
            self._sets(got, expected, place)
        elif type(got) is type(expected) and (held := attributes(expected)) is not None:
            self._named(attributes(got) or {}, held, lambda key: f"{place}.{key}")
        elif isinstance(expected, str | bytes) and type(got) is type(expected):
            self._texts(got, expected, place)
        else:
            self._leaves(got, expected, place)

    def _one_kind(self, got: object, expected: object) -> bool:
        return not self.judge.strict or _kind(got) is _kind(expected)

    def _named(self, got: Mapping[Any, Any], expected: Mapping[Any, Any], place: Callable[[Any], str]) -> None:
        theirs, paired = {key: key for key in got}, set()
        for key, value in expected.items():
            if key in theirs and self._alike(theirs[key], key):
                paired.add(key)
                self.both(got[key], value, place(key))
            else:
                self.found.alone(place(key), "nothing", text(value))
        for key, value in got.items():
            if key not in paired:
                self.found.alone(place(key), text(value), "nothing")

    def _sequences(self, got: Sequence[Any], expected: Sequence[Any], place: str) -> None:
        for index, (one, other) in enumerate(zip(got, expected)):
            self.both(one, other, f"{place}[{index}]")
        common = min(len(got), len(expected))
        if more := max(len(got), len(expected)) - common:
            one, other = (
                f"{text(side[common])} (of {len(side)})" if len(side) > common else "its end"
                for side in (got, expected)
            )
            self.found.alone(f"{place}[{common}]", one, other, count=more)

    def _sets(self, got: Set[Any], expected: Set[Any], place: str) -> None:
        self.found.n += 1
        theirs = {one: one for one in got}
        paired = (one in theirs and self._alike(theirs[one], one) for one in expected)
        if len(got) != len(expected) or not all(paired):
            self.found.miss(place, text(got), text(expected))

    def _alike(self, one: Any, other: Any) -> bool:
        """Whether two that are equal by hash are, as all else is compared."""
        if type(one) is type(other) is str:
            return True
        apart = _Walk(name=self.name, judge=self.judge)
        apart.both(one, other, "")
        return not apart.found.differ

    def _texts(self, got: Any, expected: Any, place: str) -> None:
        self.found.n += 1
        if got == expected:
            return
        pairs = enumerate(zip(got, expected))
        at = next((i for i, (one, other) in pairs if one != other), min(len(got), len(expected)))
        around = slice(max(0, at - AROUND), at + AROUND)
        self.found.miss(f"{place}[{at}]", text(got[around]), text(expected[around]))

    def _arrays(self, got: Any, expected: Any, place: str) -> None:
        if self.judge.strict and (is_array(got), is_tensor(got)) != (is_array(expected), is_tensor(expected)):
            return self.found.alone(place, f"a {_type(got)}", f"a {_type(expected)}")
        one, other = (self._as_array(side) for side in (got, expected))
        dtypes = tuple(dtype(side if is_array(side) else plain) for side, plain in ((got, one), (expected, other)))
        if one.shape != other.shape or (self.judge.strict and dtypes[0] != dtypes[1]):
            return self.found.alone(place, f"shape {one.shape}, {dtypes[0]}", f"shape {other.shape}, {dtypes[1]}")
        if "O" in (one.dtype.kind, other.dtype.kind):
            return self.both(one.tolist(), other.tolist(), place)
        self.found.n += one.size
        mask = self._differ(one, other, (dtypes[0], dtypes[1]))
        if count := int(mask.sum()):
            at = first_true(mask)
            self.found.miss(f"{place}{written(at)}", text(one[at]), text(other[at]), count)

    def _as_array(self, side: Any) -> Any:
        import numpy as np

        try:
            return np.asarray(array(self.name, side))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            why = str(error).partition("\n")[0]
            raise BadInput(f"{self.name}: what stands beside an array is none ({why}); give both as arrays") from None

    def _differ(self, one: Any, other: Any, dtypes: tuple[str, str]) -> Any:
        import numpy as np

        try:
            return np.asarray(self.judge.differ(one, other, dtypes))
        except TypeError:
            raise BadInput(f"{self.name}: {dtypes[0]} and {dtypes[1]} cannot be compared; give both as one") from None

    def _leaves(self, got: Any, expected: Any, place: str) -> None:
        self.found.n += 1
        if is_nan(got) or is_nan(expected) or not self._same(got, expected, place):
            unlike = type(got) is not type(expected) and text(got) == text(expected)
            one, other = (f"{text(side)} ({_type(side)})" if unlike else text(side) for side in (got, expected))
            self.found.miss(place, one, other)

    def _same(self, got: Any, expected: Any, place: str) -> bool:
        try:
            if not _are_numbers(got, expected):
                return bool(got == expected) and (type(got) is type(expected) or not self.judge.strict)
            return bool(got == expected) if self.judge.strict else not self._numbers_differ(got, expected)
        except Exception as error:
            raise BadInput(
                f"{self.name}: {place or 'value'}: {_type(got)} and {_type(expected)} do not say whether they are "
                f"equal ({type(error).__name__}); compare what they hold"
            ) from None

    def _numbers_differ(self, got: Any, expected: Any) -> bool:
        import numpy as np

        one, other = np.asarray(got), np.asarray(expected)
        return bool(self._differ(one, other, (dtype(one), dtype(other))))


def _kind(value: object) -> type:
    return tuple if isinstance(value, tuple) else list if isinstance(value, list) else type(value)


def _type(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _are_numbers(got: object, expected: object) -> bool:
    """A bool is no number: True beside 1 is a mistake more often than not."""
    numpy = sys.modules.get("numpy")
    truths = bool if numpy is None else (bool, numpy.bool_)
    return all(isinstance(side, Number) and not isinstance(side, truths) for side in (got, expected))
