"""Forked attempts: one container or process imports once, and each attempt is a fork of it.

Attempts share what was decided before the fork: the hash seed, the addresses of the interpreter's objects, and files
that others left. A failure that such things decide looks the same in all of them; fresh processes would show it.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from pathlib import Path
from time import monotonic, perf_counter
from types import TracebackType
from typing import Any

from reprokit import _files
from reprokit.incident import Incident
from reprokit.replay import homes, machine, share
from reprokit.replay.container import INCIDENT, without_compiler
from reprokit.replay.engines.base import Engine
from reprokit.replay.handover import read_outcome, read_tail
from reprokit.replay.homes import Contained, Home, Lost
from reprokit.step import ends, forks
from reprokit.step.case import Case
from reprokit.step.deadline import Deadline, patience
from reprokit.step.outcome import Outcome, Status
from reprokit.step.serve import marker
from reprokit.step.worker import child_environment

_DEADLINE = 900.0  # seconds for one attempt where nobody says
_START = 300.0  # seconds for a parent to import torch, at least: a busy machine's disk may take minutes
_LIFE = 4 * 3600.0  # seconds after which a container ends itself: its attempts may hold it while nobody watches
_GRACE = 30.0  # seconds for an attempt that was told to end, before its parent is ended with it
_LOOK, _LOOK_AT_HOME = (0.005, 0.05), 0.5  # seconds between looks at an attempt, and at its parent
_SPARE = 1  # homes without an attempt that are kept: the next case may want the same environment


@dataclass(kw_only=True, slots=True)
class _Parent:
    """A home, and who uses it."""

    key: tuple[Any, ...]
    home: Home
    until: float  # by the monotonic clock: when it ends by itself
    numbers: count[int] = field(default_factory=count)
    users: int = 0
    broken: bool = False


class Fork(Engine):
    """Nothing of the user's code is in what is forked. image: in a container of it; None: in a process here.

    timeout: seconds for one attempt, from the fork on; past it everything that the attempt started is killed. A case
    with variables of its own gets a parent of its own, since those are read when an interpreter starts.
    """

    name = "fork"

    def __init__(
        self,
        incident: Incident,
        *,
        image: str | None = None,
        jobs: int | None = None,
        timeout: float | None = None,
        match: str | None = None,
        network: str = "none",
        need: int | None = None,
    ) -> None:
        self._incident, self._match, self._timeout = incident, match, timeout or _DEADLINE
        self._life = max(_LIFE, 2 * self._timeout + _GRACE)
        need = need or share.need_of(incident)
        self._machine: machine.Machine | None = None
        if image is not None:
            self._machine = machine.Machine(image, jobs=jobs, need=need, network=network, together=True)
        self.capacity = self._machine.jobs if self._machine else jobs or share.jobs(need)
        self._parents: list[_Parent] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._pool = ThreadPoolExecutor(self.capacity, thread_name_prefix="reprokit-fork")

    def submit(self, case: Case) -> Future[Outcome]:
        return self._pool.submit(self._evaluate, replace(case, incident=case.incident.resolve()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)  # first: what waits would begin where one is interrupted
        self._closing.set()  # each thread leaves its attempt within one look
        self._pool.shutdown()
        for parent in self._parents:
            parent.home.close()
        if self._machine:
            self._machine.close()

    def _evaluate(self, case: Case) -> Outcome:
        started, parent = perf_counter(), None
        try:
            parent = self._take(case)
            outcome = self._attempt(parent, case)
        except Lost as error:
            if parent:
                parent.broken = True
            outcome = Outcome(status=Status.INFRA, detail=machine.explain(error))
        finally:
            if parent:
                self._give_back(parent)
        return replace(outcome, host=platform.node(), total_seconds=perf_counter() - started)

    def _take(self, case: Case) -> _Parent:
        """A parent for this case's environment: one that is there, or a new one."""
        key = (case.incident, *sorted(case.variant.env.items()))
        with self._lock:
            known = (one for one in self._parents if one.key == key and self._usable(one))
            parent = next(known, None)
            if parent is None:
                until = monotonic() + (self._life if self._machine else inf)
                parent = _Parent(key=key, home=self._home(case), until=until)
                self._parents.append(parent)
            parent.users += 1
        return parent

    def _give_back(self, parent: _Parent) -> None:
        with self._lock:
            parent.users -= 1
            idle = [one for one in self._parents if not one.users]
            fit = [one for one in idle if self._usable(one)]
            done = [one for one in idle if one not in fit[-_SPARE:]]
            self._parents = [one for one in self._parents if one not in done]
        for one in done:
            one.home.close()

    def _usable(self, parent: _Parent) -> bool:
        """Whether it lives, and will as long as an attempt may take."""
        return not parent.broken and monotonic() < parent.until - self._timeout - _GRACE

    def _home(self, case: Case) -> Home:
        if self._machine is None:
            return homes.Process(child_environment(self._incident, case), match=self._match)
        home = Contained()
        try:
            command = ("python3", *forks.COMMAND, home.inside, *(("--match", self._match) if self._match else ()))
            spec = self._machine.spec(case, machine.describe(case), home.folder, command, self._life)
            home.start(self._machine, spec)
        except BaseException:
            home.close()
            raise
        return home

    def _attempt(self, parent: _Parent, case: Case) -> Outcome:
        if refused := self._unready(parent):
            return refused
        number = str(next(parent.numbers))
        folder = parent.home.folder / number
        _hand_over(folder, replace(case, incident=Path(INCIDENT)) if self._machine else case)
        begun = marker(folder / forks.OUTCOME)
        parent.home.ask(f"run {number}")
        deadline = Deadline(self._timeout, begun, patience(self._incident.manifest, case.rewind + 1))
        lost = self._waited(parent, folder, deadline.passed)
        overdue = deadline.why() if lost == "" else ""
        if overdue:
            parent.home.ask(f"kill {number}")
            until = monotonic() + _GRACE
            parent.broken |= self._waited(parent, folder, lambda: monotonic() > until) is not None
        if self._closing.is_set():
            return Outcome(status=Status.INFRA, detail="interrupted")
        outcome = self._outcome(folder, case, lost or "", overdue)
        _files.erase(folder)
        return outcome

    def _unready(self, parent: _Parent) -> Outcome | None:
        """Wait until a parent has imported what it needs; an outcome where it does not come to that."""
        allowed = max(self._timeout, _START)
        until = monotonic() + allowed
        how: str | None = None
        while not parent.home.ready:
            if self._closing.wait(_LOOK[1]):
                return Outcome(status=Status.INFRA, detail="interrupted")
            how = parent.home.ended()
            if how is not None or monotonic() > until:
                parent.broken = True
                late = f"was not ready within {allowed:g} s; give it longer (--timeout)"
                why = late if how is None else how
                return Outcome(status=Status.INFRA, detail=f"the parent of attempts {why}")
        return None

    def _waited(self, parent: _Parent, folder: Path, over: Callable[[], bool]) -> str | None:
        """Until the attempt ended: None. "" where `over` or we close before that, else how its parent was lost."""
        pause, look = _LOOK[0], monotonic() + _LOOK_AT_HOME
        while not os.path.lexists(folder / forks.ENDED):
            if over() or self._closing.wait(pause):
                return ""
            pause = min(pause * 1.2, _LOOK[1])
            if monotonic() > look:
                look = monotonic() + _LOOK_AT_HOME
                if (how := parent.home.ended()) is not None and not os.path.lexists(folder / forks.ENDED):
                    parent.broken = True
                    return how
        return None

    def _outcome(self, folder: Path, case: Case, lost: str, overdue: str) -> Outcome:
        written = read_outcome(folder / forks.OUTCOME)
        log = machine.printable(read_tail(folder / forks.LOG))
        told = _told(folder / forks.ENDED)
        code = told.get("code") if type(told.get("code")) is int else None
        if written is not None:
            outcome = without_compiler(written) if self._machine else written
        elif code is None and not overdue:
            why = f"the parent of attempts {lost}" if lost else str(told.get("why", "how it ended is not known"))
            outcome = Outcome(status=Status.INFRA, detail=f"{machine.printable(why.encode())}\n{log}".strip())
        else:
            death = ends.Death(
                code=code or 0,
                begun=os.path.lexists(marker(folder / forks.OUTCOME)),
                overdue=overdue,
                starved=told.get("starved") is True,
                limited=self._machine is not None,
                log=log,
            )
            outcome = ends.conclude(death, self._incident.manifest, case)
        return replace(outcome, exit_code=None if overdue else code, log=log)


def _hand_over(folder: Path, case: Case) -> None:
    """Made where no attempt sees it, and moved whole: an attempt that waits for it can put no link under our pen."""
    made = folder.parent.with_name(f"new-{folder.name}")
    made.mkdir()
    made.chmod(0o777)
    request = made / forks.CASE
    request.write_text(json.dumps(case.to_json()))
    request.chmod(0o644)
    made.rename(folder)


def _told(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(read_tail(path))
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
