"""`reprokit demo`: the main job from end to end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reprokit import demo as demonstration
from reprokit import pipeline
from reprokit.cli import common
from reprokit.cli.replay import EXIT
from reprokit.incident import Incident
from reprokit.replay.sentence import sentence
from reprokit.report import texts

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything that is made.")] = Path("demo"),
    video: Annotated[Path | None, typer.Option(help="A video of one's own, instead of the sample clips.")] = None,
    healthy: Annotated[bool, typer.Option("--healthy", help="Without the padding: nothing should fail.")] = False,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Attempts of the replay, at most.")] = None,
    preset: Annotated[str, typer.Option(help="quick (5), default (14) or strict (59) attempts.")] = "default",
    engine: common.Engine = None,
    jobs: common.Jobs = None,
    base_image: common.Base = None,
    wheelhouse: common.Wheels = None,
    as_json: common.Json = False,
) -> int:
    """Train the reference model on real clips until a step goes NaN; capture, reduce, replay and bundle it."""
    options = pipeline.Options(
        n=pipeline.attempts_of(n, preset), engine=engine, jobs=jobs, base=base_image, wheelhouse=wheelhouse
    )
    with common.progress() as bars:
        made = demonstration.run(out, options, common.Reporter(bars), video=video, healthy=healthy)
    if as_json:
        common.emit(made.to_json())
    else:
        _print(made)
    return EXIT[made.replay.verdict] if made.replay else 0


def _print(made: demonstration.Demo) -> None:
    console = common.out()
    if made.incident is None or made.reduction is None or made.replay is None or made.bundle is None:
        console.print(f"nothing failed in {made.steps} steps", markup=False)
        return
    assert made.reduction.path
    smallest = Incident.open(made.reduction.path)
    console.print(texts.headline(made.incident), markup=False, style="bold red")
    console.print(f"  captured  {demonstration.sizes(made.incident)}", markup=False)
    console.print(f"  reduced   {demonstration.sizes(smallest)}", markup=False)
    for line in common.reduction_lines(made.reduction):
        console.print(f"          {line}", markup=False)
    steps = f"{made.reduction.calls} evaluations, {made.reduction.step_equivalents:.1f} whole steps"
    console.print(f"            {steps}, one-minimal: {'yes' if made.reduction.one_minimal else 'no'}", markup=False)
    console.print(
        f"[bold]{made.replay.verdict}[/bold]  {common.safe(sentence(made.replay))} ({made.replay.engine})",
        soft_wrap=True,
    )
    console.print(
        f"bundle  {made.bundle['path']}  {made.bundle['bytes'] / 1e6:.1f} MB, verified", markup=False, soft_wrap=True
    )
    common.next_line(made.bundle["run"])
