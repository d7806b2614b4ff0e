"""A reduction: what is left, what is guilty, and what that was derived from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit.failure import Signature, Symptom
from reprokit.reduce.moves import Indices
from reprokit.step.case import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Of the whole batch: its length, and what came of it."""

    size: int
    kept: Indices  # in the smallest case
    healed: Indices = ()  # of the kept ones: there for the shape alone, with the donor's content
    guilty: Indices = ()  # healing each of them alone heals the whole batch, or, if `together`, healing all of them
    together: bool = False

    def to_json(self) -> dict[str, Any]:
        lists = {"kept": list(self.kept), "healed": list(self.healed), "guilty": list(self.guilty)}
        return {"size": self.size, **lists, "together": self.together}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """After each evaluation."""

    phase: str  # isolation, search, closing, guilty, final
    axis: str  # at work on this one; "" where on none
    kept: Mapping[str, int]  # axis -> elements left so far
    calls: int
    step_equivalents: float
    status: str  # of the evaluation


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """The smallest case found. `verified` and `path` are filled in by who replays and publishes it."""

    signature: Signature
    axes: Mapping[str, Axis]
    batch_guilty: bool | None  # False: the donor fails as well; None: no healthy donor to tell
    calls: int
    step_equivalents: float  # whole steps of the whole batch
    seconds: float
    one_minimal: bool
    isolation: str
    case: Case
    symptoms: tuple[Symptom, ...]  # of the reduced case, run to its end
    fingerprint: Mapping[str, str]  # of the same run
    donor_admitted: bool  # its content passes in the whole batch's shape
    certificate: Mapping[str, Any]  # plain data: every test behind these claims
    groups: tuple[Mapping[str, Indices], ...] = ()  # independent minima
    regions: tuple[Any, ...] = ()
    verified: Mapping[str, Any] | None = None  # `replay`'s JSON for the case, each attempt in a fresh place
    path: Path | None = None  # of the incident made from it

    def to_json(self) -> dict[str, Any]:
        return {
            "signature": self.signature.to_json(),
            "axes": {name: axis.to_json() for name, axis in self.axes.items()},
            "regions": list(self.regions),
            "groups": [{axis: list(kept) for axis, kept in group.items()} for group in self.groups],
            "batch_guilty": self.batch_guilty,
            "calls": self.calls,
            "step_equivalents": round(self.step_equivalents, 3),
            "seconds": round(self.seconds, 3),
            "one_minimal": self.one_minimal,
            "isolation": self.isolation,
            "verified": None if self.verified is None else dict(self.verified),
            "path": None if self.path is None else str(self.path),
        }
