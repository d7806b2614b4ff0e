"""What a tracker is told of an incident: one line, and how to go on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from reprokit.errors import BadInput
from reprokit.incident import Incident


@dataclass(frozen=True, kw_only=True, slots=True)
class Said:
    """Of one incident."""

    kind: str  # "nonfinite_loss"; "captured" where somebody asked for it
    where: str
    step: int
    id: str
    path: str
    command: str  # that a person runs next

    @property
    def title(self) -> str:
        at = f" at {self.where}" if self.where else ""
        return f"{self.kind}{at}, step {self.step}"

    @property
    def text(self) -> str:
        return f"{self.title}\n\ncaptured in {self.path}\n\nnext: {self.command}"


def said(incident: Incident) -> Said:
    """Raises BadInput for what is none."""
    if not hasattr(incident, "manifest"):
        raise BadInput(f"a tracker was told of a {type(incident).__name__}; it is told of an Incident: on_incident=...")
    manifest = incident.manifest
    signature = manifest.signature
    return Said(
        kind=str(signature.kind) if signature else "captured",
        where=signature.where if signature else "",
        step=manifest.step,
        id=manifest.id,
        path=str(incident.path),
        command=f"reprokit replay {shlex.quote(str(incident.path))}",
    )
