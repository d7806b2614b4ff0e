"""`reprokit reduce`: the smallest case that still fails for the same reason."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reprokit import pipeline
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def reduce(
    incident: common.Incident,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder in which the reduction is written.")],
    budget: Annotated[int | None, typer.Option(min=1, help="Evaluations, at most; the best so far is kept.")] = None,
    verify: Annotated[int, typer.Option(min=1, help="Fresh replays that the result must survive.")] = 3,
    jobs: common.Jobs = None,
    timeout: common.Timeout = 900.0,
    match: common.Match = None,
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Reduce INCIDENT over samples, views and frames, replay the result afresh, and write it as an incident.

    Exit code: 0 reduced, 11 the incident does not fail here, 2 bad input, 3 infrastructure.
    """
    options = pipeline.Options(engine="process", jobs=jobs, timeout=timeout, match=match, trust=trust, n=verify)
    subject = pipeline.opened(incident)
    common.headline(subject.incident, as_json)
    with common.progress() as bars:
        found = pipeline.reduce(subject, out, options, common.Reporter(bars), budget=budget)
    if as_json:
        common.emit(found.to_json())
    else:
        common.print_reduction(found)
    return 0
