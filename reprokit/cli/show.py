"""`reprokit show`: an incident on one screen."""

from __future__ import annotations

import typer

from reprokit import pipeline
from reprokit.capture.counts import fallbacks, seen
from reprokit.cli import common
from reprokit.report.summary import incident_panel, next_step
from reprokit.works import works

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def show(incident: common.Incident, as_json: common.Json = False) -> int:
    """What failed, where, and what was captured of it."""
    found = pipeline.opened(incident).incident
    if as_json:
        beside = {"seen": seen(found), "fallbacks": fallbacks(found)}
        common.emit({**found.manifest.to_json(), "path": str(found.path), "works": works(found), **beside})
    else:
        common.out().print(incident_panel(found), soft_wrap=False)
        common.next_step(*next_step(found, incident))
    return 0
