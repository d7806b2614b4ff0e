"""A process that evaluates cases, and the handle by which others use one.

In the process: `python -m reprokit.step.worker` reads one JSON request a line and answers one line each, or evaluates a
single case given by `--case` and exits. Outcomes are files, written whole or not at all; what user code prints goes to
stderr. The environment must be the captured one before the interpreter starts, which is why this is a process at all.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from time import monotonic, perf_counter, sleep
from types import TracebackType
from typing import IO, Any

from reprokit import tree
from reprokit.errors import ReprokitError
from reprokit.failure import Kind, Signature
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Isolation, Session
from reprokit.step.flags import DETERMINING
from reprokit.step.outcome import Outcome, Status

_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}  # attempts share cores: threads that spin while they wait stall the others
ARGUMENTS = "arguments"  # the tree beside a traced outcome: args and kwargs of the operation that it names
_POLL = 0.05  # seconds between looks at a process that has not answered
_LOOK = 1.0  # seconds between looks at whether the parent lives
_TAIL = 4000  # characters of a dead worker's output that are kept: a traceback, not a log


def environment(
    incident: Incident, case: Case | None = None, *, host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables for a process that evaluates the incident's cases: this machine's own ones (`host`, by default this
    process's), with those that decide about numbers taken from the incident, and the case's changes on top."""
    own = {k: v for k, v in (os.environ if host is None else host).items() if not k.startswith(DETERMINING)}
    captured = {k: v for k, v in incident.environment().get("variables", {}).items() if k.startswith(DETERMINING)}
    fixed = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONSAFEPATH": "1"}
    return own | _PATIENT | captured | fixed | (dict(case.variant.env) if case else {})


def child_environment(incident: Incident, case: Case | None = None) -> dict[str, str]:
    """`environment` for a child of this process, in which reprokit can be imported wherever this process found it."""
    variables = environment(incident, case)
    here = str(Path(__file__).resolve().parents[2])
    if "site-packages" in here:
        return variables
    return variables | {"PYTHONPATH": os.pathsep.join(filter(None, [here, variables.get("PYTHONPATH")]))}


