"""The handle on a process that evaluates cases (`serve`): started in the captured environment, held to deadlines. What
a step starts ends with that process (`keeper`).

The environment must be the captured one before the interpreter starts, which is why it is a process at all. A deadline
that passes is a hang; what the end of a process without an answer means is in `ends`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from types import TracebackType
from typing import Any

from reprokit import tree
from reprokit._scratch import Scratch
from reprokit.errors import BadInput, Infrastructure
from reprokit.incident import Incident
from reprokit.step import memory
from reprokit.step.case import Case, Variant
from reprokit.step.company import Company
from reprokit.step.deadline import Deadline, patience
from reprokit.step.ends import Death, conclude, shell_code
from reprokit.step.evaluate import Isolation
from reprokit.step.flags import DETERMINING
from reprokit.step.keeper import Kept
from reprokit.step.outcome import Outcome
from reprokit.step.serve import ARGUMENTS, marker

_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}  # attempts share cores: threads that spin while they wait stall the others
_POLL = 0.05  # seconds between looks at a process that has not answered
_LINE = 300  # characters of an error that are passed on in one line
_TAIL = 4000  # characters of a dead worker's output that are kept: a traceback, not a log


def environment(
    incident: Incident, case: Case | None = None, *, host: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Variables for a process that evaluates the incident's cases: this machine's own ones (`host`, by default this
    process's), with those that decide about numbers taken from the incident, and the case's changes on top."""
    own = {k: v for k, v in (os.environ if host is None else host).items() if not k.startswith(DETERMINING)}
    captured = {k: v for k, v in incident.variables().items() if k.startswith(DETERMINING)}
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
    """One process in an incident's environment; started on first use, and again after it was killed or died. Of an
    incident of several ranks, one for each. seat: variables of a process that is one of several."""

    def __init__(
        self, incident: Incident, *, match: str | None = None, seat: Mapping[str, str] | None = None
    ) -> None:
        self._incident = incident
        self._seat = dict(seat or {})
        start = lambda seat: Worker(incident, match=match, seat=seat)
        self._company = Company(incident, start) if incident.manifest.world_size > 1 and not seat else None
        self._match = match
        self._process: Kept | None = None
        self._starting = threading.Lock()
        self._killed = False
        self._environment: dict[str, str] = {}
        self._scratch = Scratch("worker")
        self._log = Path(self._scratch.name) / "log.txt"

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def evaluate(
        self,
        case: Case,
        isolation: Isolation = "restore",
        *,
        timeout: float | None = None,
        on_step: Callable[[], object] = lambda: None,
    ) -> Outcome:
        """Evaluate one case. A deadline in seconds that passes in its step is a hang, a process that ends there a
        crash: both are outcomes. The step of a captured hang has a shorter one (see `deadline`). on_step: called when
        it has begun, of several ranks."""
        started = perf_counter()
        if self._company:
            outcome = self._company.evaluate(case, timeout=timeout, on_step=on_step)
            return replace(outcome, total_seconds=perf_counter() - started)
        wanted = child_environment(self._incident, case) | self._seat
        if isolation == "process":
            self._stop()
        process = self._ready(wanted)
        out = Path(self._scratch.name) / "outcome.json"
        for stale in (out, marker(out), out.parent / f"{ARGUMENTS}.json"):
            stale.unlink(missing_ok=True)
        case = replace(case, incident=case.incident.resolve())  # the process works in a folder of its own
        killed = memory.kills()
        deadline = Deadline(timeout, marker(out), patience(self._incident.manifest, case.rewind + 1))
        answered = self._ask(process, {"case": case.to_json(), "out": str(out), "isolation": isolation}, deadline)
        if out.exists():
            outcome = replace(Outcome.from_json(json.loads(out.read_text())), log=self._tail())
        else:
            overdue = deadline.why() if answered is None else ""
            outcome = self._ended(process, case, overdue, starved=memory.kills() > killed)
        if not out.exists() or isolation == "process":
            self._stop()
        return replace(outcome, host=outcome.host or platform.node(), total_seconds=perf_counter() - started)

    @property
    def begun(self) -> bool:
        """Whether the step is under way."""
        return marker(Path(self._scratch.name) / "outcome.json").exists()

    def arguments(self) -> Any:
        """Of the operation that the last traced case was led to; None where there is none, or it was too large."""
        if self._company:
            return self._company.arguments()
        folder = Path(self._scratch.name)
        return tree.load(folder, ARGUMENTS) if (folder / f"{ARGUMENTS}.json").exists() else None

    def describe(self, variant: Variant | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """What variants can name of the harness: knobs, modules, parameters with their shapes, optimizers, fields.

        variant: built from its config. Another config may make other modules.

        Raises BadInput where the harness cannot be built, Infrastructure where the process ends or does not answer.
        """
        case = Case(incident=self._incident.path.resolve(), variant=variant or Variant())
        wanted = child_environment(self._incident, case)
        process = self._ready(wanted)
        out = Path(self._scratch.name) / "description.json"
        out.unlink(missing_ok=True)
        answered = self._ask(process, {"describe": case.to_json(), "out": str(out)}, Deadline(timeout, marker(out)))
        where = f"{self._incident.path}: the harness could not be described"
        if not out.exists():
            code = process.process.wait() if answered is not None else None
            why = f"no answer within {timeout:g} s" if code is None else f"the process ended with {code}"
            self._stop()
            raise Infrastructure(f"{where}: {why}; {' '.join(self._tail().split())[-_LINE:]}".rstrip("; "))
        answer = json.loads(out.read_text())
        if type(answer) is dict and "error" in answer:
            raise BadInput(f"{where}: {answer['error']}")
        return _description(answer, where)

    def kill(self) -> None:
        """End the process, from another thread, for good: the evaluation that is under way ends as a crash, or in a
        CancelledError where its process was not started yet, as all later ones do."""
        if self._company:
            self._company.kill()
        with self._starting:
            self._killed = True
        if process := self._process:
            process.end()

    def close(self) -> None:
        """End the process and remove its files."""
        if self._company:
            self._company.close()
        self._stop()
        self._scratch.cleanup()

    def _ready(self, variables: dict[str, str]) -> Kept:
        """The one that is there, or a new one."""
        there = self._process
        if there and (variables != self._environment or there.process.poll() is not None):
            self._stop()
        return self._process or self._start(variables)

    def _start(self, variables: dict[str, str]) -> Kept:
        command = [sys.executable, "-m", "reprokit.step.serve"]
        command += ["--match", self._match] if self._match else []
        with self._starting, self._log.open("ab") as log:
            if self._killed:
                raise CancelledError
            self._process = Kept(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self._scratch.name,
                env={**variables, "TMPDIR": self._scratch.name},
            )
        self._environment = variables
        return self._process

    def _ask(self, kept: Kept, request: dict[str, Any], deadline: Deadline) -> str | None:
        """The answer; "" if the process died, None if the deadline passed."""
        process = kept.process
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
        while reader.is_alive() and process.poll() is None and not deadline.passed():
            reader.join(_POLL)  # a child of the step may hold the pipe when the process itself is gone
        while not any(answers) and process.poll() is None and not deadline.passed():
            sleep(_POLL)  # the step closed the pipe: all that is left to wait for is its end
        if any(answers):
            return answers[0]
        return None if process.poll() is None else ""

    def _ended(self, kept: Kept, case: Case, overdue: str, *, starved: bool) -> Outcome:
        code = 0 if overdue else shell_code(kept.process.wait())
        log = self._tail()
        death = Death(code=code, begun=self.begun, overdue=overdue, starved=starved, log=log)
        return replace(conclude(death, self._incident.manifest, case), exit_code=None if overdue else code, log=log)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_TAIL:] if self._log.exists() else ""

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process:
            with suppress(BrokenPipeError), process.process:  # it may have died with a request in its pipe
                process.end()


def _description(answer: Any, where: str) -> dict[str, Any]:
    """Raises Infrastructure for what no worker writes: the process may have run anybody's code."""
    answer = answer if type(answer) is dict else {}
    kinds = {"knobs": dict, "modules": list, "parameters": dict, "optimizers": dict, "harness": dict}
    if not all(type(answer.get(name)) is kind for name, kind in kinds.items()):
        raise Infrastructure(f"{where}: the answer is not a description")
    lists = [*answer["knobs"].values(), *answer["parameters"].values()]
    if not all(type(one) is list for one in lists) or not all(type(name) is str for name in answer["modules"]):
        raise Infrastructure(f"{where}: the answer is not a description")
    return {name: answer[name] for name in kinds}
