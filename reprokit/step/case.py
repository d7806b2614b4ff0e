"""A case: an incident, plus what to change before the step runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Cell = Mapping[str, tuple[Any, ...]]
"""Indices per axis, names of entries for the axis `key`; a tensor is touched where all of them meet. An empty cell is
the whole batch."""

Ablation = Literal["identity", "freeze", "float32"]
"""identity: the module returns its first input; freeze: its parameters get no gradients; float32: autocast is off in it
and what it is given is float32."""

Simpler = Literal["zero", "constant", "few", "special", "finite", "unit"]
"""Of one entry's values: all zero; all its mean; few distinct ones; NaN and infinities alone, and zero elsewhere; zero
for NaN and infinities alone; floating ones scaled into 0 to 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A named change of how the step runs. The default changes nothing."""

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)  # dotted key -> value, before `build`
    whole_config: Any = None  # in place of the captured config, where keys come or go; None: as captured
    env: Mapping[str, str] = field(default_factory=dict)  # set before the interpreter starts: fresh processes only
    flags: Mapping[str, Any] = field(default_factory=dict)  # over the captured flags, by the names of flags.json
    dtype: str | None = None  # of parameters, buffers and floating inputs: "float64"; None: as captured
    modules: Mapping[str, Ablation] = field(default_factory=dict)  # name beneath wrappers -> what becomes of it
    harness: Mapping[str, Any] = field(default_factory=dict)  # fields of the harness: {"autocast": None}
    clock: float | None = None  # seconds by which each look at Python's clocks moves them, in place of real time

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "config": dict(self.config),
            "whole_config": self.whole_config,
            "env": dict(self.env),
            "flags": dict(self.flags),
            "dtype": self.dtype,
            "modules": dict(self.modules),
            "harness": dict(self.harness),
            "clock": self.clock,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """An incident plus what to change. Indices are those of the incident's whole batch, also after a drop."""

    incident: Path
    content: Literal["batch", "donor", "decoded"] = "batch"
    """donor: as it was captured, with its own shape; decoded: the same samples, as the harness reads them again."""
    keep: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # axis -> indices kept; the rest is dropped
    heal: tuple[Cell, ...] = ()  # cells that get the donor's content; `({},)` heals everything: the shape twin
    values: Mapping[str, Simpler] = field(default_factory=dict)  # entry -> simpler values, after healing
    dtypes: Mapping[str, str] = field(default_factory=dict)  # entry -> dtype that its tensors are cast to
    stack: tuple[Cell, ...] = ()  # the kept batch once for each cell, healed by it, one after the other along axis b
    variant: Variant = field(default_factory=Variant)
    rng: Literal["captured"] | int = "captured"  # or a seed for all generators
    state: Literal["captured", "built"] = "captured"  # built: as `build` leaves it
    rewind: int = 0  # history steps that run before this one, from the state before them; axis s counts all of them
    thorough: bool = True  # False: run only as far as the incident's signature needs
    trace: bool = False  # look at every operation, to name the one that made the first bad value
    watch: bool = False  # look at modules' outputs, to name the samples whose values go bad
    operations: bool = False  # a hash of what each operation made, to name the first that differs between attempts
    evidence: bool = False  # statistics of modules, counters and a trace of the failing step

    def to_json(self) -> dict[str, Any]:
        return {
            "incident": str(self.incident),
            "content": self.content,
            "keep": {axis: list(indices) for axis, indices in self.keep.items()},
            "heal": [{axis: list(indices) for axis, indices in cell.items()} for cell in self.heal],
            "values": dict(self.values),
            "dtypes": dict(self.dtypes),
            "stack": [{axis: list(indices) for axis, indices in cell.items()} for cell in self.stack],
            "variant": self.variant.to_json(),
            "rng": self.rng,
            "state": self.state,
            "rewind": self.rewind,
            "thorough": self.thorough,
            "trace": self.trace,
            "watch": self.watch,
            "operations": self.operations,
            "evidence": self.evidence,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        return cls(
            incident=Path(data["incident"]),
            content=data["content"],
            keep=_indices(data["keep"]),
            heal=tuple(_indices(cell) for cell in data["heal"]),
            values=dict(data["values"]),
            dtypes=dict(data["dtypes"]),
            stack=tuple(_indices(cell) for cell in data["stack"]),
            variant=Variant(**data["variant"]),
            rng=data["rng"],
            state=data["state"],
            rewind=data["rewind"],
            thorough=data["thorough"],
            trace=data["trace"],
            watch=data["watch"],
            operations=data["operations"],
            evidence=data["evidence"],
        )


def _indices(cell: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    return {axis: tuple(values) for axis, values in cell.items()}
