"""The process that evaluates cases: reads one JSON request a line and answers one line each, or evaluates a single case
given by `--case` and exits.

Outcomes are files, written whole or not at all; what user code prints goes to stderr. While the step is under way a
marker stands beside the outcome's place: a process that ends then was ended by the step, however it ended, and one that
ends before (imports, build) or after says nothing about the case.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import IO, Any

from reprokit import tree
from reprokit.errors import ReprokitError
from reprokit.incident import Incident
from reprokit.step import group
from reprokit.step.case import Case
from reprokit.step.company import share
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Outcome, Status

ARGUMENTS = "arguments"  # the tree beside a traced outcome: args and kwargs of the operation that it names
_LOOK = 1.0  # seconds between looks at whether the parent lives
_LINE = 300  # characters of an error that are passed on in one line


def marker(out: Path) -> Path:
    """What stands beside an outcome's place while its step is under way."""
    return out.with_suffix(".begun")


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m reprokit.step.serve", description=__doc__)
    parser.add_argument("--case", type=Path, help="evaluate this case and exit, instead of reading requests from stdin")
    parser.add_argument("--out", type=Path, help="where the outcome of --case goes")
    parser.add_argument("--match", help="a regular expression that a failure's message must match to be the same one")
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    requests = os.fdopen(os.dup(0))
    os.dup2(2, 1)  # what user code prints must not look like an answer, nor may it read our requests
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if not arguments.case:
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    if arguments.case:
        serve_file(arguments.case, arguments.out, arguments.match)
        return
    sessions = _Sessions(arguments.match)
    try:
        _serve(sessions, requests, answers)
    finally:
        sessions.close()


def serve_file(case: Path, out: Path, match: str | None = None) -> None:
    """Evaluate the case in a file, in this process if it is of one rank, and write the outcome."""
    sessions = _Sessions(match)
    try:
        _serve_once(sessions, json.loads(case.read_text()), out, match)
    finally:
        sessions.close()


def _end_with(parent: int) -> None:
    """A step that hangs never looks at its input: nobody would end it once its parent was killed. On Linux the kernel
    does that."""
    while os.getppid() == parent:
        sleep(_LOOK)
    os.killpg(os.getpgrp(), signal.SIGKILL)


class _Sessions:
    """The session of the incident that was asked for last."""

    def __init__(self, match: str | None) -> None:
        self._match = match
        self._open: tuple[Path, Session] | None = None

    def of(self, incident: Path) -> Session:
        if self._open is None or self._open[0] != incident:
            self.close()
            self.hold(incident, Incident.open(incident))
        assert self._open is not None
        return self._open[1]

    def hold(self, path: Path, incident: Incident) -> None:
        """One that was just opened, and verified."""
        self._open = (path, Session(replace(incident, rank=group.rank()), match=self._match, own_process=True))

    def close(self) -> None:
        if self._open:
            self._open[1].__exit__(None, None, None)
            self._open = None


def _serve_once(sessions: _Sessions, request: dict[str, Any], out: Path, match: str | None) -> None:
    """Of several ranks, each in a process below this one."""
    case = Case.from_json(request)
    try:
        incident = Incident.open(case.incident)
        if incident.manifest.world_size == 1:
            sessions.hold(case.incident, incident)
    except ReprokitError as error:
        write(out, Outcome(status=Status.INFRA, detail=str(error)).to_json())
        return
    if incident.manifest.world_size == 1:
        _serve_one(sessions, {"case": request, "out": str(out)})
        return
    from reprokit.step.worker import Worker  # which knows of this module

    with Worker(incident, match=match) as worker:
        outcome = worker.evaluate(case, on_step=marker(out).touch)
    marker(out).unlink(missing_ok=True)
    write(out, outcome.to_json())


def _serve(sessions: _Sessions, requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        request = json.loads(line)
        _describe(sessions, request) if "describe" in request else _serve_one(sessions, request)
        answers.write(json.dumps({"done": request["out"]}) + "\n")


def _serve_one(sessions: _Sessions, request: dict[str, Any]) -> None:
    case, out = Case.from_json(request["case"]), Path(request["out"])
    try:
        session = sessions.of(case.incident)
        own = share(case, session.incident)
        outcome = session.evaluate(own, request.get("isolation", "restore"), on_step=marker(out).touch)
    except ReprokitError as error:
        outcome = Outcome(status=Status.INFRA, detail=str(error))
    marker(out).unlink(missing_ok=True)  # what ends the process from here on is not the step
    if case.trace and (arguments := sessions.of(case.incident).arguments) is not None:
        tree.save(arguments, out.parent, ARGUMENTS, on_unstorable=lambda entry, value: None)
    write(out, outcome.to_json())


def _describe(sessions: _Sessions, request: dict[str, Any]) -> None:
    """Nothing that the user's code raises may end a worker."""
    try:
        case = Case.from_json(request["describe"])
        answer = sessions.of(case.incident).describe(case.variant)
        write(Path(request["out"]), answer)
    except (Exception, SystemExit) as error:
        text = str(error) if isinstance(error, ReprokitError) else f"{type(error).__name__}: {error}"
        write(Path(request["out"]), {"error": " ".join(text.split())[-_LINE:]})


def write(out: Path, data: dict[str, Any]) -> None:
    """Whole or not at all."""
    text = json.dumps(data, allow_nan=False)
    beside = out.with_suffix(".part")
    beside.write_text(text)
    beside.replace(out)


if __name__ == "__main__":
    main()
