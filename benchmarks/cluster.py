"""On paper: 100,000 attempts on 1,000 nodes, and where that saturates. Simulated, event by event; runs nothing.

A replay on a cluster has three things that do not grow with it. Whoever asks handles each attempt in turn: sends the
case, reads the outcome, writes the journal, works out what is known. The store gives each node the incident once, to
all at the same time. And hosts are started one after the other. The rest, nodes and places on them, does its work side
by side; a node that is lost takes its attempts with it, which run again elsewhere, and comes back.

The model is a closed network: each place asks, waits for its turn at whoever asks, works, and asks again. One server of
time d per attempt and n places of time t each give at most min(1 / d, n / (t + d)) attempts a second, so places beyond
t / d wait. `benchmarks/replay_ray.py` measures what asking takes; times of attempts are lognormal.

    python benchmarks/cluster.py [--json] [--nodes 1000] [--attempts 100000] [--seconds 10] ...
"""

from __future__ import annotations

import argparse
import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from itertools import count
from math import exp, inf
from typing import Any

from tables import rows_table


@dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """A cluster and a replay. Times in seconds, sizes in bytes."""

    nodes: int = 1000
    places: int = 8  # attempts at once on a node
    attempts: int = 100_000
    seconds: float = 10.0  # of an attempt: a fresh process that imports torch, builds and steps
    spread: float = 0.3  # sigma of its logarithm
    asking: float = 0.0008  # of whoever asks, for each attempt: measured, `CPU of who asks, an attempt`
    journal: float = 0.002  # and for its line in the journal, synced
    growing: float = 4e-7  # and for each attempt that ended before, where what is known is worked out anew: measured
    looks: float = 100.0  # that is after each of so many attempts, and then when there is one more for each so many
    outcome: float = 30e3  # size of an outcome
    link: float = 125e6  # bytes a second of whoever asks
    starting: float = 0.02  # of the head, to start a host
    opening: float = 5.0  # of a host, from its start to its first attempt, without the transfer
    incident: float = 500e6  # size of an incident
    store: float = 2e9  # bytes a second that the store gives, to all together
    network: float = 1.25e9  # bytes a second of one node
    lost: float = 0.01  # nodes lost an hour, of each
    back: float = 300.0  # until a lost node is back

    def turn(self, ended: float) -> float:
        """Of whoever asks, for one attempt, when so many have ended."""
        return self.asking + self.journal + self.outcome / self.link + self.growing * min(ended, self.looks)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What became of it."""

    seconds: float  # until the last attempt ended
    asking: float  # share of that in which whoever asks was busy
    places: float  # and in which a place was at work, over all places
    fetched: float  # seconds until nine tenths of the nodes had the incident
    again: int  # attempts that ran again
    rate: float  # attempts a second, over the middle half of them


class Shared:
    """Transfers that share one store, each at most as fast as its node: by how much each of them has got so far."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant
        self._now = self._got = 0.0
        self._ends: list[tuple[float, int, int]] = []

    def add(self, now: float, node: int, life: int) -> None:
        self._to(now)
        heappush(self._ends, (self._got + self._plant.incident, node, life))

    def next(self) -> float | None:
        """When the next one ends, if none is added until then."""
        return self._now + (self._ends[0][0] - self._got) / self._rate() if self._ends else None

    def end(self, now: float) -> tuple[int, int]:
        self._to(now)
        return heappop(self._ends)[1:]

    def _to(self, now: float) -> None:
        if self._ends:
            self._got += (now - self._now) * self._rate()
        self._now = now

    def _rate(self) -> float:
        return min(self._plant.network, self._plant.store / len(self._ends))


def simulate(plant: Plant, seed: int = 0) -> Run:
    """One replay, from its start to its last attempt."""
    replay = Replay(plant, seed)
    while len(replay.ends) < plant.attempts:
        replay.advance()
    return replay.run()


