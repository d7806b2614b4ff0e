"""`reprokit locate`: the operation that makes the first bad value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reprokit import pipeline
from reprokit.cli import common
from reprokit.errors import some
from reprokit.report import escape

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_ENTRIES = 3  # of the state that are named on the line


@app.command()
def locate(
    incident: common.Incident,
    standalone: Annotated[Path | None, typer.Option(help="Folder for a script of plain torch with its inputs.")] = None,
    timeout: common.Timeout = 900.0,
    match: common.Match = None,
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Name the operation that makes INCIDENT's first bad value: forward, backward or optimizer. Best after `reduce`.
    Bad values that the step began with are followed back through the incident's history.

    Exit code: 0 located, 11 the incident does not fail here, 2 bad input, 3 infrastructure.
    """
    subject = pipeline.opened(incident)
    if standalone:
        pipeline.check_script(standalone)  # said now, not after the work
    common.headline(subject.incident, as_json)
    with common.progress() as bars:
        common.Reporter(bars).show("locate", 0, None)
        found = pipeline.locate(subject, pipeline.Options(timeout=timeout, match=match, trust=trust))
    if as_json:
        common.emit(found.to_json())
    else:
        for line in _lines(found.description, subject.incident.manifest.step):
            common.out().print(escape.plain(line, keep=""), markup=False)
    if standalone:
        script = pipeline.write_script(found, standalone)
        if not as_json:
            common.next_step("python", script)
    return 0


def _lines(found: Mapping[str, Any], failing: int) -> list[str]:
    lines = []
    if entries := found["bad_before"]:
        lines.append(f"the state was bad before step {failing} began: {some(entries, _ENTRIES)}")
    where = f" in {found['module']}" if found["module"] else ""
    when = f", step {found['step']}" if found["rewind"] else ""
    by = f" ({found['op']})" if found["op"] not in (None, found["producer"]) else ""  # of an autograd function
    lines.append(f"{found['producer']}{by}{where}, {found['phase'] or 'before the step began'}{when}")
    if found["note"]:
        lines.append(f"  {found['note']}")
    lines += [f"  in   {_tensor(one)}" for one in found["inputs"]]
    lines += [f"  out  {_tensor(one)}" for one in found["outputs"]]
    if found["index"] is not None:
        lines.append(f"  first bad value at {found['index']}")
    return lines + [f"  {frame}" for frame in found["stack"][-3:]]


def _tensor(one: Mapping[str, Any]) -> str:
    span = "" if one["min"] is None else f"  {one['min']:.4g} to {one['max']:.4g}"
    bad = "".join(f"  {one[kind]} {kind}" for kind in ("nan", "inf") if one[kind])
    return f"{one['dtype']} {one['shape']}{span}{bad}"
