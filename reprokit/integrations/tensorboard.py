"""TensorBoard: a text at the step of each incident.

    reprokit.Recorder(..., on_incident=tensorboard.link(writer))

The text says what failed, where the incident lies and what to run next; nothing of the batch leaves the machine.
"""

from __future__ import annotations

from typing import Any

from reprokit.capture.writer import OnIncident
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.integrations._said import said

TAG = "reprokit/incident"


def link(writer: Any) -> OnIncident:
    """writer: a SummaryWriter. Raises BadInput for anything else."""
    if not hasattr(writer, "add_text"):
        raise BadInput(
            f"tensorboard.link: a {type(writer).__name__} has no add_text; hand over a torch.utils.tensorboard."
            "SummaryWriter (pip install 'reprokit[trackers]')"
        )

    def told(incident: Incident) -> None:
        found = said(incident)
        writer.add_text(TAG, f"**{found.title}**\n\n`{found.path}`\n\n`{found.command}`", global_step=found.step)
        writer.flush()  # training may end here

    return told
