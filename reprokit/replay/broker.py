"""Speaks with a Ray cluster for engine `ray`, in a process of its own.

Ray prints to the stdout of whoever connects, takes over its signal handlers, and ends it when the cluster is gone. So
the engine starts this, and both speak JSON in lines. Out first: how many attempts there is room for, and who the nodes
are. Then in: what a host is made of, and cases with their numbers; out: outcomes under those numbers, in any order. The
end of the input ends it, and the hosts with it.

A host is an actor on one node, pinned there. An attempt that is lost with its host goes to another one, up to a number
of times: a node that dies says nothing about a case, but a case that ends each node it comes to must not go on. New
nodes are seen and get hosts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from reprokit.errors import BadInput, ReprokitError
from reprokit.replay.remote import Host
from reprokit.replay.seats import Seat, seats

LOSSES = 3  # hosts that an attempt may be lost with before that is its outcome
_STARTS = 3  # hosts that a place gets that end before they are open
_LOOK = 2.0  # seconds between looks at the nodes: one question to the head
_PARTING = 15.0  # seconds for hosts to end what runs
_LINE = 300  # characters of an error that are passed on

Answers = IO[str]


@dataclass(kw_only=True, slots=True)
class Attempt:
    number: int
    id: str  # of the incident
    case: str
    losses: int = 0


class Crew:
    """Hosts on all nodes, and the attempts that wait for one."""

    def __init__(self, asked: Mapping[str, Any], answers: Answers) -> None:
        self._asked, self._answers = asked, answers
        self._waiting: asyncio.Queue[Attempt] = asyncio.Queue()
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._actors: dict[tuple[str, int], Any] = {}
        self._starts: Counter[tuple[str, int]] = Counter()
        self._refused: dict[tuple[str, int], str] = {}  # places without a host, and why
        self._open: set[tuple[str, int]] = set()
        self._served = monotonic()  # when a host was last open

    def add(self, attempt: Attempt) -> None:
        self._waiting.put_nowait(attempt)

    async def keep(self) -> None:
        """Hosts for every node that is there, for ever."""
        while True:
            places = self._places()
            for seat in places:
                task = self._tasks.get(seat.place)
                if (task is None or task.done()) and seat.place not in self._refused:
                    self._tasks[seat.place] = asyncio.create_task(self._serve(seat))
            self._despair({seat.place for seat in places})
            await asyncio.sleep(_LOOK)

    async def close(self) -> None:
        """End what runs, and the hosts."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        ends = [actor.close.remote() for actor in self._actors.values()]
        if ends:
            await asyncio.to_thread(ray.wait, ends, num_returns=len(ends), timeout=_PARTING)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _places(self) -> list[Seat]:
        """An empty list where the head does not answer, which it may do at the next look."""
        asked, nodes = self._asked, []
        with suppress(RayError, RuntimeError):
            nodes = ray.nodes()
        return seats(nodes, need=asked["need"], gpu=asked["gpu"], jobs=asked["jobs"])

    async def _serve(self, seat: Seat) -> None:
        """One host, from its start until it is lost."""
        place = seat.place
        pinned = NodeAffinitySchedulingStrategy(seat.node, soft=False)
        remote: Any = ray.remote(Host)  # by reference: nodes have reprokit
        host = remote.options(
            num_cpus=seat.cpus, num_gpus=seat.gpus, max_concurrency=seat.jobs + 2, scheduling_strategy=pinned
        )
        actor = self._actors[place] = host.remote(self._asked["host"], seat.jobs)
        try:
            await actor.open.remote(self._asked["id"])
            self._open.add(place)
            self._say(open=len(self._open))
            work = [asyncio.create_task(self._work(actor)) for _ in range(seat.jobs)]
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in work:
                    one.cancel()
        except RayTaskError as error:  # it was there, and said no
            self._refuse(place, error.cause)
        except RayError as error:
            self._starts[place] += 1
            if self._starts[place] >= _STARTS:
                self._refuse(place, error)
        finally:
            if place in self._open:
                self._open.discard(place)
                self._served = monotonic()
            ray.kill(self._actors.pop(place))

    async def _work(self, actor: Any) -> None:
        """Attempts, one after the other, until the host is lost."""
        while True:
            attempt = await self._waiting.get()
            try:
                outcome = await actor.evaluate.remote(attempt.id, attempt.case)
            except RayTaskError as error:
                self._say(number=attempt.number, error=_line(error.cause), bad=isinstance(error.cause, BadInput))
            except RayError as error:
                self._lost(attempt, error)
                return
            except asyncio.CancelledError:  # another attempt found out first
                self._lost(attempt, None)
                raise
            else:
                self._say(number=attempt.number, outcome=json.loads(outcome))

    def _lost(self, attempt: Attempt, error: BaseException | None) -> None:
        attempt.losses += 1
        if attempt.losses < LOSSES:
            self.add(attempt)
            return
        why = f"lost {LOSSES} times with its node" + (f": {_line(error)}" if error else "")
        self._say(number=attempt.number, error=why, bad=False)

    def _refuse(self, place: tuple[str, int], error: BaseException) -> None:
        self._refused[place] = _line(error)
        if isinstance(error, BadInput):
            self._say(fatal=_line(error), bad=True)
        else:
            self._say(refused=f"node {place[0][:8]}: {_line(error)}")

    def _despair(self, places: set[tuple[str, int]]) -> None:
        """Where nothing is left to wait for."""
        if self._open or self._waiting.empty():
            self._served = monotonic()
        elif places and places <= self._refused.keys():
            self._say(fatal=f"no node takes attempts; the first: {next(iter(self._refused.values()))}", bad=False)
        elif monotonic() - self._served > self._asked["patience"]:
            self._say(fatal=f"no node had room for {self._asked['patience']:g} s", bad=False)

    def _say(self, **line: Any) -> None:
        _say(self._answers, **line)


