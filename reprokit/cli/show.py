"""`reprokit show`: an incident on one screen."""

from __future__ import annotations

from pathlib import Path

import typer

from reprokit import pipeline
from reprokit.cli import common
from reprokit.report.summary import incident_panel

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def show(incident: common.Incident, as_json: common.Json = False) -> int:
    """What failed, where, and what was captured of it."""
    found = pipeline.opened(incident).incident
    if as_json:
        common.emit({**found.manifest.to_json(), "path": str(found.path)})
    else:
        common.out().print(incident_panel(found, path=Path(incident)), soft_wrap=False)
    return 0
