"""Where failing and passing attempts part, module by module in the order in which they ran.

The first module whose output tells the two groups apart is the nearest to the cause. It does where each group has one
value of its own; where values that are not finite are in all failing attempts and in no passing one; where one group
does not come to it; or where some statistic's ranges do not overlap. The last can be chance: of two groups without any
difference, the ranges of one number do not overlap in 2 of C(n, k) cases, and each number that is looked at is one more
chance. What comes by chance in more than 5% of cases is not named. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import comb, isfinite
from typing import Any

from reprokit.replay.verdict import ALPHA

STATISTICS = ("nonfinite", "min", "max", "mean", "std")
_MOST = 20_000  # outputs of one attempt that are compared

Span = tuple[float, float]
Output = Mapping[str, Any]
Outputs = Sequence[Output]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Where the groups part."""

    how: str
    """values, nonfinite, ranges; differs: in one attempt of each, which tells less; stops, goes_on: failing attempts do
    not come to it, or passing ones do not."""
    module: str
    call: int
    failing: Mapping[str, Span] = field(default_factory=dict)  # statistic -> its range, where they do not overlap
    passing: Mapping[str, Span] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "how": self.how,
            "module": self.module,
            "call": self.call,
            "failing": {name: list(span) for name, span in self.failing.items()},
            "passing": {name: list(span) for name, span in self.passing.items()},
        }

    def sentence(self) -> str:
        place = f"`{self.module or 'the whole'}`" + (f" (call {self.call})" if self.call > 1 else "")
        if self.how == "stops":
            return f"failing attempts end before {place} has run, which passing ones go through"
        if self.how == "goes_on":
            return f"{place} runs in failing attempts alone"
        told = [f"{name} {said(self.failing[name])} against {said(self.passing[name])}" for name in self.failing]
        values = f": {', '.join(told)}" if told else ""
        if self.how == "differs":
            return f"the first module whose output differs is {place}{values}; one attempt of each may differ by chance"
        return f"the first module whose output tells failing from passing attempts is {place}{values}"


def outputs(evidence: Mapping[str, Any]) -> list[Output] | None:
    """Those that are told as they are told; None where nothing is. Anybody's code may have written it."""
    found = evidence.get("modules")
    if not isinstance(found, list):
        return None
    return [one for one in found[:_MOST] if _is_output(one)]


def _is_output(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and all(isinstance(one.get(name), str) for name in ("module", "hash"))
        and all(type(one.get(name)) is int for name in ("call", "output"))
        and all(one.get(name) is None or is_number(one[name]) for name in STATISTICS)
    )


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def parted(failing: Sequence[Outputs], passing: Sequence[Outputs]) -> tuple[Part | None, str | None, int]:
    """Where they part, where values begin to vary, and how many outputs were compared."""
    if not failing or not passing:
        return None, None, 0
    varies: str | None = None
    most = max(map(len, [*failing, *passing]))
    for i in range(most):
        fails = [one[i] if i < len(one) else None for one in failing]
        passes = [one[i] if i < len(one) else None for one in passing]
        if part := _at(fails, passes, most):
            return part, varies, i + 1
        if varies is None and len({_value(one) for one in (*fails, *passes)}) > 1:
            varies = next(one["module"] for one in (*passes, *fails) if one)
    return None, varies, most


def _at(fails: Sequence[Output | None], passes: Sequence[Output | None], looked_at: int) -> Part | None:
    """Whether they part at one place in the order of outputs. looked_at: how many places there are."""
    there = [one for one in (*passes, *fails) if one]
    part = Part(how="values", module=there[0]["module"], call=there[0]["call"])
    if not any(fails) and all(passes):
        return replace(part, how="stops")
    if not any(passes) and all(fails):
        return replace(part, how="goes_on")
    if not all(fails) or not all(passes):
        return None
    sides = _spans(fails, passes)
    apart = {name: spans for name, spans in sides.items() if is_apart(*spans)}
    told = [{name: spans[side] for name, spans in apart.items()} for side in (0, 1)]
    part = replace(part, failing=told[0], passing=told[1])
    values = [{_value(one) for one in group} for group in (fails, passes)]
    if not values[0] & values[1] and len(values[0]) == len(values[1]) == 1:
        return part if len(fails) + len(passes) > 2 else replace(part, how="differs")
    bad = sides.get("nonfinite")
    if bad and bad[0][0] > 0 and bad[1][1] == 0:
        return replace(part, how="nonfinite")
    if apart and least_chance(len(fails), len(passes), looked_at * len(STATISTICS)) <= ALPHA:
        return replace(part, how="ranges")
    return None


def _value(output: Output | None) -> tuple[Any, ...]:
    return (output["module"], output["call"], output["output"], output["hash"]) if output else ()


def _spans(fails: Sequence[Output | None], passes: Sequence[Output | None]) -> dict[str, tuple[Span, Span]]:
    """Of each statistic that all of them have."""
    found = {}
    for name in STATISTICS:
        sides = [[one[name] for one in group if one] for group in (fails, passes)]
        if all(value is not None for side in sides for value in side):
            found[name] = (span_of(sides[0]), span_of(sides[1]))
    return found


def span_of(values: Sequence[float]) -> Span:
    return float(min(values)), float(max(values))


def is_apart(one: Span, other: Span) -> bool:
    return one[1] < other[0] or other[1] < one[0]


def least_chance(failing: int, passing: int, numbers: int) -> float:
    """That the ranges of at least one of so many numbers do not overlap, where nothing differs; an upper bound."""
    return min(1.0, numbers * 2 / comb(failing + passing, failing)) if failing and passing else 1.0


def said(span: Span) -> str:
    low, high = (f"{value:.4g}" for value in span)
    return low if low == high else f"{low} to {high}"