class Replay:
    """One replay under way: what is to happen, in the order of its time."""

    def __init__(self, plant: Plant, seed: int) -> None:
        self.plant, self.now = plant, 0.0
        self.ends: list[float] = []  # of attempts
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, str, int, int]] = []  # time, order, what, node, which life of it
        self._order = count()
        self._transfers = Shared(plant)
        self._lives = [0] * (plant.nodes + 1)  # what was to happen in an earlier life of a node is void
        self._asks = False  # whoever asks is to be looked at again
        self._at_work = [0] * plant.nodes
        self._turns: deque[tuple[int, int]] = deque()  # places that wait for whoever asks: node and life
        self._left, self._again, self._asked, self._free_at = plant.attempts, 0, 0.0, 0.0
        self._fetched: dict[int, float] = {}  # node -> when it first had the incident
        for node in range(plant.nodes):
            self._at((node + 1) * plant.starting, "started", node)
            self._lose_some_day(node)

    def advance(self) -> None:
        """To the next thing that happens."""
        arrival = self._transfers.next()
        if arrival is not None and (not self._events or arrival <= self._events[0][0]):
            self.now = arrival
            node, life = self._transfers.end(arrival)
            if life == self._lives[node]:
                self._arrived(node)
            return
        self.now, _, what, node, life = heappop(self._events)
        if life == self._lives[node]:
            getattr(self, f"_{what}")(node)

    def run(self) -> Run:
        plant, quarter = self.plant, len(self.ends) // 4
        middle = self.ends[quarter : len(self.ends) - quarter]
        done = len(self.ends) * plant.seconds
        return Run(
            seconds=self.now,
            asking=self._asked / self.now,
            places=done / (self.now * plant.nodes * plant.places),
            fetched=sorted(self._fetched.values())[int(0.9 * (len(self._fetched) - 1))],
            again=self._again,
            rate=(len(middle) - 1) / max(middle[-1] - middle[0], 1e-9),
        )

    def _at(self, time: float, what: str, node: int) -> None:
        heappush(self._events, (time, next(self._order), what, node, self._lives[node]))

    def _started(self, node: int) -> None:
        self._transfers.add(self.now, node, self._lives[node])

    def _arrived(self, node: int) -> None:
        self._fetched[node] = self.now
        self._at(self.now + self.plant.opening, "opened", node)

    def _opened(self, node: int) -> None:
        self._turns.extend([(node, self._lives[node])] * self.plant.places)
        self._ask()

    def _ended(self, node: int) -> None:
        self._at_work[node] -= 1
        self.ends.append(self.now)
        self._turns.append((node, self._lives[node]))
        self._ask()

    def _free(self, _: int) -> None:
        self._asks = False
        self._ask()

    def _ask(self) -> None:
        """The next turn, if whoever asks is free."""
        while self._turns and self._left and self._free_at <= self.now:
            node, life = self._turns.popleft()
            if life == self._lives[node]:
                turn = self.plant.turn(len(self.ends))
                self._free_at = self.now + turn
                self._left, self._asked = self._left - 1, self._asked + turn
                self._at_work[node] += 1
                self._at(self._free_at + self._takes(), "ended", node)
        if self._turns and self._left and not self._asks:
            self._asks = True
            self._at(self._free_at, "free", self.plant.nodes)

    def _takes(self) -> float:
        """Seconds of an attempt; their mean is what was asked for."""
        spread = self.plant.spread
        return self.plant.seconds * exp(self._draw.gauss(-(spread**2) / 2, spread))

    def _lost(self, node: int) -> None:
        lost, self._at_work[node] = self._at_work[node], 0
        self._left, self._again = self._left + lost, self._again + lost
        self._lives[node] += 1
        self._at(self.now + self.plant.back, "back", node)
        self._ask()

    def _back(self, node: int) -> None:
        """With what it had fetched, if it had come that far."""
        if node in self._fetched:
            self._at(self.now + self.plant.opening, "opened", node)
        else:
            self._started(node)
        self._lose_some_day(node)

    def _lose_some_day(self, node: int) -> None:
        if rate := self.plant.lost / 3600:  # which may be too small to be a number
            self._at(self.now + self._draw.expovariate(rate), "lost", node)


def limit(plant: Plant) -> tuple[float, str]:
    """Attempts a second that can be had at most once half have ended, and what stands in the way of more."""
    turn = plant.turn(plant.attempts / 2)
    places = plant.nodes * plant.places / (plant.seconds + turn)
    return min((1 / turn, "whoever asks"), (places, "places"))


def worth(plant: Plant) -> float:
    """Nodes beyond which more of them change nothing then: their places would wait for whoever asks."""
    turn = plant.turn(plant.attempts / 2)
    return (plant.seconds + turn) / turn / plant.places


VARIED = {
    "as it is": {},
    "10 nodes, 1,000 attempts": {"nodes": 10, "attempts": 1_000},
    "100 nodes, 10,000 attempts": {"nodes": 100, "attempts": 10_000},
    "100 nodes": {"nodes": 100},
    "3,000 nodes": {"nodes": 3_000},
    "attempts of 2 s (fork)": {"seconds": 2.0},
    "attempts of 60 s": {"seconds": 60.0},
    "a journal on a slow disk, 20 ms": {"journal": 0.02},
    "a store of 200 MB/s": {"store": 200e6},
    "a node in ten lost an hour": {"lost": 0.1},
    "a store of 20 GB/s": {"store": 20e9},
    "what is known is worked out anew each time": {"looks": inf},
}


def described(plant: Plant) -> Iterator[str]:
    yield "| what | time, s | attempts/s | at most | who asks, busy | places, busy | incident on 90% after, s | again |"
    yield "|---|---|---|---|---|---|---|---|"
    for name, change in VARIED.items():
        changed = replace(plant, **change)
        run, (most, why) = simulate(changed), limit(changed)
        yield (
            f"| {name} | {run.seconds:,.0f} | {run.rate:,.1f} | {most:,.0f} ({why}) | {run.asking:.0%} "
            f"| {run.places:.0%} | {run.fetched:,.0f} | {run.again} |"
        )
    turn = f"{plant.turn(plant.attempts / 2) * 1e3:.1f} ms of an attempt are in turn by then"
    yield f"\nOnce half have ended, more than {worth(plant):,.0f} nodes change nothing: {turn}."


def rows(plant: Plant) -> Iterator[dict[str, Any]]:
    runs = [simulate(plant, seed) for seed in range(5)]
    for name, unit in (("seconds", "s"), ("rate", "attempts/s"), ("asking", "share"), ("places", "share")):
        values = sorted(getattr(run, name) for run in runs)
        row = {"value": values[2], "low": values[0], "high": values[-1], "unit": unit}
        yield {"name": f"simulated, {plant.nodes} nodes, {plant.attempts} attempts: {name}"} | row
    yield {"name": "nodes beyond which more change nothing", "unit": "nodes"} | dict.fromkeys(
        ("value", "low", "high"), worth(plant)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of tables")
    for one in fields(Plant):
        parser.add_argument(f"--{one.name}", type=type(one.default), default=one.default, help=f"{one.default:g}")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    plant = Plant(**options)
    found = list(rows(plant))
    print(json.dumps({"rows": found}) if as_json else "\n".join([*rows_table(found), "", *described(plant)]))


if __name__ == "__main__":
    main()
