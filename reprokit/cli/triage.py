"""`reprokit triage`: what decides whether an incident fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from reprokit import pipeline
from reprokit.cli import common
from reprokit.cli.replay import EXIT
from reprokit.errors import BadInput
from reprokit.replay.verdict import Verdict
from reprokit.triage.deciding import Finding
from reprokit.triage.table import Row
from reprokit.triage.triage import N, Part, Triage

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_PARTS: dict[str, Part] = {"factors": "factors", "counterfactuals": "counterfactuals"}


@app.command()
def triage(
    incident: common.Incident,
    n: Annotated[int, typer.Option("-n", help="Attempts at each value that decides; 4 at least.")] = N,
    part: Annotated[
        str | None, typer.Option(help="factors or counterfactuals; by default the first attempts tell which.")
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Factors or changes, with commas: rng,hashseed or precision.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to keep attempts in; by default while it goes on, in the cache.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the attempts of one that was interrupted.")
    ] = None,
    engine: common.Engine = None,
    jobs: common.Jobs = None,
    timeout: common.Timeout = 900.0,
    rewind: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Steps that run before the failing one; a reduction has its own."),
    ] = None,
    match: common.Match = None,
    image: common.Image = None,
    base_image: common.Base = None,
    wheelhouse: common.Wheels = None,
    compiler: common.Compiler = False,
    socket: common.Socket = None,
    network: Annotated[str, typer.Option(help="Docker network of the containers.")] = "none",
    trust: common.Trust = False,
    inner: common.Inner = None,
    ray_address: common.RayAddress = None,
    store: common.Store = None,
    partition: common.Partition = None,
    as_json: common.Json = False,
) -> int:
    """Say what decides whether INCIDENT fails. Where it comes and goes: which factor (random numbers, hash seed,
    threads, clock, load, ...). Where it comes each time: what changed experiments make of it. Best after `reduce`.

    Exit code, of the attempts at the captured step: 0 reproducible, 10 flaky, 11 not reproduced, 12 inconclusive,
    2 bad input, 3 infrastructure.
    """
    if part is not None and part not in _PARTS:
        raise BadInput(f"--part {part}: unknown; one of {', '.join(_PARTS)}")
    options = pipeline.Options(
        engine=engine,
        jobs=jobs,
        timeout=timeout,
        match=match,
        image=image,
        base=base_image,
        wheelhouse=wheelhouse,
        compiler=compiler,
        network=network,
        trust=trust,
        inner=inner,
        ray_address=ray_address,
        store=store,
        partition=partition,
        n=n,
        out=out,
        resume=resume,
        rewind=rewind or 0,
    )
    names = tuple(name.strip() for name in (only or "").split(",") if name.strip())
    subject = pipeline.opened(incident, store)
    common.headline(subject.incident, as_json)
    with common.progress() as bars:
        wanted = _PARTS.get(part or "")
        found = pipeline.triage(subject, options, common.Reporter(bars), part=wanted, only=names, keep=True)
    if as_json:
        common.emit(found.to_json())
    else:
        _print(found, incident)
    return EXIT[found.verdict]


def _print(found: Triage, incident: str) -> None:
    """The answer first, the evidence below it, the next step last."""
    console, base = common.out(), found.base
    console.print(f"[bold]{common.safe(found.answer())}[/bold]")
    console.print(f"  as captured: {base.fail}/{base.n} failed, engine {found.engine}", markup=False)
    console.print(_factors(found.findings) if found.part == "factors" else _changes(found.rows))
    for line in _not_applicable(found):
        console.print(common.safe(line), style="dim")
    if found.difference:
        console.print(common.safe(found.difference.sentence()))
    for finding in found.decides:
        console.print(common.safe(f"{finding.factor.what}: {finding.factor.follows}"))
    for suggestion in found.suggestions:
        console.print(common.safe(f"try: {suggestion}"))
    if found.part == "counterfactuals" and found.verdict is Verdict.REPRODUCIBLE:
        common.next_step("reprokit", "locate", incident)
    elif found.verdict is Verdict.FLAKY and not found.decides:
        common.next_step("reprokit", "replay", incident, "--estimate", "--preset", "strict")


def _factors(findings: tuple[Finding, ...]) -> Table:
    table = _table("factor", "failed", "p", "decides")
    for finding in findings:
        if not finding.why_not:
            table.add_row(common.safe(finding.factor.what), *map(common.safe, _cells(finding)))
    return table


def _cells(finding: Finding) -> tuple[str, str, str]:
    contrast = finding.contrast
    if contrast is None:
        fail, n = sum(one.fail for one in finding.tallies), sum(one.n for one in finding.tallies)
        return f"{fail}/{n} over {len(finding.tallies)} values, alike", "", "no"
    values = ((contrast.most, contrast.fails), (contrast.least, contrast.stays_away))
    counts = ", ".join(f"{setting.label} {tally.fail}/{tally.n}" for setting, tally in values)
    return counts, f"{contrast.adjusted:.2g}", "yes" if contrast.decides else "no"


def _changes(rows: tuple[Row, ...]) -> Table:
    table = _table("changed experiment", "outcome", "what follows")
    for row in rows:
        if not row.why_not:
            table.add_row(*map(common.safe, (row.change.changed, row.outcome, row.follows)))
    return table


def _not_applicable(found: Triage) -> list[str]:
    """A line for each reason."""
    reasons: dict[str, list[str]] = {}
    for finding in found.findings:
        reasons.setdefault(finding.why_not, []).append(finding.factor.what)
    for row in found.rows:
        reasons.setdefault(row.why_not, []).append(row.change.changed)
    return [f"not applicable, because {why}: {'; '.join(names)}" for why, names in reasons.items() if why]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), title=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
