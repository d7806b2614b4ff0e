"""What the verbs share: consoles, JSON on stdout, options that mean the same everywhere."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import markup
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from reprokit import incident as incidents
from reprokit.cli import streams
from reprokit.cli.pulse import Pulse
from reprokit.reduce.result import Reduction
from reprokit.replay.choose import ENGINES
from reprokit.report import escape, reductions, texts

Incident = Annotated[str, typer.Argument(metavar="INCIDENT", help="A folder, a bundle, or the id of one in a store.")]
Optional = Annotated[
    str | None, typer.Argument(metavar="[INCIDENT]", help="A folder, a bundle, or the id of one in a store.")
]
Engine = Annotated[str | None, typer.Option(help=f"{', '.join(ENGINES)}; by default docker where it answers.")]
Inner = Annotated[str | None, typer.Option(help="Engine inside fork, ray and slurm: docker, process or fork.")]
RayAddress = Annotated[str | None, typer.Option(metavar="ADDR", help="Ray cluster; by default one on this machine.")]
Store = Annotated[str | None, typer.Option(metavar="URL", help="Where nodes fetch the incident: file:// or s3://.")]
Partition = Annotated[str | None, typer.Option(help="Slurm partition.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, everything else on stderr.")]
Trust = Annotated[bool, typer.Option("--trust", help="Run code of a bundle from elsewhere outside a container.")]
Match = Annotated[str | None, typer.Option(metavar="REGEX", help="A failure is the same one if its message matches.")]
Timeout = Annotated[
    float, typer.Option(min=0.001, max=1e6, help="Seconds for one evaluation; past it, that is a hang.")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Attempts at the same time.")]
Image = Annotated[str | None, typer.Option(help="Use this image as it is; `captured`: the one that training ran in.")]
Base = Annotated[str | None, typer.Option("--base-image", help="Image that the replay image is built on.")]
Wheels = Annotated[Path | None, typer.Option("--wheelhouse", help="A folder of wheels, instead of this machine's pip.")]
Compiler = Annotated[bool, typer.Option("--compiler", help="The image has a C++ compiler, for torch.compile.")]


def _at(socket: str | None) -> str | None:
    """For all that asks for an engine from here on."""
    if socket:
        os.environ["DOCKER_HOST"] = f"unix://{socket}" if socket.startswith("/") else socket
    return socket


Socket = Annotated[
    str | None,
    typer.Option(metavar="PATH", callback=_at, help="Where Docker or Podman answers, instead of DOCKER_HOST."),
]


class Screen(Console):
    """One that does not end the process where nobody reads."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        streams.unread(self.file)


err = Screen(stderr=True, highlight=False, soft_wrap=True, emoji=False)  # a path stays one word


def out() -> Console:
    """For what the verb says; made when it is used, since tests replace stdout."""
    return Screen(file=sys.stdout, highlight=False, soft_wrap=True, emoji=False)


def safe(text: str) -> str:
    """Text from an incident inside a line of ours: no markup, nothing that a terminal would obey."""
    return markup.escape(escape.line(text))


def next_step(*words: object) -> None:
    """The last line of a verb: a command that can be copied. Quoted, and never wrapped, however narrow the screen."""
    next_line(" ".join(map(escape.sh, words)))


def next_line(command: str) -> None:
    """The same for a command that is quoted already."""
    out().print(f"next: {escape.line(command)}", markup=False, soft_wrap=True)


def emit(data: Mapping[str, Any]) -> None:
    """The verb's answer for programs: strict JSON, one object."""
    streams.answer(json.dumps(data, allow_nan=False))


class Bars(Progress):
    """On a terminal; elsewhere nothing is drawn, and there is a pulse."""

    pulse: Pulse | None = None


@contextmanager
def progress() -> Iterator[Bars]:
    """For what may take long: bars on a terminal, a plain line on stderr now and then elsewhere."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", style="dim"),
    )
    with Bars(*columns, console=err, transient=True, disable=not err.is_terminal) as bars, ExitStack() as stack:
        if not err.is_terminal:
            bars.pulse = stack.enter_context(Pulse(say))
        yield bars


def say(line: str) -> None:
    """News for people, beside the answer."""
    err.print(f"  {escape.plain(line, keep='')}", markup=False, style="dim")


class Reporter:
    """The pipeline's news on a terminal: one bar for what is under way, a line for what is worth reading once."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._task: TaskID | None = None
        self._what = ""

    def say(self, line: str) -> None:
        say(line)

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        if self._bars.pulse:
            self._bars.pulse.tell(what, done, total, note)
        if what.split()[0] != self._what or self._task is None:
            if self._task is not None:
                self._bars.remove_task(self._task)
            self._task, self._what = self._bars.add_task(what, total=total, note=note), what.split()[0]
        self._bars.update(self._task, description=what, completed=done, total=total, note=note)


def headline(incident: incidents.Incident, as_json: bool) -> None:
    """First line of a verb; not on stdout where that belongs to JSON."""
    (err if as_json else out()).print(escape.line(texts.headline(incident)), markup=False)


def reduction_lines(found: Reduction) -> list[str]:
    """Axes before and after, and what is guilty; regions, groups and values where there are any."""
    return [escape.line(line) for line in reductions.lines(found.to_json())]


def print_reduction(found: Reduction) -> None:
    """The answer first, the evidence beside it, the next step last."""
    console = out()
    doubts = ("" if found.one_minimal else ", not shown to be minimal") + ("" if found.complete else ", not finished")
    console.print(f"[bold]REDUCED[/bold]{doubts}")
    for line in reduction_lines(found):
        console.print(f"  {line}", markup=False)
    console.print(f"  {found.calls} evaluations, {found.step_equivalents:.1f} whole steps, isolation {found.isolation}")
    if found.synthetic:
        console.print(f"synthetic twin  {found.synthetic['path']}, script {found.synthetic['script']}", markup=False)
    for picture in found.pictures:
        console.print(f"picture  {picture}", markup=False)
    next_step("reprokit", "replay", found.path)