async def serve(requests: IO[str], answers: Answers) -> None:
    """Until the input ends."""
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[str]()

    def read() -> None:
        for line in requests:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    first = await lines.get()
    if not first:
        return
    crew = Crew(json.loads(first), answers)
    keeping = asyncio.create_task(crew.keep())
    while line := await lines.get():
        asked = json.loads(line)
        crew.add(Attempt(number=asked["number"], id=asked["id"], case=json.dumps(asked["case"])))
    keeping.cancel()
    await crew.close()


def main() -> None:
    """Entry point of the process. Its argument: address, need, gpu, jobs, as JSON."""
    asked = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what Ray prints must not look like an answer
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of our own tells nobody that it is there
    try:
        ray.init(
            address=asked["address"],
            include_dashboard=None if asked["address"] else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            namespace="reprokit",
        )
    except Exception as error:  # whatever Ray says of a cluster that it cannot join
        _say(answers, fatal=_line(error), bad=False)
        return
    nodes = ray.nodes()
    places = seats(nodes, need=asked["need"], gpu=asked["gpu"], jobs=asked["jobs"])
    addresses = sorted({str(node["NodeManagerAddress"]) for node in nodes if node["Alive"]})
    here = str(ray.util.get_node_ip_address())
    _say(answers, capacity=sum(seat.jobs for seat in places), nodes=len(nodes), elsewhere=addresses != [here])
    asyncio.run(serve(os.fdopen(os.dup(0)), answers))
    ray.shutdown()


def _say(answers: Answers, **line: Any) -> None:
    with suppress(BrokenPipeError):  # the engine is gone; the end of the input says so as well
        answers.write(json.dumps(line, allow_nan=False) + "\n")


def _line(error: BaseException | None) -> str:
    """What it says in one line: the last of a traceback says most."""
    if isinstance(error, ReprokitError):
        return str(error)
    said = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return f"{type(error).__name__}: {said[-1] if 'Traceback' in said[0] else said[0]}"[:_LINE]


if __name__ == "__main__":
    main()
