"""How many attempts at once this machine can bear: one a core, while each gets the memory that it needs."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from reprokit.incident import Incident
from reprokit.replay.container import jobs_for

NEED = 3 << 30  # bytes that an attempt takes at least: torch, a small model, its batch twice
_TIMES = 4  # of state and batch: as captured, as built, gradients and what the forward pass keeps
_TORCH = 1 << 30  # bytes of the libraries alone
_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # of a control group, in version 2 and 1


def need_of(incident: Incident) -> int:
    """Bytes of memory that an attempt at it is expected to take."""
    kept = sum(
        one.bytes for path, one in incident.manifest.files.items() if path.partition("/")[0] in ("state", "ranks")
    )
    return max(NEED, _TORCH + _TIMES * kept)


def jobs(need: int) -> int:
    """Processes of this machine at once that take so many bytes each."""
    return jobs_for(cores(), memory(), need)


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that this process may use: the machine's, or fewer where its control group says so."""
    limits = [_number(cgroups / name) for name in _LIMITS]
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit)])


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
