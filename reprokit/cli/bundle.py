"""`reprokit bundle`: one file to hand over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from reprokit import bundling, pipeline
from reprokit.cli import common
from reprokit.errors import BadInput

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def bundle(
    incident: common.Incident,
    out: Annotated[Path, typer.Option("-o", "--out", help="The file: NAME.tar.zst.")],
    replayed: Annotated[
        Path | None, typer.Option("--replay", help="What `replay --json` printed: goes into the bug report.")
    ] = None,
    image: Annotated[str | None, typer.Option(help="Image that run.sh takes where a machine has it.")] = None,
    as_json: common.Json = False,
) -> int:
    """Write INCIDENT, a bug report and what a person needs to run it into one verified file."""
    report = _read(replayed)
    with common.progress() as bars:
        common.Reporter(bars).show("bundle", 0, None)
        written = bundling.bundle(pipeline.opened(incident), out, replayed=report, image=image)
    if as_json:
        common.emit(written)
    else:
        common.out().print(f"{written['path']}  {written['bytes']:,} bytes, verified", markup=False)
        common.next_line(written["run"])
    return 0


def _read(file: Path | None) -> dict[str, Any] | None:
    if file is None:
        return None
    try:
        found = json.loads(file.read_text())
        if isinstance(found, dict) and {"verdict", "n", "fail"} <= found.keys():
            return found
    except (OSError, ValueError):
        pass
    raise BadInput(f"{file}: not what `reprokit replay --json` prints; run that, and keep its output")
