"""Reproduce and minimise failures of PyTorch video-model training.

    harness = build(config)
    with reprokit.Recorder(harness, build=build, config=config, out="incidents") as recorder:
        for batch in loader:
            recorder.step(batch)

Importing this costs nothing: names are resolved when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprokit.capture.disk import Disk
    from reprokit.capture.recorder import IncidentCaptured, Recorder
    from reprokit.harness import Harness, is_replay
    from reprokit.incident import Incident
    from reprokit.step.limits import Limits

__all__ = ["Disk", "Harness", "Incident", "IncidentCaptured", "Limits", "Recorder", "is_replay"]
__version__ = "0.1.0"

_HOMES = {
    "Disk": "reprokit.capture.disk",
    "Harness": "reprokit.harness",
    "Incident": "reprokit.incident",
    "IncidentCaptured": "reprokit.capture.recorder",
    "Limits": "reprokit.step.limits",
    "Recorder": "reprokit.capture.recorder",
    "is_replay": "reprokit.harness",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reprokit' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
