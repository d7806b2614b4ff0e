"""A command of the user's in place of a step, in a fresh container: confined as a step is there.

It may write to two folders more than to `/tmp`: its copy of the source, in which it runs, and `{out}`. Its words are
the container's command as they are; the image needs nothing of reprokit.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from docker.models.containers import Container

from reprokit._scratch import Scratch
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.replay import daemon, machine
from reprokit.replay.container import INCIDENT, OUT, Bind, ContainerSpec
from reprokit.replay.criterion import Ending
from reprokit.replay.engines import script as scripts
from reprokit.replay.engines.docker import Docker
from reprokit.replay.engines.script import DEADLINE, Script
from reprokit.replay.handover import Room
from reprokit.replay.output import Scanner, drain
from reprokit.replay.stage import Stage
from reprokit.step import worker
from reprokit.step.case import Case
from reprokit.step.deadline import Deadline
from reprokit.step.outcome import Outcome, Status

WORK, INPUTS = "/work", "/inputs"
_MANY = 10_000  # files and folders that an attempt may leave beside its copy of the source
_PARTING = 30.0  # seconds without a byte of the last output of a container that ended
_NOT_STARTED = re.compile(r"^timeout: [^\n]*", re.MULTILINE)
_NO_PROGRAM = (126, 127)


class ContainedScript(Docker):
    """A fresh container for each attempt."""

    def __init__(
        self,
        script: Script,
        incident: Incident | None,
        image: str,
        *,
        jobs: int | None = None,
        timeout: float | None = None,
        network: str = "none",
    ) -> None:
        self._script, self._incident = script, incident
        super().__init__(image, jobs=jobs, need=scripts.need(incident), deadline=timeout or DEADLINE, network=network)

    def _once(self, case: Case) -> Outcome:
        stage = self._script.stage
        with Scratch("attempt") as private:
            folder = Path(private)
            stage.lay(folder, open_=True)
            words = self._script.words(case, incident=INCIDENT, inputs=INPUTS, out=OUT)
            where = self._incident.path if self._incident else stage.tree
            spec = self._machine.spec(
                replace(case, incident=where), self._subject(case), stage.out(folder), words, self._deadline
            )
            return self._attempt_in(confined(spec, stage, folder), folder, words[0])

    def _subject(self, case: Case) -> machine.Subject:
        environment = dict(worker.environment(self._incident, case, host={}) if self._incident else case.variant.env)
        environment.pop("PYTHONSAFEPATH", None)  # a script finds the modules beside it
        flags = self._incident.flags() if self._incident else {}
        gpus = str(flags.get("device", "")).startswith("cuda")
        return machine.Subject(kind=None, environment=environment, gpus=gpus)

    def _attempt_in(self, spec: ContainerSpec, folder: Path, program: str) -> Outcome:
        if self._closing.is_set():
            return Outcome(status=Status.INFRA, detail="interrupted")
        container = self._machine.create(spec)
        scanner = Scanner(self._script.fails_on)
        try:
            room = _Rooms(self._script.stage, folder, spec.limits.out)
            with _read(container, scanner):
                container.start()
                greedy = self._watched(container, Deadline(spec.limits.deadline, folder / "never"), room)
                overdue = f"did not end within {spec.limits.deadline:g} s" if greedy == "" else ""
                if greedy is not None:
                    machine.kill(container)  # before its output is waited for
            if self._closing.is_set():
                return Outcome(status=Status.INFRA, detail="interrupted")
            end = machine.end_of(container, overdue=overdue, greedy=greedy or "", begun=True)
        finally:
            machine.remove(container)
        if end.code in _NO_PROGRAM and (said := _NOT_STARTED.findall(scanner.log)):
            raise BadInput(f"--script: {program}: does not start in {self.image} ({said[-1]}); give another --image")
        memory = f"killed at its memory limit of {spec.limits.memory / (1 << 30):.1f} GiB; run fewer jobs at once"
        ending = Ending(
            code=None if overdue or greedy else end.code,
            overdue=overdue,
            spoiled=memory if end.out_of_memory else end.greedy,
            matched=scanner.matched,
            metrics=scanner.metrics,
            log=scanner.log,
        )
        return self._script.outcome(ending, self._script.stage.out(folder))


def confined(spec: ContainerSpec, stage: Stage, folder: Path) -> ContainerSpec:
    """The container of a step, with what a command finds instead. folder: of the attempt. Pure."""
    incident = [] if stage.incident else [INCIDENT]
    inputs = [Bind(source=str(stage.folder), target=INPUTS)] if stage.inputs else []
    packages = [f"{INCIDENT}/source/packages"] if stage.packages else []
    paths = [*packages, spec.environment["PYTHONPATH"], *(f"{WORK}/{entry}" for entry in stage.path)]
    return replace(
        spec,
        binds=(
            *(bind for bind in spec.binds if bind.target not in incident),
            Bind(source=str(stage.work(folder)), target=WORK, writable=True),
            *inputs,
        ),
        environment={**spec.environment, "PYTHONPATH": ":".join(paths)},
        workdir=f"{WORK}/{stage.cwd}",
    )


class _Rooms(Room):
    """What an attempt leaves in `{out}`, and beside its copy of the source."""

    def __init__(self, stage: Stage, folder: Path, limit: int) -> None:
        super().__init__(stage.out(folder), limit)
        entries, size = stage.size
        self._work = Room(stage.work(folder), limit + size, many=_MANY + entries)

    def exceeded(self) -> str:
        return super().exceeded() or self._work.exceeded()


@contextmanager
def _read(container: Container, scanner: Scanner) -> Iterator[None]:
    """All that it prints, from before its start: what the engine keeps of it is the end alone."""
    output = container.attach(stdout=True, stderr=True, stream=True, logs=False)

    def feed() -> None:
        try:
            for data in output:
                scanner.feed(data)
        except daemon.Silent:  # whoever asks after the container hears of that, too
            pass
        scanner.close()

    reader = threading.Thread(target=feed, daemon=True)
    reader.start()
    yield
    drain(reader, scanner, _PARTING)
