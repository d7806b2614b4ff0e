"""`reprokit replay`: run an incident N times and judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from reprokit import escalating, pipeline, scripting
from reprokit.cli import common
from reprokit.errors import BadInput, ReprokitError
from reprokit.replay.attempts import Halted
from reprokit.replay.command import PLACES
from reprokit.replay.draws import NAMES
from reprokit.replay.escalated import FOLDER
from reprokit.replay.result import Replay
from reprokit.replay.sentence import sentence
from reprokit.replay.verdict import Verdict
from reprokit.report import escape
from reprokit.report.summary import reduce_it

EXIT = {
    Verdict.REPRODUCIBLE: 0,
    Verdict.FLAKY: 10,
    Verdict.NOT_REPRODUCED: 11,
    Verdict.INCONCLUSIVE: 12,
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def replay(
    context: typer.Context,
    incident: common.Optional = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="Attempts, at most.")] = None,
    preset: Annotated[str, typer.Option(help="quick (5), default (14) or strict (59) attempts.")] = "default",
    engine: common.Engine = None,
    jobs: common.Jobs = None,
    timeout: common.Timeout = 900.0,
    min_rate: Annotated[float, typer.Option(min=0.0, max=1.0, help="Rate of failure that must be supported.")] = 0.0,
    confidence: Annotated[float, typer.Option(min=0.5, max=0.9999, help="Of what is said about rates.")] = 0.95,
    estimate: Annotated[bool, typer.Option(help="Go on where it is settled, to estimate the rate.")] = False,
    rng: Annotated[
        Literal["captured", "fresh"], typer.Option(help="Generators as captured, or a seed for each attempt.")
    ] = "captured",
    vary: Annotated[
        str, typer.Option(metavar="A,B", help=f"Draw each attempt's own value of some of {', '.join(NAMES)}.")
    ] = "",
    deterministic: Annotated[bool, typer.Option(help="Force torch's deterministic algorithms.")] = False,
    rewind: Annotated[
        int | None,
        typer.Option(min=1, metavar="STEPS", help="Steps that run before the failing one; a reduction has its own."),
    ] = None,
    match: common.Match = None,
    predicate: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="Whether an outcome (its JSON) is the failure; runs here."),
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help=f"Run this instead of a harness's step; {', '.join(map('{{{}}}'.format, PLACES))}."
        ),
    ] = None,
    fails_on: Annotated[
        list[str] | None,
        typer.Option(metavar="WHAT", help="Of --script: exit=nonzero, exit=1,134, output=REGEX, metric=loss>10, hang."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For {config}, instead of the captured one.")
    ] = None,
    batch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For {batch}, instead of the captured one.")
    ] = None,
    escalate: Annotated[
        bool,
        typer.Option(
            "--escalate", help="Flaky or not reproduced: a further round that tells what failing attempts do otherwise."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="A folder for all attempts and their logs.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Go on with attempts that are kept.")] = None,
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
    """Run INCIDENT N times and say whether it is reproducible. With --script a command is run, in the INCIDENT's source
    or, without one, in a copy of this folder.

    Ctrl-C says what is known by then, and how to go on from there.

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
        compiler=compiler,
        network=network,
        trust=trust,
        inner=inner,
        ray_address=ray_address,
        store=store,
        partition=partition,
        n=pipeline.attempts_of(n, preset, min_rate, confidence),
        min_rate=min_rate,
        confidence=confidence,
        estimate=estimate,
        rng=rng,
        vary=tuple(filter(None, (name.strip() for name in vary.split(",")))),
        deterministic=deterministic,
        predicate=predicate,
        out=out,
        resume=resume,
        rewind=rewind or 0,
    )
    asked = _asked(script, fails_on, config, batch)
    subject = _subject(incident, store, asked)
    _headline(subject, asked, as_json)
    if escalate:
        _check_escalation(asked, options)
    with common.progress() as bars:
        found = _found(subject, asked, options, common.Reporter(bars))
    if not as_json:
        common.out().print(f"[bold]{found.verdict}[/bold]  {common.safe(sentence(found))}")
        for line in scripting.ends(found) if asked else ():
            common.out().print(f"  {escape.line(line)}", markup=False)
    more = _escalated(found, subject, options, as_json) if escalate and subject else {}
    if as_json:
        common.emit({**found.to_json(), **more})
    if found.folder and found.stopped in ("interrupted", "infrastructure"):
        _go_on(context, found.folder, as_json)
    elif incident and not asked and not as_json and _is_worth_reducing(found, subject):
        common.next_step(*reduce_it(incident))
    return EXIT[found.verdict]


