"""A fresh container for each case, on the Docker engine of this machine."""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from docker.models.containers import Container

from reprokit._scratch import Scratch
from reprokit.replay import daemon, machine
from reprokit.replay.container import INCIDENT, WORKER, Bind, ContainerSpec, Limits, conclude
from reprokit.replay.engines.base import Engine
from reprokit.replay.handover import Room, read_outcome
from reprokit.replay.machine import Machine, Subject, describe
from reprokit.replay.share import NEED
from reprokit.step.case import Case
from reprokit.step.deadline import Deadline
from reprokit.step.outcome import Outcome, Status
from reprokit.step.serve import marker

_LOOK = (0.02, 0.25)  # seconds between looks at a container: short at first, since a start takes half a second


class Docker(Engine):
    """A fresh container for each case: nothing survives from one attempt to the next."""

    name = "docker"

    def __init__(
        self,
        image: str,
        *,
        jobs: int | None = None,  # containers at once; by default as many as cores and memory allow
        need: int = NEED,  # bytes of memory that an attempt takes, for that default
        deadline: float | None = None,  # seconds that an attempt may take
        limits: Limits | None = None,  # instead of an equal share of the machine
        network: str = "none",
        binds: Sequence[Bind] = (),
        match: str | None = None,  # a regular expression instead of the captured message
        command: Sequence[str] = WORKER,
        describe: Callable[[Case], Subject] = describe,
    ) -> None:
        self._machine = Machine(image, jobs=jobs, need=need, limits=limits, network=network, binds=binds)
        self.image, self.run, self.capacity = image, self._machine.run, self._machine.jobs
        self._deadline, self._describe = deadline, describe
        self._command = (*command, *(("--match", match) if match else ()))
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(self.capacity, thread_name_prefix="reprokit-docker")

    def submit(self, case: Case) -> Future[Outcome]:
        return self._pool.submit(self._evaluate, case)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)  # first: what waits would begin where one is interrupted
        self._closing.set()  # each thread kills and removes its own container within one look
        self._pool.shutdown()
        self._machine.close()

    def _evaluate(self, case: Case) -> Outcome:
        """An attempt that went with its engine is made again, once, where the engine comes back."""
        started = perf_counter()
        try:
            try:
                outcome = self._once(case)
            except daemon.Silent as error:
                if not self._machine.back(error, self._closing):
                    raise
                outcome = self._once(case)
        except daemon.Silent as error:
            outcome = Outcome(status=Status.INFRA, detail=machine.explain(error))
        return replace(outcome, host=platform.node(), total_seconds=perf_counter() - started)

    def _once(self, case: Case) -> Outcome:
        with Scratch("attempt") as private:
            out = Path(private) / "out"  # open to the user that the engine maps ours to, in a folder that is ours alone
            out.mkdir()
            out.chmod(0o777)
            request = out / "case.json"
            request.write_text(json.dumps(replace(case, incident=Path(INCIDENT)).to_json()))
            request.chmod(0o644)
            subject = self._describe(case)
            return self._attempt(self._machine.spec(case, subject, out, self._command, self._deadline), out, subject)

    def _attempt(self, spec: ContainerSpec, out: Path, subject: Subject) -> Outcome:
        if self._closing.is_set():
            return Outcome(status=Status.INFRA, detail="interrupted")
        container = self._machine.create(spec)
        try:
            container.start()
            deadline = Deadline(spec.limits.deadline, marker(out / "outcome.json"), subject.patience)
            room = Room(out, spec.limits.out)
            greedy = self._watched(container, deadline, room)
            overdue = deadline.why() if greedy == "" else ""
            if self._closing.is_set():
                return Outcome(status=Status.INFRA, detail="interrupted")
            if overdue or greedy:
                machine.kill(container)
            begun = os.path.lexists(marker(out / "outcome.json"))
            end = machine.end_of(container, overdue=overdue, greedy=greedy or "", begun=begun)
            outcome = conclude(end, read_outcome(out / "outcome.json"), spec.limits, subject.kind)
            return replace(outcome, exit_code=None if overdue or greedy else end.code, log=end.log)
        finally:
            machine.remove(container)

    def _watched(self, container: Container, deadline: Deadline, room: Room) -> str | None:
        """Look until it ended: None. Where its deadline passes or we close before that: "", else why it must end now.
        `wait` with a timeout is no deadline: the timeout is the connection's, which a proxy may keep alive."""
        pause = _LOOK[0]
        while not self._closing.wait(pause) and not deadline.passed():
            container.reload()
            if container.status in ("exited", "dead"):
                return None
            if greedy := room.exceeded():
                return greedy
            pause = min(pause * 1.5, _LOOK[1])
        return ""
