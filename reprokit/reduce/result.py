"""A reduction: what is left, what is guilty, and what that was derived from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit.failure import Signature, Symptom
from reprokit.reduce.asking import Indices
from reprokit.step.case import Case, Variant


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Of the whole batch: its length, and what came of it."""

    size: int
    kept: Indices  # in the smallest case
    healed: Indices = ()  # of the kept ones: there for the shape alone, with the donor's content
    guilty: Indices | None = None  # healing each of them alone heals the whole batch, or, if `together`, healing all of
    # them; None: it was not asked, since the search ended before, or nothing healthy can stand in for the batch
    together: bool = False

    def to_json(self) -> dict[str, Any]:
        lists = {"kept": list(self.kept), "healed": list(self.healed)}
        guilty = None if self.guilty is None else list(self.guilty)
        return {"size": self.size, **lists, "guilty": guilty, "together": self.together}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """After each evaluation."""

    phase: str  # isolation, rates, search, closing, groups, inside, guilty, values, findings, confirm, final
    axis: str  # at work on this one; "" where on none
    kept: Mapping[str, int]  # axis -> elements left so far
    calls: int
    step_equivalents: float
    status: str  # of the evaluation
    rate: float | None = None  # of failures of the whole case, where it comes and goes
    left: float | None = None  # seconds, estimated from the questions that the remaining axes take at most


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
    donor: str | None  # "captured" or "generated": healthy content that passes in the whole batch's shape
    certificate: Mapping[str, Any]  # plain data: every test behind these claims
    complete: bool = True  # False: the budget ended, or somebody wanted no more
    groups: tuple[Mapping[str, Indices], ...] = ()  # independent minima, the first included
    regions: tuple[Mapping[str, Any], ...] = ()
    rate: Mapping[str, Any] | None = None  # of case and donor, where the failure comes and goes
    depends_on_rng: bool = False
    trail: tuple[tuple[int, float], ...] = ()  # (calls, share of the whole case's elements), each time it shrank
    variant: Variant = field(default_factory=Variant)  # with all of this the case still fails
    config: Mapping[str, Any] | None = None  # against a baseline: the differences, and those that are needed
    verified: Mapping[str, Any] | None = None  # `replay`'s JSON for the case, each attempt in a fresh place
    path: Path | None = None  # of the incident made from it
    synthetic: Mapping[str, Any] | None = None  # its twin from generated data, where one was asked for
    pictures: tuple[Path, ...] = ()
    untried: tuple[str, ...] = ()  # entries of text, whose content was not asked about
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "signature": self.signature.to_json(),
            "rewind": self.case.rewind,
            "axes": {name: axis.to_json() for name, axis in self.axes.items()},
            "regions": [dict(region) for region in self.regions],
            "groups": [{axis: list(kept) for axis, kept in group.items()} for group in self.groups],
            "batch_guilty": self.batch_guilty,
            "donor": self.donor,
            "values": dict(self.case.values),
            "variant": self.variant.to_json(),
            "config": None if self.config is None else dict(self.config),
            "rate": None if self.rate is None else dict(self.rate),
            "depends_on_rng": self.depends_on_rng,
            "calls": self.calls,
            "step_equivalents": round(self.step_equivalents, 3),
            "seconds": round(self.seconds, 3),
            "one_minimal": self.one_minimal,
            "complete": self.complete,
            "isolation": self.isolation,
            "trail": [list(point) for point in self.trail],
            "untried": list(self.untried),
            "notes": list(self.notes),
            "verified": None if self.verified is None else dict(self.verified),
            "path": None if self.path is None else str(self.path),
            "synthetic": None if self.synthetic is None else dict(self.synthetic),
            "pictures": list(map(str, self.pictures)),
        }
