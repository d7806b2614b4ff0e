"""Weights & Biases: an alert for each incident, and a row of a table in the run's summary. Works offline, too.

    reprokit.Recorder(..., on_incident=wandb.link(run))

The text says what failed, where the incident lies and what to run next; nothing of the batch leaves the machine.
"""

from __future__ import annotations

from typing import Any

from reprokit.capture.writer import OnIncident
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.integrations._said import said

KEY = "reprokit/incidents"


def link(run: Any) -> OnIncident:
    """run: what `wandb.init` returned. Raises BadInput for anything else."""
    if not (hasattr(run, "alert") and hasattr(run, "summary")):
        raise BadInput(
            f"wandb.link: a {type(run).__name__} is no run; hand over what wandb.init() returned "
            "(pip install 'reprokit[trackers]')"
        )
    rows: list[dict[str, Any]] = []

    def told(incident: Incident) -> None:
        found = said(incident)
        rows.append({"step": found.step, "what": found.title, "path": found.path, "id": found.id})
        run.summary[KEY] = list(rows)  # a row of the history would need a step that the user has not logged yet
        run.alert(title=f"reprokit: {found.title}", text=found.text, level="ERROR")

    return told
