"""`reprokit reduce`: the smallest case that still fails for the same reason."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from reprokit import _yaml, pipeline, reducing, resume
from reprokit.cli import common
from reprokit.errors import BadInput
from reprokit.reduce.isolation import LEVELS
from reprokit.reduce.oracle import Limits
from reprokit.report import escape
from reprokit.step.rewind import needed

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)

_DIGITS = 9  # of a budget: evaluations or hours beyond that end with whoever waits for them
_SECONDS = {"s": 1, "m": 60, "h": 3600}


@app.command()
def reduce(
    incident: common.Incident,
    out: Annotated[Path, typer.Option("-o", "--out", help="Folder in which the reduction is written.")],
    budget: Annotated[
        str | None, typer.Option(help="Evaluations (200) or time (90s, 10m, 2h) at most; the best so far is kept.")
    ] = None,
    verify: Annotated[int, typer.Option(min=1, help="Fresh replays that the result must survive.")] = 3,
    rewind: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEPS", help="Earlier steps that belong to it; a reduction has its own."),
    ] = None,
    isolation: Annotated[str, typer.Option(help=f"To begin with: {', '.join(LEVELS)}.")] = LEVELS[0],
    modules: Annotated[
        bool, typer.Option("--modules", help="Also which modules it needs, and whether a plainer loop still fails.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="CONFIG", help="A config that works: which differences bring the failure?")
    ] = None,
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Also a twin from generated data, for who may not share the batch.")
    ] = False,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Pictures of the batch and of the search, as PNG.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that evaluate; the result is the same.")] = 1,
    jobs: common.Jobs = None,
    timeout: common.Timeout = 900.0,
    match: common.Match = None,
    engine: common.Engine = None,
    trust: common.Trust = False,
    as_json: common.Json = False,
) -> int:
    """Reduce INCIDENT over samples, views and frames and what is in them, replay the result afresh, and write it as an
    incident. Ctrl-C keeps the best so far; the same command goes on from there.

    Exit code: 0 reduced, 11 the incident does not fail here, 12 ended before that was clear, 2 bad input, 3
    infrastructure.
    """
    if isolation not in LEVELS:
        raise BadInput(f"--isolation {isolation}: unknown; one of {', '.join(LEVELS)}")
    subject = pipeline.opened(incident)
    options = pipeline.Options(
        engine=engine or (None if subject.foreign and not trust else "process"),
        jobs=jobs,
        timeout=timeout,
        match=match,
        trust=trust,
        n=verify,
    )
    common.headline(subject.incident, as_json)
    with common.progress() as bars, _stoppable() as stop:
        limits = _limits(budget, stop)
        scope = reducing.Scope(
            rewind=needed(subject.incident) if rewind is None else rewind,
            isolation=isolation,
            modules=modules,
            baseline=_config(baseline),
            synthetic=synthetic,
            pictures=pictures,
            workers=workers,
            limits=limits,
        )
        found = reducing.reduce(subject, out, options, common.Reporter(bars), scope)
    if as_json:
        common.emit(found.to_json())
    else:
        common.print_reduction(found)
        if not found.complete:
            common.out().print(f"to go on, to a result in the place of this one: {resume.AGAIN}", markup=False)
        most = subject.incident.rewindable()
        if found.batch_guilty is False and not scope.rewind and most:
            again = f"reprokit reduce {escape.sh(incident)} -o {escape.sh(out)} --rewind {most}"
            common.out().print(f"or, for a cause in the {most} steps before: {again}", markup=False)
    return 0


def _limits(budget: str | None, stop: Callable[[], bool]) -> Limits:
    """Raises BadInput for what is neither a number of evaluations nor a time."""
    if budget is None:
        return Limits(stop=stop)
    number, unit = (budget[:-1], budget[-1]) if budget[-1:] in _SECONDS else (budget, "")
    if not number.isdecimal() or len(number) > _DIGITS or not int(number):
        raise BadInput(f"--budget {budget}: give evaluations, as in 200, or a time, as in 90s, 10m or 2h, above 0")
    if unit:
        return Limits(seconds=float(int(number) * _SECONDS[unit]), stop=stop)
    return Limits(calls=int(number), stop=stop)


def _config(path: Path | None) -> Any:
    """Raises BadInput where it cannot be read."""
    if path is None:
        return None
    try:
        with path.open() as file:
            config = _yaml.read(file.read(_yaml.LENGTH + 1))
    except (OSError, ValueError) as error:
        why = " ".join(str(error).split())
        raise BadInput(f"--baseline {path}: cannot be read ({why}); give YAML like an incident's config.yaml") from None
    if not isinstance(config, dict):
        raise BadInput(f"--baseline {path}: holds no mapping; give YAML like an incident's config.yaml")
    try:
        json.dumps(config, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        raise BadInput(f"--baseline {path}: holds more than names, numbers, texts and lists of them") from None
    return config


@contextmanager
def _stoppable() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed once; the second time ends everything."""
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if pressed:
            (before if callable(before) else signal.default_int_handler)(number, frame)
        pressed.append(number)
        common.err.print("stopping after this evaluation; the best so far is kept (again: stop at once)")

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
