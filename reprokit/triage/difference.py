"""The first operation at which two attempts part: the same up to there, and another value, or another way, from there
on.

Its inputs were equal bit for bit, so what differs comes from the operation itself, or from a number that the step got
from outside of torch and handed to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reprokit.step.outcome import Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Between two attempts."""

    between: tuple[str, str]  # what each was
    operation: str | None  # with module and place; None: all operations that both ran made the same
    index: int  # how many were equal before it
    same_way: bool  # the same operation made another value; else another operation came

    def to_json(self) -> dict[str, Any]:
        return {
            "between": list(self.between),
            "operation": self.operation,
            "index": self.index,
            "same_way": self.same_way,
        }

    def sentence(self) -> str:
        pair = " and ".join(self.between)
        same = f"{self.index} operation{'s' * (self.index != 1)}"
        if self.operation is None:
            return f"{pair}: all {same} make the same values, so state outside of tensors decides"
        what = "makes another value" if self.same_way else "is where another operation runs"
        return f"{pair} part after {same} with equal values: {self.operation} {what}"


def difference(one: Outcome, other: Outcome, between: tuple[str, str]) -> Difference | None:
    """None where one of them told no operations: it hung, died, or an older version ran it."""
    if not one.operations or not other.operations:
        return None
    for i, ((name, made), (other_name, other_made)) in enumerate(zip(one.operations, other.operations)):
        if (name, made) != (other_name, other_made):
            return Difference(between=between, operation=name, index=i, same_way=name == other_name)
    shorter = min(len(one.operations), len(other.operations))
    longer = max(one.operations, other.operations, key=len)
    next_one = longer[shorter][0] if len(longer) > shorter else None
    return Difference(between=between, operation=next_one, index=shorter, same_way=False)
