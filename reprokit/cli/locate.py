"""`reprokit locate`: the operation that makes the first bad value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reprokit import pipeline
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def locate(
    incident: common.Incident,
    standalone: Annotated[Path | None, typer.Option(help="Folder for a script of plain torch with its inputs.")] = None,
    timeout: common.Timeout = 900.0,
    match: common.Match = None,
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Name the operation that makes INCIDENT's first bad value: forward, backward or optimizer. Best after `reduce`."""
    subject = pipeline.opened(incident)
    common.headline(subject.incident, as_json)
    options = pipeline.Options(timeout=timeout, match=match, trust=trust)
    found = pipeline.locate(subject, options, standalone=standalone)
    if as_json:
        common.emit(found.to_json())
        return 0
    for line in _lines(found.description):
        common.out().print(line, markup=False)
    if standalone:
        common.out().print(f"next: python {standalone}/operation.py", markup=False)
    return 0


def _lines(found: Mapping[str, Any]) -> list[str]:
    where = f" in {found['module']}" if found["module"] else ""
    lines = [f"{found['producer']}{where}, {found['phase'] or 'before the step began'}"]
    lines += [f"  in   {_tensor(one)}" for one in found["inputs"]]
    lines += [f"  out  {_tensor(one)}" for one in found["outputs"]]
    if found["index"] is not None:
        lines.append(f"  first bad value at {found['index']}")
    return lines + [f"  {frame}" for frame in found["stack"][-3:]]


def _tensor(one: Mapping[str, Any]) -> str:
    span = "" if one["min"] is None else f"  {one['min']:.4g} to {one['max']:.4g}"
    bad = "".join(f"  {one[kind]} {kind}" for kind in ("nan", "inf") if one[kind])
    return f"{one['dtype']} {one['shape']}{span}{bad}"
