"""Attempts as jobs of Slurm, each in an engine where the job runs."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any
from uuid import uuid4

from reprokit import _files
from reprokit.errors import BadInput, Infrastructure
from reprokit.incident import Incident
from reprokit.replay import share
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.options import PROCESS, EngineOptions
from reprokit.replay.handover import read_outcome
from reprokit.replay.remote import evaluate, own_store, request, shared
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.store.objects import Store

LOSSES = 3  # jobs of an attempt that may end without an outcome before that is its outcome
_JOBS = 16  # jobs at once where nobody says: few enough for any queue, and --jobs says more
_CORES = 2  # of a job: most of an attempt is one thread that imports
_AROUND = 900.0  # seconds of a job besides: fetching the incident, imports from a shared disk, an image
_LOOK = 0.5  # seconds between looks at the outcomes; Slurm itself is asked once a minute, by submitit
_VISIBLE = 60.0  # seconds in which what a job wrote is seen here: a shared disk remembers what is not there
_PARTING = 30.0  # seconds for jobs to end once they were cancelled
_TAIL = 2000  # characters of a job's output that are kept: a traceback


@dataclass(kw_only=True, slots=True)
class _Attempt:
    """A case, and the job that it is in."""

    request: Mapping[str, Any]
    out: Path
    future: Future[Outcome] = field(default_factory=Future)
    job: Any = None  # None: it waits for one
    ended: float | None = None  # when its job was first seen to have ended without an outcome
    losses: int = 0


class Slurm(Engine):
    """Around another engine, which is opened anew in each job. A job that ends without an outcome, as on a node that
    went down, is submitted again. What jobs need lies in the user's cache, which all nodes must see.

    cluster: "local" runs jobs as processes of this machine, as submitit does. visible: seconds after the end of a job
    in which its outcome may appear.
    """

    name = "slurm"

    def __init__(
        self,
        incident: Incident,
        *,
        store: str | None = None,
        jobs: int | None = None,
        partition: str | None = None,
        there: EngineOptions = PROCESS,
        foreign: bool = False,
        cluster: str = "slurm",
        visible: float = _VISIBLE,
    ) -> None:
        if find_spec("submitit") is None:
            raise BadInput("--engine slurm: submitit is not installed; pip install 'reprokit[slurm]'")
        if cluster == "slurm" and shutil.which("sbatch") is None:
            raise Infrastructure("Slurm: there is no sbatch here; run this where jobs are submitted from")
        self.capacity = jobs or _JOBS
        self._visible = visible
        url = shared(store) or own_store()
        self._store = Store(url)
        self._ids = {incident.path.resolve(): self._store.put(incident)}
        self._host = request(url, there, foreign)
        self._folder = self._made()
        self._executor = _executor(self._folder, cluster, incident, partition, there.timeout)
        self._lock = threading.Lock()
        self._attempts: list[_Attempt] = []
        self._leaving: list[Any] = []  # jobs that gave their outcome, and still write what submitit keeps of them
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="reprokit-slurm", daemon=True)
        self._watcher.start()

    def submit(self, case: Case) -> Future[Outcome]:
        """Becomes a job as soon as there are fewer than `capacity`."""
        asked = {"host": self._host, "id": self._id(case.incident), "case": case.to_json()}
        attempt = _Attempt(request=asked, out=self._folder / f"{uuid4().hex}.json")
        with self._lock:
            if self._closing.is_set():
                raise RuntimeError("this engine was closed, and takes no more cases")
            self._attempts.append(attempt)
        return attempt.future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closing.set()
        self._watcher.join()
        running = [attempt.job for attempt in self._attempts if attempt.job is not None]
        for job in running:
            with suppress(Exception):  # it may have ended by itself
                job.cancel(check=False)
        until, pause = monotonic() + _PARTING, threading.Event()
        while monotonic() < until and not all(_done(job) for job in (*running, *self._leaving)):
            pause.wait(_LOOK)
        for attempt in self._attempts:
            if not attempt.future.done():
                attempt.future.set_exception(CancelledError())
        shutil.rmtree(self._folder, ignore_errors=True)

    def _made(self) -> Path:
        """A folder for what goes to jobs and comes from them."""
        folder = _files.user_cache() / "slurm" / uuid4().hex
        try:
            folder.mkdir(parents=True, mode=0o700)  # submitit's files are pickles: nobody else may write here
        except OSError as error:
            raise Infrastructure(f"{folder}: {error.strerror}; set XDG_CACHE_HOME to a disk of all nodes") from error
        return folder

    def _id(self, incident: Path) -> str:
        path = incident.resolve()
        if path not in self._ids:
            self._ids[path] = self._store.put(Incident.open(path))
        return self._ids[path]

    def _watch(self) -> None:
        """Until the engine is closed."""
        while not self._closing.wait(_LOOK):
            with self._lock:
                attempts = list(self._attempts)
            for attempt in attempts:
                try:
                    self._look(attempt)
                except Exception as error:  # of submitit, or of a queue that takes no more
                    _set(attempt, Outcome(status=Status.INFRA, detail=f"Slurm: {_files.shown(str(error)[:_TAIL])}"))
            with self._lock:
                over = {id(attempt): attempt.job for attempt in self._attempts if attempt.future.done()}
                self._attempts = [attempt for attempt in self._attempts if id(attempt) not in over]
            self._leaving = [job for job in (*self._leaving, *over.values()) if job is not None and not _done(job)]

    def _look(self, attempt: _Attempt) -> None:
        if attempt.future.cancelled():
            return
        if attempt.job is None:
            busy = sum(one.job is not None and not one.future.done() for one in self._attempts)
            if busy < self.capacity and (attempt.future.running() or attempt.future.set_running_or_notify_cancel()):
                attempt.job = self._executor.submit(evaluate, attempt.request, attempt.out)
        elif (outcome := read_outcome(attempt.out)) is not None:
            _set(attempt, outcome)
        elif (bad := attempt.out.with_suffix(".bad")).exists():
            attempt.future.set_exception(BadInput(_files.shown(bad.read_text(errors="replace").strip())))
        elif _done(attempt.job):
            self._ended(attempt)

    def _ended(self, attempt: _Attempt) -> None:
        """Without an outcome, as far as can be seen from here."""
        if attempt.ended is None:  # it may have written one since we looked for it
            attempt.ended = monotonic()
            return
        if monotonic() - attempt.ended < self._visible:
            return
        attempt.losses += 1
        if attempt.losses >= LOSSES:
            why = f"{LOSSES} jobs ended without an outcome; the last, {attempt.job.job_id}, printed:"
            _set(attempt, Outcome(status=Status.INFRA, detail=f"{why}\n{_tail(attempt.job)}"))
        attempt.job, attempt.ended = None, None


def _executor(folder: Path, cluster: str, incident: Incident, partition: str | None, timeout: float) -> Any:
    import submitit  # only where it is asked for

    executor = submitit.AutoExecutor(folder, cluster=cluster)
    gpu = str(incident.flags().get("device", "")).startswith("cuda")
    executor.update_parameters(
        name="reprokit",
        timeout_min=ceil((timeout + _AROUND) / 60),
        cpus_per_task=_CORES,
        mem_gb=ceil(share.need_of(incident) / 2**30),
        gpus_per_node=int(gpu),
    )
    if partition and cluster == "slurm":
        executor.update_parameters(slurm_partition=partition)
    return executor


def _done(job: Any) -> bool:
    with suppress(Exception):  # a controller that does not answer now may do so at the next look
        return bool(job.done())
    return False


def _tail(job: Any) -> str:
    texts = [path.read_text(errors="replace") for path in (job.paths.stdout, job.paths.stderr) if path.exists()]
    return "\n".join(texts).strip()[-_TAIL:]


def _set(attempt: _Attempt, outcome: Outcome) -> None:
    if not attempt.future.done():
        attempt.future.set_result(outcome)