def _check_escalation(asked: scripting.Asked | None, options: pipeline.Options) -> None:
    if asked:
        raise BadInput("--escalate: looks into the modules of a harness, which --script has not; leave one of them out")
    escalating.check(options)


def _escalated(
    found: Replay, subject: pipeline.Subject, options: pipeline.Options, as_json: bool
) -> dict[str, dict[str, object] | None]:
    """What JSON gets of the further round; the verdict is known by then, and stays what it is, whatever happens."""
    if found.verdict not in escalating.WORTH or found.stopped in ("interrupted", "infrastructure"):
        return {"escalation": None}
    try:
        with common.progress() as bars:
            told = escalating.escalate(subject, options, common.Reporter(bars))
    except (ReprokitError, OSError, KeyboardInterrupt) as error:
        why = str(error) or "interrupted"
        common.say(f"not escalated: {why}")
        return {"escalation": {"error": why}}
    if not as_json:
        console = common.out()
        console.print(f"[bold]ESCALATED[/bold]  {told.replay.fail}/{told.replay.n} failed as captured")
        for line in [*told.sentences(), f"evidence in {told.incident.path}/{FOLDER}"]:
            console.print(f"  {escape.line(line)}", markup=False)
        common.next_step("reprokit", "triage", told.incident.path)
    return {"escalation": told.to_json()}


def _is_worth_reducing(found: Replay, subject: pipeline.Subject | None) -> bool:
    if subject is None or found.verdict is not Verdict.REPRODUCIBLE:
        return False
    return subject.incident.manifest.signature is not None and not subject.incident.manifest.certificate


def _asked(
    script: str | None, fails_on: list[str] | None, config: Path | None, batch: Path | None
) -> scripting.Asked | None:
    if script is not None:
        return scripting.asked(script, fails_on or (), config=config, batch=batch)
    for name, given in (("fails-on", fails_on), ("config", config), ("batch", batch)):
        if given:
            raise BadInput(f"--{name}: goes with --script COMMAND; a harness says by itself what failed")
    return None


def _subject(incident: str | None, store: str | None, asked: scripting.Asked | None) -> pipeline.Subject | None:
    if incident is None and asked is None:
        raise BadInput("Missing argument 'INCIDENT'; or give --script COMMAND (see --help)")
    return None if incident is None else pipeline.opened(incident, store)


def _headline(subject: pipeline.Subject | None, asked: scripting.Asked | None, as_json: bool) -> None:
    if subject:
        common.headline(subject.incident, as_json)
    if asked:
        (common.err if as_json else common.out()).print(escape.line(asked.headline), markup=False)


def _found(
    subject: pipeline.Subject | None,
    asked: scripting.Asked | None,
    options: pipeline.Options,
    progress: common.Reporter,
) -> Replay:
    """Also of one that was interrupted."""
    try:
        if asked:
            return scripting.replay(subject, asked, options, progress, keep=True)
        assert subject is not None
        return pipeline.replay(subject, options, progress, keep=True)
    except Halted as halted:
        return halted.replay


def _go_on(context: typer.Context, folder: Path, as_json: bool) -> None:
    """The same command, from where it was; on stderr where stdout belongs to JSON."""
    given = {**context.params, "resume": folder, "out": None}
    words: list[object] = ["reprokit", "replay", *filter(None, [given.pop("incident")])]
    for parameter in context.command.params:
        value = given.get(str(parameter.name))
        if value is True:
            words.append(parameter.opts[0])
        elif isinstance(value, list | tuple):
            words += [word for one in value for word in (parameter.opts[0], one)]
        elif value not in (None, False, "", parameter.default):
            words += [parameter.opts[0], value]
    line = " ".join(map(escape.sh, words))
    common.say(f"to go on: {line}") if as_json else common.next_line(line)
