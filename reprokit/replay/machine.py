"""The Docker engine of this machine, and the share of it that containers get: what every engine of containers needs.

A container is made from a spec (`container`), watched by whoever asked for it, and removed by them, whatever happened.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

from docker.errors import APIError, ImageNotFound
from docker.models.containers import Container

import reprokit
from reprokit.errors import Infrastructure
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.replay import daemon, owners
from reprokit.replay.container import (
    GRACE,
    LABEL,
    Bind,
    ContainerSpec,
    End,
    Limits,
    check_jobs,
    container_spec,
    jobs_for,
    limits_for,
    user_for,
)
from reprokit.replay.handover import Visible
from reprokit.replay.share import NEED
from reprokit.step import worker
from reprokit.step.case import Case
from reprokit.step.deadline import patience

_RESTART, _LOOK = 60.0, 0.5  # seconds for an engine that is gone to come back, and between looks
_TAIL, _CHARACTERS = 60, 16_000  # lines of output that are kept, and of long ones: a traceback and what led to it


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What an engine must know of an incident before it starts a container for it."""

    kind: Kind | None  # of the captured failure
    environment: Mapping[str, str]  # variables that the step ran with
    gpus: bool = False  # it ran on one
    patience: float | None = None  # seconds that the case's steps may take, where a hang says so


def describe(case: Case) -> Subject:
    """What the incident itself says. Nothing of this process's own environment gets in."""
    incident = Incident.open(case.incident, verify=False)  # the worker verifies, in the container
    return Subject(
        kind=signature.kind if (signature := incident.manifest.signature) else None,
        environment=worker.environment(incident, case, host={}),
        gpus=str(incident.flags().get("device", "")).startswith("cuda"),
        patience=patience(incident.manifest, case.rewind + 1),
    )


class Machine:
    """An engine that answers and has the image. Raises Infrastructure where it does not.

    together: all attempts share one container, which then gets what they would get one by one.
    """

    def __init__(
        self,
        image: str,
        *,
        jobs: int | None = None,  # attempts at once; by default as many as cores and memory allow
        need: int = NEED,  # bytes of memory that an attempt takes, for that default
        limits: Limits | None = None,  # instead of an equal share of the machine
        network: str = "none",
        binds: Sequence[Bind] = (),
        together: bool = False,
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
        owners.sweep(self._client)
        cpus, memory = machine["NCPU"], machine["MemTotal"]
        if jobs and not limits and not together:
            check_jobs(jobs, memory)
        self.jobs = jobs or jobs_for(cpus, memory, need)
        self.limits = limits or limits_for(cpus, memory, 1 if together else self.jobs)
        rootless = any("rootless" in option for option in machine.get("SecurityOptions") or ())
        self._user = user_for(os.getuid(), os.getgid(), rootless=rootless)
        self._network, self._binds = network, tuple(binds)
        self._visible = Visible(needed=os.getuid() == 0 and not rootless)

    def spec(
        self, case: Case, subject: Subject, out: Path, command: Sequence[str], deadline: float | None = None
    ) -> ContainerSpec:
        """What a container for this case is asked to be. deadline: seconds, instead of those of the limits."""
        return container_spec(
            replace(case, incident=self._visible.of(case.incident)),
            self.image,
            replace(self.limits, deadline=deadline) if deadline else self.limits,
            package=str(self._visible.of(Path(reprokit.__file__).parent)),
            out=str(out),
            environment=subject.environment,
            user=self._user,
            gpus=subject.gpus,
            network=self._network,
            binds=self._binds,
            command=command,
            run=self.run,
        )

    def create(self, spec: ContainerSpec) -> Container:
        """A container that has not started yet. Raises what `daemon.Silent` names."""
        asked = spec.arguments()
        labels = asked["labels"] | owners.mark(spec.limits.deadline + GRACE)
        return self._client.containers.create(**(asked | {"labels": labels}))

    def back(self, error: BaseException, closing: threading.Event) -> bool:
        """Whether the engine itself was lost, and answers again before long: one that is restarted takes seconds."""
        if isinstance(error, APIError):  # it answers, and refuses
            return False
        until = monotonic() + _RESTART
        while monotonic() < until and not closing.wait(_LOOK):
            with suppress(*daemon.Silent):
                self._client.ping()
                return True
        return False

    def close(self) -> None:
        with suppress(*daemon.Silent):  # those that an engine that was lost meanwhile has kept
            label = f"{LABEL}.run={self.run}"
            for container in self._client.containers.list(all=True, filters={"label": label}, ignore_removed=True):
                remove(container)
        self._visible.close()
        self._client.close()


def end_of(container: Container, *, overdue: str, begun: bool, greedy: str = "") -> End:
    """How a container ended, that has."""
    container.reload()
    state: Mapping[str, Any] = container.attrs["State"]
    return End(
        code=state["ExitCode"],
        out_of_memory=state["OOMKilled"],
        overdue=overdue,
        greedy=greedy,
        begun=begun,
        log=log_of(container),
    )


def log_of(container: Container) -> str:
    return printable(container.logs(tail=_TAIL))


def printable(output: bytes) -> str:
    """Output without the control characters that would move a terminal's cursor."""
    text = output.decode(errors="replace")[-_CHARACTERS:]
    return "".join(c for c in text if c.isprintable() or c in "\n\t").strip()


def kill(container: Container) -> None:
    with suppress(*daemon.Silent):  # it may have ended between the last look and now
        container.kill()
        container.wait(timeout=30)


def remove(container: Container) -> None:
    with suppress(*daemon.Silent):  # an engine that is gone takes nothing with it that we could still remove
        container.remove(force=True, v=True)


def explain(error: BaseException) -> str:
    """Why an engine refused, for people."""
    said = daemon.one_line(error)
    if "could not select device driver" in said or "nvidia" in said.lower():
        return f"the incident ran on a GPU and this Docker engine offers none (nvidia-container-toolkit?): {said}"
    return f"Docker: {said}"
