"""Attempts on the nodes of a Ray cluster, each in an engine there."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import reprokit
from reprokit._scratch import Scratch
from reprokit.errors import BadInput, Infrastructure, ReprokitError
from reprokit.incident import Incident
from reprokit.replay import share
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.options import PROCESS, EngineOptions
from reprokit.replay.remote import own_store, request, shared
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.store.objects import Store

_PATIENCE = 900.0  # seconds without a node that has room: a cluster that grows needs minutes for a new one
_GREETING = 180.0  # seconds for Ray to connect, or to start a cluster of this machine alone
_REACH = 10.0  # seconds for a connection to the head: Ray itself would try for minutes
_PARTING = 30.0  # seconds for the broker to end its hosts
_TAIL = 300  # characters of what Ray printed that are passed on when it ended


class Ray(Engine):
    """Around another engine: each node opens it once and fetches the incident once, through a store. An attempt whose
    node is lost runs again elsewhere. Costs a few milliseconds an attempt, and seconds at the start.

    address: of the cluster, as Ray has it; None: RAY_ADDRESS, one that runs on this machine, or a new one of this
    machine alone. store: a URL that all nodes reach; None: REPROKIT_STORE, or a folder where all nodes are this
    machine. jobs: attempts at once, over all nodes. there: what nodes open their engine with.
    """

    name = "ray"

    def __init__(
        self,
        incident: Incident,
        *,
        address: str | None = None,
        store: str | None = None,
        jobs: int | None = None,
        there: EngineOptions = PROCESS,
        foreign: bool = False,
        patience: float = _PATIENCE,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        if find_spec("ray") is None:
            raise BadInput("--engine ray: Ray is not installed; pip install 'reprokit[ray]', here and on all nodes")
        _check(address or os.environ.get("RAY_ADDRESS", ""))
        self._incident, self._say = incident, say
        gpu = str(incident.flags().get("device", "")).startswith("cuda")
        wanted = {"address": address, "need": share.need_of(incident), "gpu": gpu, "jobs": jobs}
        self._scratch = Scratch("ray")
        self._log = Path(self._scratch.name) / "log.txt"
        self._lock = threading.Lock()
        self._futures: dict[int, Future[Outcome]] = {}
        self._numbers = count()
        self._fatal: ReprokitError | None = None
        self._closed = False
        self.nodes = 0  # that are open
        self._process = self._start(wanted)
        try:
            self.capacity, url = self._greeted(gpu, shared(store))
            self._store = Store(url)
            self._ids = {incident.path.resolve(): self._store.put(incident)}
            host = request(url, there, foreign)
            settings = {"id": self._ids[incident.path.resolve()], "host": host, "patience": patience}
            self._write(wanted | settings)
        except BaseException:
            self._end()
            raise
        self._reader = threading.Thread(target=self._read, name="reprokit-ray", daemon=True)
        self._reader.start()

    def submit(self, case: Case) -> Future[Outcome]:
        """Sends it to the cluster, where it waits for a node that has room."""
        id = self._id(case.incident)
        future: Future[Outcome] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if self._closed:
                raise RuntimeError("this engine was closed, and takes no more cases")
            if self._fatal:
                future.set_exception(self._fatal)
                return future
            number = next(self._numbers)
            self._futures[number] = future
            self._write({"number": number, "id": id, "case": case.to_json()})
        return future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._closed = True
        self._end()
        self._reader.join()

    def _start(self, wanted: Mapping[str, Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reprokit.replay.broker", json.dumps(wanted)]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env=_environment(),
                start_new_session=True,  # an interrupt at the terminal is for us alone: the hosts must be ended first
            )

    def _greeted(self, gpu: bool, store: str | None) -> tuple[int, str]:
        """Room, and where the incident goes, once the cluster has answered."""
        assert self._process.stdout is not None
        patience = threading.Timer(_GREETING, self._process.kill)
        patience.start()
        line = self._process.stdout.readline()
        patience.cancel()
        silent = {"fatal": f"the cluster did not answer {self._tail()}"}
        hello: dict[str, Any] = json.loads(line) if line else silent
        if "fatal" in hello:
            raise Infrastructure(f"Ray: {hello['fatal']}; check --ray-address, or start a cluster with `ray start`")
        if not hello["capacity"]:
            what = "a GPU, which this incident ran on" if gpu else "a CPU to give"
            raise Infrastructure(f"Ray: no node of this cluster has {what}; `ray status` says what there is")
        if store is None and hello["elsewhere"]:
            raise BadInput("--engine ray: nodes of this cluster are other machines; give --store URL that all reach")
        return int(hello["capacity"]), store or own_store()

    def _read(self) -> None:
        """Until the broker ends."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "number" in line:
                self._answer(self._futures.pop(line["number"], None), line)
            elif "fatal" in line:
                self._fail(_error(line["fatal"], bad=line["bad"]))
            elif "refused" in line:
                self._say(f"ray: {line['refused']}")
            else:
                self.nodes = line["open"]
        self._fail(CancelledError() if self._closed else Infrastructure(f"Ray: the connection ended {self._tail()}"))

    def _answer(self, future: Future[Outcome] | None, line: Mapping[str, Any]) -> None:
        if future is None:
            return
        if "error" in line and line["bad"]:
            future.set_exception(BadInput(line["error"]))
        elif "error" in line:
            future.set_result(Outcome(status=Status.INFRA, detail=line["error"]))
        else:
            try:
                future.set_result(Outcome.from_json(line["outcome"]))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                future.set_result(Outcome(status=Status.INFRA, detail=f"a node answered no outcome: {error}"))

    def _fail(self, error: BaseException) -> None:
        """For all that wait, and all that are to come."""
        with self._lock:
            if isinstance(error, ReprokitError):
                self._fatal = error
            waiting, self._futures = self._futures, {}
        for future in waiting.values():
            future.set_exception(error)

    def _id(self, incident: Path) -> str:
        path = incident.resolve()
        if path not in self._ids:
            self._ids[path] = self._store.put(Incident.open(path))
        return self._ids[path]

    def _write(self, line: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # who reads the answers sees that it has ended
            self._process.stdin.write(json.dumps(line) + "\n")

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_PARTING)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._scratch.cleanup()

    def _tail(self) -> str:
        said = " ".join(self._log.read_text(errors="replace").split()) if self._log.exists() else ""
        return f"({said[-_TAIL:]})" if said else ""


def _check(address: str) -> None:
    """Whether somebody answers there, where it is the address of a head."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH).close()
        except (OSError, OverflowError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise Infrastructure(f"Ray: nobody answers at {address} ({said}); check --ray-address") from error


def _environment() -> dict[str, str]:
    """This process's, in which reprokit can be imported wherever this process found it, and nothing from where it
    works: a script of the user may be called ray.py."""
    here = str(Path(reprokit.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONSAFEPATH": "1"} | ({} if "site-packages" in here else {"PYTHONPATH": path})


def _error(text: str, *, bad: bool) -> ReprokitError:
    return BadInput(text) if bad else Infrastructure(f"Ray: {text}")
