"""`reprokit smoke`: is the plumbing of a training step right?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from reprokit.cli import common, streams
from reprokit.errors import ReprokitError
from reprokit.report import escape
from reprokit.smoke import junit, opening
from reprokit.smoke import smoke as gates
from reprokit.smoke.clock import LIMIT, Clock, Overdue
from reprokit.smoke.gate import OPENING, Finding, Subject, Verdict, hangs

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_STYLE = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_APPLICABLE: "dim"}
_SHOWN = {Verdict.PASSED: "passed", Verdict.FAILED: "FAILED", Verdict.NOT_APPLICABLE: "n/a"}  # as wide as it must be


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
        pictures, trouble = _drawn(subject, None if report.hung else plots)
        report = also(trouble) if isinstance(trouble, Overdue) else report
    tell(report, pictures)
    if isinstance(trouble, ReprokitError):
        raise trouble
    return 0 if report.passed else 1


def _drawn(subject: Subject, folder: Path | None) -> tuple[list[Path], BaseException | None]:
    """What goes wrong with a picture is no reason to lose the report."""
    if folder is None or (subject.opening and not subject.batches):  # which is told
        return [], None
    from reprokit.smoke import plots

    try:
        with subject.clock.watching():
            return plots.draw(subject, folder), None
    except (ReprokitError, Overdue) as error:  # that is said last
        return [], error
    except Exception as error:
        common.say(f"no pictures: {type(error).__name__}: {error}")
        return [], error


def _print(report: gates.Report, pictures: Sequence[Path]) -> None:
    """The answer first, the evidence below it, the next step last."""
    console = common.out()
    console.print(_answer(report), soft_wrap=True)
    console.print(_table(report), soft_wrap=False)
    for finding in report.findings:
        if finding.verdict is Verdict.FAILED:
            console.print(f"{finding.gate}, {escape.line(finding.check)}: {escape.line(finding.advice)}", markup=False)
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
        common.next_line("train under a Recorder (docs/recorder.md)")


def _answer(report: gates.Report) -> Text:
    counts = [(report.count(verdict), word) for verdict, word in _COUNTED.items() if report.count(verdict)]
    said = ", ".join(f"{count} {word}" for count, word in counts)
    if report.passed:
        return Text.assemble(("PASSED", "bold green"), f"  {said}")
    if report.failed_gates:
        return Text.assemble(("FAILED", "bold red"), f"  {', '.join(report.failed_gates)}; {said}")
    return Text.assemble(("NOTHING ASKED", "bold red"), f"  {said or 'no gate'}: this is no pass")


_COUNTED = {Verdict.FAILED: "failed", Verdict.PASSED: "passed", Verdict.NOT_APPLICABLE: "not applicable"}


def _table(report: gates.Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for title, ratio in (("gate", None), ("check", 3), ("expected", 3), ("observed", 4)):
        table.add_column(title, ratio=ratio, overflow="fold", no_wrap=title == "gate")
    table.add_column("verdict", no_wrap=True)
    last = ""
    for findings in _rows(report.findings):
        table.add_row(*_row(findings, findings[0].gate if findings[0].gate != last else ""))
        last = findings[0].gate
    return table


def _rows(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """One each, but for checks of a gate that could not be asked for one reason."""
    asked = [one for one in findings if one.verdict is not Verdict.NOT_APPLICABLE]
    reasons: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        if one.verdict is Verdict.NOT_APPLICABLE:
            reasons.setdefault((one.gate, one.observed), []).append(one)
    for gate in dict.fromkeys(one.gate for one in findings):
        yield from ([one] for one in asked if one.gate == gate)
        yield from (rows for (of, _), rows in reasons.items() if of == gate)


def _row(findings: Sequence[Finding], gate: str) -> list[Text]:
    first, checks = findings[0], "; ".join(one.check for one in findings)
    cells = [Text(escape.line(text)) for text in (gate, checks, first.expected, first.observed)]
    return [*cells, Text(_SHOWN[first.verdict], style=_STYLE[first.verdict])]
