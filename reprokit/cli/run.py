"""`reprokit run`: train under supervision."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from reprokit import supervise
from reprokit.cli import common

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="[--] COMMAND...", help="What trains: python train.py ...")],
    as_json: common.Json = False,
) -> int:
    """Run COMMAND with its streams, signals and exit code as they are; where it dies in a step, leave an incident.

    Its Recorder keeps a black box of what each step begins with, in shared memory: a process that is killed, or ends
    by a fault or an exit in a step, is captured from that.
    """
    say = lambda line: common.err.print(f"reprokit: {line}", markup=False)
    ended = supervise.run(command, say=say, stdout=sys.stderr if as_json else None)
    if as_json:
        common.emit({"code": ended.code, "incident": str(ended.incident) if ended.incident else None})
    return ended.code
