"""`reprokit bundle`: one file to hand over."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reprokit import pipeline
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def bundle(
    incident: common.Incident,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file: NAME.tar.zst.")],
    image: Annotated[str | None, typer.Option(help="Image that run.sh takes where a machine has it.")] = None,
    as_json: common.Json = False,
) -> int:
    """Write INCIDENT, a bug report and what a person needs to run it into one verified file."""
    written = pipeline.bundle(pipeline.opened(incident), out, image=image)
    if as_json:
        common.emit(written)
    else:
        common.out().print(f"{written['path']}  {written['bytes']:,} bytes, verified", markup=False)
        common.out().print(f"next: {written['run']}", markup=False)
    return 0
