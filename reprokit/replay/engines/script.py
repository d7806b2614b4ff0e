"""A command of the user's in place of a step, in a process of this machine.

Each attempt has a copy of the source to itself, and is judged by how it ended, what it printed and what it measured
(`criterion`). It runs in a session of its own below a keeper, so that what it starts ends with it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType

from reprokit._scratch import Scratch
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.replay import command, share
from reprokit.replay.criterion import Criterion, Ending, Metric, conclude
from reprokit.replay.engines.base import Engine
from reprokit.replay.output import Scanner, drain, measured
from reprokit.replay.stage import Stage
from reprokit.step import memory
from reprokit.step.case import Case
from reprokit.step.ends import shell_code
from reprokit.step.keeper import Kept
from reprokit.step.outcome import Outcome, Status
from reprokit.step.worker import child_environment

DEADLINE = 900.0  # seconds for one attempt where nobody says
_LOOK, _PARTING = 0.05, 30.0  # seconds between looks at a process, and without a byte of the last that it printed
_READ = 1 << 16  # bytes of output at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """What every attempt has in common."""

    command: command.Command
    fails_on: tuple[Criterion, ...]
    stage: Stage
    seed: int = 0  # of `{seed}`, where none is drawn
    numbers: count[int] = field(default_factory=count)

    def words(self, case: Case, *, incident: str, inputs: str, out: str) -> list[str]:
        """Of one attempt, with the places where it finds things."""
        values = {name: f"{inputs}/{path.name}" for name, path in self.stage.inputs.items()}
        seed = self.seed if case.rng == "captured" else case.rng
        own = {"incident": incident, "out": out, "seed": str(seed), "attempt": str(next(self.numbers))}
        return self.command.filled(values | own)

    def outcome(self, ending: Ending, out: Path) -> Outcome:
        names = [one.name for one in self.fails_on if isinstance(one, Metric)]
        metrics = {**(ending.metrics or {}), **measured(out, names)}
        return conclude(replace(ending, metrics=metrics), self.fails_on)


def need(incident: Incident | None) -> int:
    """Bytes of memory that an attempt is expected to take."""
    return share.need_of(incident) if incident else share.NEED


class ScriptProcess(Engine):
    """In a fresh process of this machine, unconfined. timeout: seconds, past which all that it started is killed."""

    name = "process"

    def __init__(
        self, script: Script, incident: Incident | None, *, jobs: int | None = None, timeout: float | None = None
    ) -> None:
        self.capacity = jobs or share.jobs(need(incident))
        self._script, self._incident, self._timeout = script, incident, timeout or DEADLINE
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(self.capacity, thread_name_prefix="script")

    def submit(self, case: Case) -> Future[Outcome]:
        return self._pool.submit(self._run, case)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._pool.shutdown(cancel_futures=True)

    def _run(self, case: Case) -> Outcome:
        if self._closing.is_set():
            raise CancelledError
        started = perf_counter()
        with Scratch("attempt") as private:
            folder = Path(private)
            self._script.stage.lay(folder)
            outcome = self._attempt(case, folder)
        spent = perf_counter() - started
        return replace(outcome, host=platform.node(), total_seconds=spent)

    def _attempt(self, case: Case, folder: Path) -> Outcome:
        stage = self._script.stage
        incident = str(self._incident.path.resolve()) if self._incident else ""
        words = self._script.words(case, incident=incident, inputs=str(stage.folder), out=str(stage.out(folder)))
        cwd, env = str(stage.work(folder) / stage.cwd), _variables(case, self._incident, stage, folder)
        _check_program(words[0], cwd, env)
        kills, scanner = memory.kills(), Scanner(self._script.fails_on)
        kept = Kept(words, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process = kept.process
        reader = threading.Thread(target=_read, args=(process, scanner), daemon=True)
        reader.start()
        overdue = self._waited(process)
        kept.end()
        drain(reader, scanner, _PARTING)
        if self._closing.is_set():
            return Outcome(status=Status.INFRA, detail="interrupted")
        code = process.returncode
        ending = Ending(
            code=None if overdue else shell_code(code),
            overdue=overdue,
            starved=memory.kills() > kills,
            matched=scanner.matched,
            metrics=scanner.metrics,
            log=scanner.log,
        )
        return self._script.outcome(ending, stage.out(folder))

    def _waited(self, process: subprocess.Popen[bytes]) -> str:
        """Until it ended: "". Else why it must end now."""
        until = monotonic() + self._timeout
        while process.poll() is None and not self._closing.is_set():
            if monotonic() >= until:
                return f"did not end within {self._timeout:g} s"
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
        return ""


def _variables(case: Case, incident: Incident | None, stage: Stage, folder: Path) -> dict[str, str]:
    """Of this machine, with those that decide about numbers as they were captured. `python` is the one that we are."""
    found = child_environment(incident, case) if incident else {**os.environ, **case.variant.env}
    found.pop("PYTHONSAFEPATH", None)  # a script finds the modules beside it
    work = stage.work(folder)
    paths = [stage.packages, *((work / entry) for entry in stage.path), found.get("PYTHONPATH")]
    found |= {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path)} if any(paths) else {}
    own = os.path.dirname(sys.executable)
    temporary = folder / "tmp"
    temporary.mkdir()
    return found | {
        "PATH": os.pathsep.join(filter(None, [own, found.get("PATH")])),
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }


def _check_program(word: str, cwd: str, env: Mapping[str, str]) -> None:
    """Raises BadInput where there is nothing to run: the next attempt would not find it either."""
    found = os.path.join(cwd, word) if os.sep in word else shutil.which(word, path=env["PATH"])
    if not found or not os.path.exists(found):
        raise BadInput(f"--script: {word}: no such program here; install it, or give its path from the source's root")
    if not os.access(found, os.X_OK) or os.path.isdir(found):
        raise BadInput(f"--script: {word}: not to be run; put its interpreter before it, or make it executable")


def _read(process: subprocess.Popen[bytes], scanner: Scanner) -> None:
    assert process.stdout is not None
    with process.stdout as stdout:
        while data := stdout.read1(_READ):  # type: ignore[attr-defined]
            scanner.feed(data)
    scanner.close()
