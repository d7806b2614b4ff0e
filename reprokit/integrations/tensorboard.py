"""TensorBoard: a text at the step of each incident.

    reprokit.Recorder(..., on_incident=tensorboard.link(writer))

The text says what failed, where the incident lies and what to run next; nothing of the batch leaves the machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reprokit.capture.writer import OnIncident
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.integrations._said import said

TAG = "reprokit/incident"


def link(writer: Any, at: Callable[[], int] | None = None) -> OnIncident:
    """writer: a SummaryWriter. at: where the text appears, asked when an incident comes; by default at the step of the
    incident, which counts batches. Raises BadInput for anything else."""
    if not hasattr(writer, "add_text") or isinstance(writer, type):
        raise BadInput(
            f"tensorboard.link: a {type(writer).__name__} has no add_text; hand over a torch.utils.tensorboard."
            "SummaryWriter (pip install 'reprokit[trackers]')"
        )
    if at is not None and not callable(at):
        raise BadInput(f"tensorboard.link: at={at!r} is no function; for example at=lambda: trainer.global_step")

    def told(incident: Incident) -> None:
        found = said(incident)
        text = f"**{found.title}**\n\n`{found.path}`\n\n`{found.command}`"
        writer.add_text(TAG, text, global_step=found.step if at is None else at())
        writer.flush()  # training may end here

    return told
