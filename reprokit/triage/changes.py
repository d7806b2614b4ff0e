"""A changed experiment, and what is known of an incident before anything of it is changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from reprokit.failure import DEADLY, Kind, Signature
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.step.case import Case
from reprokit.triage.factors import Seen
from reprokit.triage.trials import Setting

_BEFORE_GRADIENTS = (Kind.NONFINITE_LOSS, Kind.LOSS_SPIKE, Kind.COLLAPSE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One changed experiment."""

    changed: str  # "inputs: global scaled into 0 to 1"
    case: Case
    why_not: str = ""  # it cannot be asked here, because
    passes: str = ""  # what follows where it passes
    fails: str = ""  # what follows where it fails like the captured step
    suggests: str = ""  # what to try, where replays support it
    group: str = ""  # what people look at, as `--only` has it
    beside: Case | None = None  # what it is compared with, where that is not the captured step

    @property
    def setting(self) -> Setting:
        return Setting(label=self.changed, case=self.case)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What is known of an incident before anything of it is changed."""

    base: Case
    seen: Seen
    signature: Signature | None
    batch: Any
    layout: Layout
    flags: Mapping[str, Any]
    rates: tuple[float, ...]  # learning rates of all groups
    ranks: int
    back: int  # history steps that it holds
    donor: bool

    @classmethod
    def of(cls, incident: Incident, base: Case, seen: Seen) -> Subject:
        manifest = incident.manifest
        return cls(
            base=base,
            seen=seen,
            signature=manifest.signature,
            batch=incident.batch(),
            layout=Layout.parse(manifest.layout),
            flags=incident.flags(),
            rates=_rates(incident),
            ranks=manifest.world_size,
            back=incident.rewindable(),
            donor=incident.donor() is not None,
        )

    @property
    def early(self) -> str:
        """Why what happens after the forward pass cannot matter; empty where it can."""
        found = self.signature
        forward = found is not None and (
            found.kind in _BEFORE_GRADIENTS or (found.kind not in DEADLY and found.where == "forward")
        )
        return "it fails before there are gradients, and the incident holds no earlier steps" if forward else ""

    def variant(self, group: str, changed: str, base: Case | None = None, **change: Any) -> Case:
        base = base or self.base
        return replace(base, variant=replace(base.variant, name=f"{group}: {changed}", **change))


def _rates(incident: Incident) -> tuple[float, ...]:
    state = incident.anchor() if incident.rolls_forward else incident.state()
    groups = [group for one in (state or {}).get("optimizers", {}).values() for group in one["groups"]]
    return tuple(float(group["lr"]) for group in groups if "lr" in group)
