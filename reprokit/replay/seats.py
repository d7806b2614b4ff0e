"""Where on a cluster attempts sit, decided from what its nodes say they have. Pure: nothing here talks to a cluster.

A node gets one host, which holds the inner engine there and takes as many attempts at once as the node has cores, while
each gets the memory that it needs. An incident that had a GPU gets a host for each GPU, with one attempt at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """A host that is to be."""

    node: str  # id of the node
    number: int = 0  # of its hosts, where a node has several
    jobs: int  # attempts at once
    cpus: int  # that are asked of the node
    gpus: int = 0

    @property
    def place(self) -> tuple[str, int]:
        return self.node, self.number


def seats(nodes: Iterable[Mapping[str, Any]], *, need: int, gpu: bool, jobs: int | None = None) -> list[Seat]:
    """For these nodes, as `ray.nodes()` lists them. need: bytes of memory that an attempt takes. jobs: at most so many
    attempts at once in all, spread evenly; None: all that there is room for."""
    alive = sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeID"]))
    found = [seat for node in alive for seat in _of(str(node["NodeID"]), node["Resources"], need, gpu)]
    return found if jobs is None else _spread(found, jobs)


def _of(node: str, resources: Mapping[str, float], need: int, gpu: bool) -> list[Seat]:
    cpus, gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
    if cpus < 1 or (gpu and gpus < 1):
        return []  # also a head that takes no work
    if gpu:
        each = max(1, cpus // gpus)
        return [Seat(node=node, number=number, jobs=1, cpus=each, gpus=1) for number in range(min(gpus, cpus))]
    room = int(resources.get("memory", 0)) * 4 // 5 // max(need, 1)
    room = max(1, min(cpus, room))
    return [Seat(node=node, jobs=room, cpus=room)]


def _spread(found: list[Seat], jobs: int) -> list[Seat]:
    """One attempt to each in turn, until there are so many."""
    given = [0] * len(found)
    left = min(jobs, sum(seat.jobs for seat in found))
    while left:
        for index, seat in enumerate(found):
            if left and given[index] < seat.jobs:
                given[index], left = given[index] + 1, left - 1
    return [replace(seat, jobs=n, cpus=min(seat.cpus, n)) for seat, n in zip(found, given) if n]
