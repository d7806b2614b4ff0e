"""Sentry: an event for each incident, grouped by its signature.

    reprokit.Recorder(..., on_incident=sentry.report)

`sentry_sdk.init` stays with whoever has the DSN. Nothing of the incident is sent but what failed, where it lies and how
to replay it: Sentry notes each program that a process runs, and those that looked for the commit are taken out again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from reprokit.incident import Incident
from reprokit.integrations._replayable import library
from reprokit.integrations._said import said

_OURS = re.compile(r"\W*(git|nvidia-smi)\b|.* -m reprokit\.")  # programs that a recorder runs, as Sentry writes them

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
    with _sdk.new_scope() as scope:
        scope.add_event_processor(_without_ours)
        found: str | None = _sdk.capture_event(event)
    return found


def _without_ours(event: dict[str, Any], hint: Any) -> dict[str, Any]:
    """An event without the breadcrumbs of what ran for its incident, and in which folder."""
    if values := (event.get("breadcrumbs") or {}).get("values"):
        event["breadcrumbs"]["values"] = [crumb for crumb in values if not _is_ours(crumb)]
    return event


def _is_ours(crumb: Mapping[str, Any]) -> bool:
    return crumb.get("category") == "subprocess" and bool(_OURS.match(str(crumb.get("message"))))
