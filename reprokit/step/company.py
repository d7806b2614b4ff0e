"""Evaluate one case in as many processes as it had ranks; the outcome is that of the rank that failed first.

Each process has its own batch, generators and buffers, and all of them the case's variant; what a case cuts or heals is
cut out of the batch of that first rank alone. Processes are fresh for each evaluation: a collective that broke leaves a
group that no further step can use, and DistributedDataParallel keeps state of its own that nobody could put back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Any

from reprokit._scratch import Scratch
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.step import group, rewind
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

if TYPE_CHECKING:
    from reprokit.step.worker import Worker

_LINGER = 10.0  # seconds for the other ranks to end their step as well, for their fingerprints
_POLL = 0.05  # seconds between looks
_UNRUN = (Status.INFRA, Status.INVALID)


class Company:
    """The ranks of an incident. start: a worker for one of them, given the variables of its process."""

    def __init__(self, incident: Incident, start: Callable[[dict[str, str]], Worker]) -> None:
        self._size, self._origin = incident.manifest.world_size, incident.manifest.origin
        self._start = start
        self._workers: list[Worker] = []
        self._starting = threading.Lock()
        self._killed = False

    def evaluate(
        self, case: Case, *, timeout: float | None = None, on_step: Callable[[], object] = lambda: None
    ) -> Outcome:
        self.close()
        with Scratch("company") as folder, ThreadPoolExecutor(self._size, thread_name_prefix="rank") as pool:
            seats = [group.variables(rank, self._size, Path(folder) / "store") for rank in range(self._size)]
            with self._starting:
                if self._killed:
                    raise CancelledError
                self._workers = [self._start(seat) for seat in seats]
            ranks = [pool.submit(worker.evaluate, case, timeout=timeout) for worker in self._workers]
            try:
                return self._outcome(ranks, on_step)
            finally:
                self._end()

    def arguments(self) -> Any:
        """As a `Worker`'s."""
        return self._workers[self._origin].arguments() if self._workers else None

    def kill(self) -> None:
        """As a `Worker`'s."""
        with self._starting:
            self._killed = True
        self._end()

    def close(self) -> None:
        """End them and remove their files."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.close()

    def _end(self) -> None:
        for worker in self._workers:
            worker.kill()

    def _outcome(self, ranks: list[Future[Outcome]], on_step: Callable[[], object]) -> Outcome:
        first, begun = ranks[self._origin], False
        while not first.done():
            if not begun and self._workers[self._origin].begun:
                begun = True
                on_step()
            for rank, future in enumerate(ranks):
                if future is not first and future.done() and future.result().status in _UNRUN:
                    outcome = future.result()  # the others would wait for it
                    return replace(outcome, detail=f"rank {rank}: {outcome.detail}")
            sleep(_POLL)
        outcome = first.result()
        if outcome.signature is None or outcome.signature.kind not in (Kind.EXCEPTION, Kind.OOM, Kind.CRASH, Kind.HANG):
            wait(ranks, _LINGER)
        prints = {str(rank): dict(one.result().fingerprint) for rank, one in enumerate(ranks) if one.done()}
        return replace(outcome, ranks=prints)


def share(case: Case, incident: Incident) -> Case:
    """What of a case one rank runs. What is cut or healed is the batch of the rank that failed first."""
    if incident.rank is None or incident.rank == incident.manifest.origin:
        return case
    steps = rewind.axis(Layout.parse(incident.manifest.layout))
    keep = {axis: indices for axis, indices in case.keep.items() if axis == steps}
    own = replace(case, content="batch", keep=keep, heal=(), values={}, dtypes={}, stack=())
    return replace(own, trace=False, watch=False, operations=False, evidence=False)
