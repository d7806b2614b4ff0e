"""A fresh container for each case, on the Docker engine of this machine."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from docker.errors import ImageNotFound
from docker.models.containers import Container

import reprokit
from reprokit.errors import Infrastructure
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.replay import daemon
from reprokit.replay.container import (
    INCIDENT,
    WORKER,
    Bind,
    ContainerSpec,
    End,
    Limits,
    conclude,
    container_spec,
    jobs_for,
    limits_for,
    user_for,
)
from reprokit.replay.engines.base import Engine
from reprokit.replay.handover import Visible, read_outcome
from reprokit.step import worker
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

NEED = 3 << 30  # bytes that an attempt is expected to take: torch, a small model, its batch twice
_LOOK = (0.02, 0.25)  # seconds between looks at a container: short at first, since a start takes half a second
_TAIL = 60  # lines of output kept when there is no outcome: a traceback and what led to it


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What an engine must know of an incident before it starts a container for it."""

    kind: Kind | None  # of the captured failure
    environment: Mapping[str, str]  # variables that the step ran with
    gpus: bool = False  # it ran on one


def describe(case: Case) -> Subject:
    """What the incident itself says. Nothing of this process's own environment gets in."""
    incident = Incident.open(case.incident, verify=False)  # the worker verifies, in the container
    return Subject(
        kind=signature.kind if (signature := incident.manifest.signature) else None,
        environment=worker.environment(incident, case, host={}),
        gpus=str(incident.flags().get("device", "")).startswith("cuda"),
    )


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
        self._client = daemon.connect()
        self.image = image
        self.run = uuid4().hex  # a label of its containers
        try:
            self._client.images.get(image)
            machine = self._client.info()
        except ImageNotFound as error:
            raise Infrastructure(f"{image}: Docker has no such image; leave out --image to build one") from error
        except daemon.Silent as error:
            raise Infrastructure(f"Docker: {daemon.one_line(error)}") from error
        cpus, memory = machine["NCPU"], machine["MemTotal"]
        self.capacity = jobs or jobs_for(cpus, memory, need)
        limits = limits or limits_for(cpus, memory, self.capacity)
        self.limits = replace(limits, deadline=deadline) if deadline else limits
        rootless = any("rootless" in option for option in machine.get("SecurityOptions") or ())
        self._user = user_for(os.getuid(), os.getgid(), rootless=rootless)
        self._network, self._binds, self._describe = network, tuple(binds), describe
        self._command = (*command, *(("--match", match) if match else ()))
        self._visible = Visible(needed=os.getuid() == 0 and not rootless)
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(self.capacity, thread_name_prefix="reprokit-docker")

    def submit(self, case: Case) -> Future[Outcome]:
        return self._pool.submit(self._evaluate, case)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()  # each thread kills and removes its own container within one look
        self._pool.shutdown(cancel_futures=True)
        self._visible.close()
        self._client.close()

    def _evaluate(self, case: Case) -> Outcome:
        started = perf_counter()
        with tempfile.TemporaryDirectory(prefix="reprokit-attempt-", ignore_cleanup_errors=True) as private:
            out = Path(private) / "out"  # open to the user that the engine maps ours to, in a folder that is ours alone
            out.mkdir()
            out.chmod(0o777)
            request = out / "case.json"
            request.write_text(json.dumps(replace(case, incident=Path(INCIDENT)).to_json()))
            request.chmod(0o644)
            subject = self._describe(case)
            try:
                outcome = self._attempt(self._spec(case, subject, out), out, subject.kind)
            except daemon.Silent as error:
                outcome = Outcome(status=Status.INFRA, detail=_explain(error))
        return replace(outcome, host=platform.node(), total_seconds=perf_counter() - started)

    def _spec(self, case: Case, subject: Subject, out: Path) -> ContainerSpec:
        return container_spec(
            replace(case, incident=self._visible.of(case.incident)),
            self.image,
            self.limits,
            package=str(self._visible.of(Path(reprokit.__file__).parent)),
            out=str(out),
            environment=subject.environment,
            user=self._user,
            gpus=subject.gpus,
            network=self._network,
            binds=self._binds,
            command=self._command,
            run=self.run,
        )

    def _attempt(self, spec: ContainerSpec, out: Path, captured: Kind | None) -> Outcome:
        if self._closing.is_set():
            return Outcome(status=Status.INFRA, detail="interrupted")
        container = self._client.containers.create(**spec.arguments())
        try:
            container.start()
            overdue = not self._ended(container, spec.limits.deadline)
            if self._closing.is_set():
                return Outcome(status=Status.INFRA, detail="interrupted")
            if overdue:
                _kill(container)
            written = read_outcome(out / "outcome.json")
            end = _end(container, overdue=overdue, with_log=written is None)
            return conclude(end, written, spec.limits, captured)
        finally:
            _remove(container)

    def _ended(self, container: Container, deadline: float) -> bool:
        """Look until it ends, its deadline passes or we close. `wait` with a timeout is no deadline: the timeout is the
        connection's, which a proxy or an engine may keep alive."""
        until, pause = monotonic() + deadline, _LOOK[0]
        while not self._closing.wait(pause) and monotonic() < until:
            container.reload()
            if container.status in ("exited", "dead"):
                return True
            pause = min(pause * 1.5, _LOOK[1])
        return False


def _end(container: Container, *, overdue: bool, with_log: bool) -> End:
    container.reload()
    state: Mapping[str, Any] = container.attrs["State"]
    log = _printable(container.logs(tail=_TAIL)) if with_log else ""
    return End(code=state["ExitCode"], out_of_memory=state["OOMKilled"], overdue=overdue, log=log)


def _printable(output: bytes) -> str:
    """Output without the control characters that would move a terminal's cursor."""
    text = output.decode(errors="replace")
    return "".join(c for c in text if c.isprintable() or c in "\n\t").strip()


def _kill(container: Container) -> None:
    with suppress(*daemon.Silent):  # it may have ended between the last look and now
        container.kill()
        container.wait(timeout=30)


def _remove(container: Container) -> None:
    with suppress(*daemon.Silent):  # an engine that is gone takes nothing with it that we could still remove
        container.remove(force=True, v=True)


def _explain(error: BaseException) -> str:
    said = daemon.one_line(error)
    if "could not select device driver" in said or "nvidia" in said.lower():
        return f"the incident ran on a GPU and this Docker engine offers none (nvidia-container-toolkit?): {said}"
    return f"Docker: {said}"
