"""The process group of a step that ran in one: told of at capture, and there again before a replay builds.

A build may ask for the group, make it by itself, or do so only where there is none; so it is made first, and what a
build does towards it finds it there already. Ranks of a replay meet in a file, over the loopback: there is no port that
somebody else could take, and none that a container without a network would lack.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

STORE = "REPROKIT_GROUP"  # variable: the file in which the ranks of a replay meet; absent where there is one
_PORT = "29500"  # torchrun's; for a build that reads it, since nothing listens there


def describe() -> dict[str, Any]:
    """The default group of this process; empty where there is none."""
    if not dist.is_available() or not dist.is_initialized():
        return {}
    return {"rank": dist.get_rank(), "size": dist.get_world_size(), "backend": dist.get_backend()}


def variables(rank: int, size: int, store: Path | None = None) -> dict[str, str]:
    """As a launcher would set them for a process of a replay."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {**place, **address, **({STORE: str(store)} if store else {})}


def rank() -> int | None:
    """That of this process in a replay of several; None where it is alone."""
    return int(os.environ["RANK"]) if STORE in os.environ else None


@contextmanager
def entered(group: Mapping[str, Any]) -> Iterator[None]:
    """Around a build: a group of this kind, and nothing for the build to do about it. Empty: there was none."""
    if not group or not dist.is_available():
        yield
        return
    if not dist.is_initialized():
        _begin(group)
    makes = dist.init_process_group
    dist.init_process_group = _is_there
    try:
        yield
    finally:
        dist.init_process_group = makes


def _begin(group: Mapping[str, Any]) -> None:
    backend = group.get("backend")
    backend = None if backend == "undefined" else backend
    place = os.environ.get(STORE)
    if place is None:
        for name, value in variables(0, 1).items():
            os.environ.setdefault(name, value)
    rank, size = int(os.environ["RANK"]) if place else 0, int(os.environ["WORLD_SIZE"]) if place else 1
    store = torch._C._distributed_c10d.FileStore(place, size) if place else torch._C._distributed_c10d.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)


def _is_there(*_: Any, **__: Any) -> None:
    """In place of `init_process_group`: a build of a script that was started by a launcher calls it by itself."""
