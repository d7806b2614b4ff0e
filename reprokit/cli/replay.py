"""`reprokit replay`: run an incident N times and judge."""

from __future__ import annotations

from typing import Annotated

import typer

from reprokit import pipeline
from reprokit.cli import common
from reprokit.replay import attempts
from reprokit.replay.verdict import Verdict

EXIT = {
    Verdict.REPRODUCIBLE: 0,
    Verdict.FLAKY: 10,
    Verdict.NOT_REPRODUCED: 11,
    Verdict.INCONCLUSIVE: 12,
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def replay(
    incident: common.Incident,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Attempts, at most.")] = None,
    preset: Annotated[str, typer.Option(help="quick (5), default (14) or strict (59) attempts.")] = "default",
    engine: common.Engine = None,
    jobs: common.Jobs = None,
    timeout: common.Timeout = 900.0,
    min_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Rate of failure that must be supported.")] = 0.0,
    estimate: Annotated[
        bool, typer.Option(help="Go on after the first PASS beside a FAIL, to estimate the rate.")
    ] = False,
    match: common.Match = None,
    image: Annotated[str | None, typer.Option(help="Use this image as it is.")] = None,
    base_image: common.Base = None,
    wheelhouse: common.Wheels = None,
    network: Annotated[str, typer.Option(help="Docker network of the containers.")] = "none",
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Run INCIDENT N times and say whether it is reproducible.

    Exit code: 0 reproducible, 10 flaky, 11 not reproduced, 12 inconclusive, 2 bad input, 3 infrastructure.
    """
    options = pipeline.Options(
        engine=engine,
        jobs=jobs,
        timeout=timeout,
        match=match,
        image=image,
        base=base_image,
        wheelhouse=wheelhouse,
        network=network,
        trust=trust,
        n=pipeline.attempts_of(n, preset),
        min_rate=min_rate,
        estimate=estimate,
    )
    subject = pipeline.opened(incident)
    common.headline(subject.incident, as_json)
    with common.progress() as bars:
        found = pipeline.replay(subject, options, common.Reporter(bars))
    if as_json:
        common.emit(found.to_json())
    else:
        common.out().print(f"[bold]{found.verdict}[/bold]  {common.safe(attempts.sentence(found))}")
        if found.verdict is Verdict.REPRODUCIBLE and not subject.incident.manifest.parent:
            common.out().print(f"next: reprokit reduce {incident} -o reduced", markup=False)
    return EXIT[found.verdict]
