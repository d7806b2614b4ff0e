"""Whether two data are the same: element for element, or as near as their dtype can be.

`exact` asks for equal values of equal types; 0.0 and -0.0 are equal, NaN is not equal to itself. `close` asks for
|got - expected| <= atol + rtol * |expected|, with the defaults of torch.testing.assert_close for the coarser of the two
dtypes (the table in its documentation): the rounding of an operation or two, not of a training run. Python's numbers
have the types that NumPy gives them: int64, float64, complex128. Differences are taken in float64, where those of all
narrower types are exact, and those of numbers that NumPy lacks as fractions. Infinities are close only to themselves.
"""

from __future__ import annotations

from fractions import Fraction
from math import inf
from typing import Any

from reprokit.checks.asked import checked_name, number
from reprokit.checks.data import read, shown
from reprokit.checks.differences import Found, Judge, compare
from reprokit.checks.result import Answer, Result
from reprokit.errors import BadInput

_FLOAT32 = (1.3e-6, 1e-5)
TOLERANCES = {  # rtol, atol, as torch.testing.assert_close documents them; other types must be equal
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": _FLOAT32,
    "float64": (1e-7, 1e-7),
    "complex32": (1e-3, 1e-5),
    "complex64": _FLOAT32,
    "complex128": (1e-7, 1e-7),
}


def exact(name: str, got: object, expected: object) -> Result:
    """Equal values of equal types: tensors and arrays of any equal shape, numbers, texts, and containers of them.

    FAILED names the first place that differs, by row and by the order of the expected keys. UNANSWERED where either
    holds a NaN, in keys and sets too, and where there is nothing to compare. n: elements and leaves. Raises BadInput
    for what holds no values (meta, quantized, nested tensors), contains itself, or does not say whether it is equal.
    """
    found = compare(checked_name(name), got, expected, _Exact())
    advice = "look at both there first; if the new one is right, renew what is expected"
    return _result(name, f"{name} is what was expected, element for element", found, advice)


def close(name: str, got: object, expected: object, *, rtol: float | None = None, atol: float | None = None) -> Result:
    """|got - expected| <= atol + rtol * |expected|, in the unit of the values, element for element.

    Both tolerances are given, or neither, and each element then has those of its dtype (`TOLERANCES`). Types may
    differ, shapes may not; else as `exact`. Raises BadInput for what that does, and for a tolerance that is negative
    or not finite.
    """
    checked_name(name)
    if (rtol is None) != (atol is None):
        raise BadInput(f"{name}: one of rtol and atol is given; give both, or none for the defaults of the dtype")
    judge = _Close(None if rtol is None else (_tolerance(name, "rtol", rtol), _tolerance(name, "atol", atol)))
    found = compare(name, got, expected, judge)
    used = " or ".join(f"{a:g} + {r:g} * |expected|" for r, a in sorted(judge.used)) or "0"
    source = "as given" if rtol is not None else "by dtype"
    advice = (
        "compare dtype, flags (TF32, autocast) and device of both; widen rtol and atol only by what an fp64 run of "
        "the same shows to be rounding"
    )
    return _result(name, f"|{name} - expected| <= {used} (atol + rtol, {source})", found, advice, judge.largest)


def _tolerance(name: str, which: str, given: object) -> float:
    return number(name, which, given, "a tolerance is finite and not negative", allowed=lambda one: one >= 0)


def _result(name: str, condition: str, found: Found, advice: str, largest: float | None = None) -> Result:
    answer, observed = Answer.PASSED, f"all {found.n} agree"
    if found.differ:
        answer = Answer.FAILED
        observed = f"first mismatch at {found.where}: got {found.got}; {found.differ} of {found.n} differ"
    if found.nan:
        answer, advice = Answer.UNANSWERED, "find what made the NaN; while it is there nothing can be said of the two"
        observed += f"; NaN at {found.nan}, which equals nothing"
    if not found.n:
        answer, advice = Answer.UNANSWERED, "see why both are empty: what was to be compared was not made"
        observed = "there is nothing to compare"
    measured: dict[str, float] = {"compared": found.n, "differ": found.differ}
    if largest is not None and answer is not Answer.UNANSWERED:
        measured["largest_difference"] = largest
        observed += f"; largest difference {shown(largest)}"
    return Result(
        name=name,
        condition=condition,
        expected=f"{found.expected} at {found.where}" if found.differ else "no mismatch",
        observed=observed,
        n=found.n,
        unit="elements",
        answer=answer,
        next_step=advice,
        measured=measured,
    )


class _Exact(Judge):
    strict = True

    def differ(self, got: Any, expected: Any, dtypes: tuple[str, str]) -> Any:
        return got != expected


class _Close(Judge):
    strict = False

    def __init__(self, given: tuple[float, float] | None) -> None:
        self.given = given
        self.used: set[tuple[float, float]] = set()
        self.largest = 0.0

    def differ(self, got: Any, expected: Any, dtypes: tuple[str, str]) -> Any:
        import numpy as np

        kinds = {got.dtype.kind, expected.dtype.kind}
        if self.given and "O" in kinds:
            return self._apart(got.item(), expected.item(), *self.given)
        if not kinds <= set("iufc"):
            return got != expected
        rtol, atol = self.given or tolerance(*dtypes)
        self.used.add((rtol, atol))
        with np.errstate(invalid="ignore", over="ignore"):
            gap = _gap(got, expected)
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64  # an int8 of -128 has no size in int8
            size = np.abs(expected.astype(wide))
            within = (got == expected) | (np.isfinite(gap) & (gap <= atol + rtol * size))
        self.largest = max(self.largest, float(np.max(gap, initial=0.0, where=~np.isnan(gap))))
        return ~within

    def _apart(self, got: Any, expected: Any, rtol: float, atol: float) -> bool:
        """Of two numbers, one of which NumPy lacks."""
        self.used.add((rtol, atol))
        try:
            gap, size = abs(Fraction(got) - Fraction(expected)), abs(Fraction(expected))
        except (TypeError, OverflowError):  # complex, or infinite
            differ = bool(got != expected)
            self.largest = inf if differ else self.largest
            return differ
        known = read("gap", gap)
        self.largest = max(self.largest, inf if known is None else known)
        return gap > Fraction(atol) + Fraction(rtol) * size


def tolerance(*dtypes: str) -> tuple[float, float]:
    """rtol and atol for values of these types: those of the coarser."""
    pairs = [TOLERANCES.get(one, (0.0, 0.0)) for one in dtypes]
    return max(rtol for rtol, _ in pairs), max(atol for _, atol in pairs)


def _gap(got: Any, expected: Any) -> Any:
    """|got - expected|, of integers without rounding them first: two beyond 2**53 may be one float."""
    import numpy as np

    kinds = {got.dtype.kind, expected.dtype.kind}
    if kinds <= set("iu"):
        # a signed type beside uint64: what fits neither int64 nor uint64 on both sides is far apart in float64 as well
        wide = np.uint64 if "u" in kinds and not any((one < 0).any() for one in (got, expected)) else np.int64
        if any(wide is np.int64 and (one > np.iinfo(wide).max).any() for one in (got, expected)):
            return np.abs(got.astype(np.float64) - expected.astype(np.float64))
        one, other = got.astype(wide), expected.astype(wide)
        return (np.maximum(one, other).view(np.uint64) - np.minimum(one, other).view(np.uint64)).astype(np.float64)
    kind = np.complex128 if "c" in kinds else np.float64
    return np.abs(got.astype(kind) - expected.astype(kind))
