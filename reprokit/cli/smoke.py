"""`reprokit smoke`: is the plumbing of a training step right?"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from reprokit.cli import common, findings, streams
from reprokit.errors import ReprokitError
from reprokit.report import escape
from reprokit.smoke import junit, opening
from reprokit.smoke import smoke as gates
from reprokit.smoke.clock import LIMIT, Clock, Overdue
from reprokit.smoke.course import Course
from reprokit.smoke.gate import OPENING, Subject, hangs
from reprokit.smoke.gates.overfit import judged

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def smoke(
    entrypoint: Annotated[str, typer.Argument(metavar="ENTRYPOINT", help="package.module:build or train.py:build.")],
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML or JSON for build; by default what default_config() beside it gives."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of all generators, before build.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the incidents of failed gates.")] = Path(
        "incidents"
    ),
    only: Annotated[
        str | None, typer.Option(metavar="GATE,...", help=f"These gates alone: {', '.join(gates.NAMES)}.")
    ] = None,
    overfit: Annotated[
        int | None, typer.Option(metavar="STEPS", help="Also train on one batch, 50 to 100 steps.")
    ] = None,
    extremes: Annotated[
        bool, typer.Option("--extremes", help="Also ask with extreme inputs and another precision.")
    ] = False,
    plots: Annotated[Path | None, typer.Option(metavar="DIR", help="Pictures of views, features and losses.")] = None,
    junit_: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="The findings as JUnit XML.")] = None,
    hang_after: Annotated[
        float, typer.Option(min=0.1, max=1e6, metavar="SECONDS", help="That a build, a step or a batch may take.")
    ] = LIMIT,
    as_json: common.Json = False,
) -> int:
    """Ask gates of the harness that ENTRYPOINT builds: does it replay, are shapes, numbers and gradients what they are
    taken for, does the encoder see the future. Two laps each. It proves plumbing, not accuracy.

    Exit code: 0 passed, 1 a gate failed or nothing could be asked, 2 bad input.
    """
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    chosen = gates.chosen(names, overfit=overfit, extremes=extremes)
    clock = Clock(hang_after)

    def tell(report: gates.Report, pictures: Sequence[Path] = ()) -> None:
        if as_json:
            common.emit(report.to_json() | {"plots": list(map(str, pictures))})
        else:
            _print(report, pictures)
            _next(report, entrypoint, config, whole=not names, overfit=overfit is not None)
        if junit_ is not None:  # after the answer: a file that cannot be written is no reason to lose it
            junit.write(report, entrypoint, junit_)

    with common.progress() as bars:

        def stuck(report: gates.Report) -> None:
            """The main thread will never come back, not even to be told to end."""
            bars.stop()
            try:
                tell(report)
                streams.flush()
            finally:
                os._exit(1)

        clock.stuck = lambda overdue: stuck(gates.Report(findings=(hangs(OPENING, overdue, []),)))
        subject = opening.opened(entrypoint, config, seed=seed, out=out, clock=clock)
        report = gates.smoke(subject, chosen, common.Reporter(bars), stuck)

        def also(overdue: Overdue) -> gates.Report:
            return replace(report, findings=(*report.findings, hangs("plots", overdue, subject.roots)))

        clock.stuck = lambda overdue: stuck(also(overdue))
        pictures, trouble = _drawn(subject, None if report.hung else plots, judged(chosen))
        report = also(trouble) if isinstance(trouble, Overdue) else report
    tell(report, pictures)
    if isinstance(trouble, ReprokitError):
        raise trouble
    return 0 if report.passed else 1


def _drawn(
    subject: Subject, folder: Path | None, taken: Course | None
) -> tuple[list[Path], BaseException | None]:
    """What goes wrong with a picture is no reason to lose the report."""
    if folder is None or (subject.opening and not subject.batches):  # which is told
        return [], None
    from reprokit.smoke import plots

    try:
        with subject.clock.watching():
            return plots.draw(subject, folder, taken), None
    except (ReprokitError, Overdue) as error:  # that is said last
        return [], error
    except Exception as error:
        common.say(f"no pictures: {type(error).__name__}: {error}")
        return [], error


def _print(report: gates.Report, pictures: Sequence[Path]) -> None:
    """The answer first, the evidence below it, the next step last."""
    console = common.out()
    console.print(findings.answer(report), soft_wrap=True)
    findings.show(report, console)
    for gate, path in report.incidents:
        console.print(f"incident of {gate}  {path}", markup=False)
    for line in report.uncaptured:
        console.print(escape.line(line), markup=False)
    for path in pictures:
        console.print(f"picture  {path}", markup=False)
    console.print(gates.PROVES, style="dim")


def _next(report: gates.Report, entrypoint: str, config: Path | None, *, whole: bool, overfit: bool) -> None:
    """whole: all default gates were asked."""
    again = ["reprokit", "smoke", entrypoint, *(["--config", config] if config else [])]
    script = entrypoint.partition(":")[0]
    if report.incidents:
        common.next_step("reprokit", "show", report.incidents[0][1])
    elif not report.passed or not whole:
        common.next_step(*again)
    elif not overfit:
        common.next_step(*again, "--overfit", 50)
    elif script.endswith(".py"):
        common.next_step("reprokit", "run", "--", "python", script)
    else:
        common.next_line("train within reprokit.Recorder(harness, build=build, config=config), by its step(batch)")