class Worker:
    """One process in an incident's environment; started on first use, and again after it was killed or died."""

    def __init__(self, incident: Incident, *, match: str | None = None) -> None:
        self._incident = incident
        self._match = match
        self._process: subprocess.Popen[str] | None = None
        self._environment: dict[str, str] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="reprokit-worker-")
        self._log = Path(self._scratch.name) / "log.txt"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def evaluate(self, case: Case, isolation: Isolation = "restore", *, timeout: float | None = None) -> Outcome:
        """Evaluate one case. A deadline in seconds that passes is a hang, a process that dies a crash: both are
        outcomes."""
        started = perf_counter()
        wanted = child_environment(self._incident, case)
        if isolation == "process" or wanted != self._environment:
            self._stop()
        process = self._process or self._start(wanted)
        out = Path(self._scratch.name) / "outcome.json"
        out.unlink(missing_ok=True)
        (out.parent / f"{ARGUMENTS}.json").unlink(missing_ok=True)
        case = replace(case, incident=case.incident.resolve())  # the process works in a folder of its own
        answered = self._ask(process, {"case": case.to_json(), "out": str(out), "isolation": isolation}, timeout)
        if out.exists():
            outcome = Outcome.from_json(json.loads(out.read_text()))
        elif answered is None:
            outcome = self._ended(Kind.HANG, f"no answer within {timeout:g} s")
        else:
            outcome = self._died(process.wait())
        if not out.exists() or isolation == "process":
            self._stop()
        return replace(outcome, total_seconds=perf_counter() - started)

    def arguments(self) -> Any:
        """Of the operation that the last traced case was led to; None where there is none, or it was too large."""
        folder = Path(self._scratch.name)
        return tree.load(folder, ARGUMENTS) if (folder / f"{ARGUMENTS}.json").exists() else None

    def kill(self) -> None:
        """End the process from another thread; the evaluation that is under way ends as a crash."""
        if process := self._process:
            _kill_group(process)

    def close(self) -> None:
        """End the process and remove its files."""
        self._stop()
        self._scratch.cleanup()

    def _start(self, variables: dict[str, str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reprokit.step.worker", *(["--match", self._match] if self._match else [])]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._scratch.name,
                env={**variables, "TMPDIR": self._scratch.name},
                start_new_session=True,  # so that whatever it starts can be killed with it
            )
        self._environment = variables
        return self._process

    def _ask(self, process: subprocess.Popen[str], request: dict[str, Any], timeout: float | None) -> str | None:
        """The answer; "" if the process died, None if the deadline passed."""
        assert process.stdin is not None
        assert process.stdout is not None
        answers: list[str] = []
        reader = threading.Thread(
            target=lambda out: answers.append(out.readline()), args=(process.stdout,), daemon=True
        )
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            return ""
        reader.start()
        deadline = monotonic() + (inf if timeout is None else timeout)
        while reader.is_alive() and process.poll() is None and monotonic() < deadline:
            reader.join(_POLL)  # a child of the step may hold the pipe when the process itself is gone
        while not any(answers) and process.poll() is None and monotonic() < deadline:
            sleep(_POLL)  # the step closed the pipe: all that is left to wait for is its end
        if any(answers):
            return answers[0]
        return None if process.poll() is None else ""

    def _died(self, code: int) -> Outcome:
        """A signal ended the step; an exit code without an outcome is a process that never came that far."""
        if code < 0:
            return self._ended(Kind.CRASH, f"killed by {signal.Signals(-code).name}")
        return Outcome(status=Status.INFRA, detail=f"exited with {code} and no outcome\n{self._tail()}".strip())

    def _ended(self, kind: Kind, why: str) -> Outcome:
        signature = Signature(kind=kind, where="step")
        captured = self._incident.manifest.signature
        fails = captured is not None and captured.kind is kind
        return Outcome(
            status=Status.FAIL if fails else Status.OTHER, signature=signature, detail=f"{why}\n{self._tail()}".strip()
        )

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:] if self._log.exists() else ""

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with process:
            _kill_group(process)
            process.wait()


def _kill_group(process: subprocess.Popen[str]) -> None:
    """Whatever it started as well, also where it is gone itself."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(prog="python -m reprokit.step.worker", description=__doc__)
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
    sessions = _Sessions(arguments.match)
    try:
        if arguments.case:
            _serve_one(sessions, {"case": json.loads(arguments.case.read_text()), "out": str(arguments.out)})
        else:
            _serve(sessions, requests, answers)
    finally:
        sessions.close()


def _end_with(parent: int) -> None:
    """A step that hangs never looks at its input: nobody would end it once whoever asked was killed."""
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
            self._open = (incident, Session(Incident.open(incident), match=self._match, own_process=True))
        return self._open[1]

    def close(self) -> None:
        if self._open:
            self._open[1].__exit__(None, None, None)
            self._open = None


def _serve(sessions: _Sessions, requests: IO[str], answers: IO[str]) -> None:
    for line in requests:
        request = json.loads(line)
        _serve_one(sessions, request)
        answers.write(json.dumps({"done": request["out"]}) + "\n")


def _serve_one(sessions: _Sessions, request: dict[str, Any]) -> None:
    case = Case.from_json(request["case"])
    try:
        outcome = sessions.of(case.incident).evaluate(case, request.get("isolation", "restore"))
    except ReprokitError as error:
        outcome = Outcome(status=Status.INFRA, detail=str(error))
    out = Path(request["out"])
    if case.trace and (arguments := sessions.of(case.incident).arguments) is not None:
        tree.save(arguments, out.parent, ARGUMENTS, on_unstorable=lambda entry, value: None)
    beside = out.with_suffix(".part")
    beside.write_text(json.dumps(outcome.to_json(), allow_nan=False))
    beside.replace(out)


if __name__ == "__main__":
    main()
