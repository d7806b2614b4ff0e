"""Sentry: an event for each incident, grouped by its signature.

    reprokit.Recorder(..., on_incident=sentry.report)

`sentry_sdk.init` stays with whoever has the DSN. Nothing of the incident is sent but what failed, where it lies and how
to replay it.
"""

from __future__ import annotations

from typing import Any

from reprokit.incident import Incident
from reprokit.integrations._replayable import library
from reprokit.integrations._said import said

_sdk: Any = library("sentry_sdk", "trackers")


def report(incident: Incident) -> str | None:
    """Send it; the id that Sentry gives the event, None where no client is set up."""
    told = said(incident)
    event = {
        "message": told.title,
        "level": "error",
        "logger": "reprokit",
        "fingerprint": ["reprokit", told.kind, told.where],  # the same failure of another run is the same issue
        "tags": {"reprokit.kind": told.kind, "reprokit.where": told.where, "reprokit.step": str(told.step)},
        "contexts": {"reprokit": {"incident": told.id, "path": told.path, "step": told.step, "next": told.command}},
    }
    found: str | None = _sdk.capture_event(event)
    return found
