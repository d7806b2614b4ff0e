"""The states of all global random number generators, taken and put back."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


def take() -> dict[str, Any]:
    """States of Python's, NumPy's and torch's global generators, and the seeds that they began with where known."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else [],
        "initial_seeds": {"torch": torch.initial_seed()},
    }


def put(states: dict[str, Any]) -> None:
    """The inverse of `take`."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"].cpu())
    for device, state in enumerate(states["cuda"]):
        torch.cuda.set_rng_state(state.cpu(), device)


def moved(states: dict[str, Any], to: dict[str, Any] | None = None) -> bool:
    """Whether anything drew from a generator since these states were taken. to: up to when those were; None: now."""
    now = take() if to is None else to
    return (
        now["python"] != states["python"]
        or now["numpy"]["state"]["pos"] != states["numpy"]["state"]["pos"]
        or not np.array_equal(now["numpy"]["state"]["key"], states["numpy"]["state"]["key"])
        or not torch.equal(now["torch"], states["torch"])
        or not all(map(torch.equal, now["cuda"], states["cuda"]))
    )


def seeded(value: int) -> dict[str, Any]:
    """The states after `seed`; those of this process stay as they are."""
    own = take()
    try:
        seed(value)
        return take()
    finally:
        put(own)


def seed(value: int) -> None:
    """Seed all of them: for attempts with another randomness than the captured one."""
    random.seed(value)
    np.random.seed(value % 2**32)
    torch.manual_seed(value)
