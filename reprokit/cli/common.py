"""What the verbs share: consoles, JSON on stdout, options that mean the same everywhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from reprokit import incident as incidents
from reprokit.reduce.result import Reduction
from reprokit.replay.choose import ENGINES
from reprokit.report import escape, texts

Incident = Annotated[str, typer.Argument(metavar="INCIDENT", help="An incident's folder, or a bundle.")]
Engine = Annotated[str | None, typer.Option(help=f"{', '.join(ENGINES)}; by default docker where it answers.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run code of a bundle from elsewhere outside a container.")]
Match = Annotated[str | None, typer.Option(metavar="REGEX", help="A failure is the same one if its message matches.")]
Timeout = Annotated[
    float, typer.Option(min=0.001, max=1e6, help="Seconds for one evaluation; past it, that is a hang.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Attempts at the same time.")]
Base = Annotated[str | None, typer.Option("--base-image", help="Image that the replay image is built on.")]
Wheels = Annotated[Path | None, typer.Option("--wheelhouse", help="A folder of wheels, instead of this machine's pip.")]

err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)  # a path stays one word


def out() -> Console:
    """For what the verb says; made when it is used, since tests replace stdout."""
    return Console(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)


def safe(text: str) -> str:
    """Text from an incident inside a line of ours: no markup, nothing that a terminal would obey."""
    return markup.escape(escape.line(text))


def emit(data: Mapping[str, Any]) -> None:
    """The verb's answer for programs: strict JSON, one object."""
    print(json.dumps(data, allow_nan=False))


@contextmanager
def progress() -> Iterator[Progress]:
    """Bars on a terminal; silent elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        yield bars


class Reporter:
    """The pipeline's news on a terminal: one bar for what is under way, a line for what is worth reading once."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._what = ""

    def say(self, line: str) -> None:
        err.print(f"  {line}", markup=False, style="dim")

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        if what.split()[0] != self._what or self._task is None:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task, self._what = self._bars.add_task(what, total=total, note=note), what.split()[0]
        self._bars.update(self._task, description=what, completed=done, total=total, note=note)


def headline(incident: incidents.Incident, as_json: bool) -> None:
    """First line of a verb; not on stdout where that belongs to JSON."""
    (err if as_json else out()).print(escape.line(texts.headline(incident.manifest)), markup=False)


def reduction_lines(found: Reduction) -> list[str]:
    """Axes before and after, and what is guilty."""
    lines = []
    for name, axis in found.axes.items():
        kept = ", ".join(map(str, axis.kept))
        guilty = ", ".join(map(str, axis.guilty)) or "none alone"
        together = " together" if axis.together and len(axis.guilty) > 1 else ""
        lines.append(f"  {name}  {axis.size} -> {len(axis.kept)}   kept {kept}   guilty {guilty}{together}")
    return lines


def print_reduction(found: Reduction) -> None:
    """The answer first, the evidence beside it, the next step last."""
    console = out()
    blame = {
        True: "",
        False: "nothing in the batch is to blame: the donor fails as well",
        None: "no donor to compare with",
    }
    console.print("[bold]REDUCED[/bold]" if found.one_minimal else "[bold]REDUCED[/bold], not shown to be minimal")
    for line in [
        *reduction_lines(found),
        *filter(None, [f"  {blame[found.batch_guilty]}"] if blame[found.batch_guilty] else []),
    ]:
        console.print(line, markup=False)
    console.print(f"  {found.calls} evaluations, {found.step_equivalents:.1f} whole steps, isolation {found.isolation}")
    console.print(f"next: reprokit replay {found.path}", markup=False)
