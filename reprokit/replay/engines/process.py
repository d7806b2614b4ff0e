"""A fresh process for each case, on this machine, in the captured environment."""

from __future__ import annotations

import os
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from reprokit.incident import Incident
from reprokit.replay import share
from reprokit.replay.engines.base import Engine
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome
from reprokit.step.worker import Worker


class Process(Engine):
    """Nothing survives from one attempt to the next but what the machine itself keeps. Seconds each, for imports.

    timeout: seconds for one attempt, its start included; past it all that it started is killed, and that is a hang.
    """

    name = "process"

    def __init__(
        self, incident: Incident, *, jobs: int | None = None, timeout: float | None = None, match: str | None = None
    ) -> None:
        self.capacity = jobs or share.jobs(share.need_of(incident))  # most of an attempt is one thread that imports
        self._incident = incident
        self._timeout = timeout
        self._match = match
        self._workers: set[Worker] = set()
        self._closing = False
        self._pool = ThreadPoolExecutor(self.capacity, thread_name_prefix="attempt")

    def submit(self, case: Case) -> Future[Outcome]:
        """Starts a process as soon as one of `capacity` places is free."""
        return self._pool.submit(self._run, case)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        for worker in tuple(self._workers):
            worker.kill()  # nobody waits for an attempt that nobody wants any more
        self._pool.shutdown(cancel_futures=True)

    def _run(self, case: Case) -> Outcome:
        with Worker(self._incident, match=self._match) as worker:
            self._workers.add(worker)
            try:
                if self._closing:
                    raise CancelledError
                return worker.evaluate(case, "process", timeout=self._timeout)
            finally:
                self._workers.discard(worker)


def inside_container() -> bool:
    """Whether this process runs in a container: Docker and Podman leave a file, Kubernetes a variable."""
    return (
        Path("/.dockerenv").exists() or Path("/run/.containerenv").exists() or "KUBERNETES_SERVICE_HOST" in os.environ
    )
