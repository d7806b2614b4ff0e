"""`reprokit verify`: every byte against its hash."""

from __future__ import annotations

import typer

from reprokit import pipeline
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def verify(incident: common.Incident, as_json: common.Json = False) -> int:
    """Check a bundle or an incident; exit code 2 with one line where anything does not match."""
    manifest = pipeline.verify(incident)
    if as_json:
        common.emit({"ok": True, "id": manifest.id, "files": len(manifest.files)})
    else:
        common.out().print(f"{incident}: whole, {len(manifest.files)} files match; id {manifest.id}", markup=False)
    return 0
