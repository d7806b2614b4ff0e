"""A case: an incident, plus what to change before the step runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Cell = Mapping[str, tuple[int, ...]]
"""Indices per axis; a tensor is touched where all of them meet. An empty cell is the whole batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A named change of how the step runs. The default changes nothing."""

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # dotted key -> value, before `build`
    env: Mapping[str, str] = field(default_factory=dict)  # set before the interpreter starts: fresh processes only
    flags: Mapping[str, Any] = field(default_factory=dict)  # over the captured flags, by the names of flags.json


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """An incident plus what to change. Indices are those of the incident's whole batch, also after a drop."""

    incident: Path
    content: Literal["batch", "donor"] = "batch"  # donor: the donor as it was captured, with its own shape
    keep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # axis -> indices kept; the rest is dropped
    heal: tuple[Cell, ...] = ()  # cells that get the donor's content; `({},)` heals everything: the shape twin
    variant: Variant = field(default_factory=Variant)
    rng: Literal["captured"] | int = "captured"  # or a seed for all generators
    thorough: bool = True  # False: run only as far as the incident's signature needs
    trace: bool = False  # look at every operation, to name the one that made the first bad value

    def to_json(self) -> dict[str, Any]:
        return {
            "incident": str(self.incident),
            "content": self.content,
            "keep": {axis: list(indices) for axis, indices in self.keep.items()},
            "heal": [{axis: list(indices) for axis, indices in cell.items()} for cell in self.heal],
            "variant": {
                "name": self.variant.name,
                "config": dict(self.variant.config),
                "env": dict(self.variant.env),
                "flags": dict(self.variant.flags),
            },
            "rng": self.rng,
            "thorough": self.thorough,
            "trace": self.trace,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        return cls(
            incident=Path(data["incident"]),
            content=data["content"],
            keep=_indices(data["keep"]),
            heal=tuple(_indices(cell) for cell in data["heal"]),
            variant=Variant(**data["variant"]),
            rng=data["rng"],
            thorough=data["thorough"],
            trace=data["trace"],
        )


def _indices(cell: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {axis: tuple(values) for axis, values in cell.items()}
