"""Which entries of a batch a module is called with: "local", and not "call 2".

A size tells no more than a guess. So an entry's values are put in reverse order, which changes neither their type nor
their range, and the calls that get something else show that entry. A forward pass for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reprokit.failure import Kind
from reprokit.layout import Layout
from reprokit.smoke.bench import Bench
from reprokit.smoke.doors import Call, Doors


def calls_of(bench: Bench, batch: Any) -> list[Call]:
    """Those of one forward pass, each time with the same random numbers."""
    with Doors(bench.harness) as doors:
        bench.step(batch, until=Kind.NONFINITE_LOSS)
    return doors.calls


def entries_of(bench: Bench, batch: Any, calls: Sequence[Call]) -> list[str]:
    """Of each call the entries that it shows; empty where that cannot be told."""
    layout = Layout.parse(bench.harness.layout)
    found: list[list[str]] = [[] for _ in calls]
    for entry, value in layout.leaves(batch).items():
        if isinstance(value, torch.Tensor | np.ndarray):
            for names, one, other in zip(found, calls, _after(bench, _reversed(batch, layout, entry))):
                if _differ(one, other):
                    names.append(entry or "the batch")
    return [", ".join(names) for names in found]


def _after(bench: Bench, batch: Any) -> list[Call]:
    try:
        return calls_of(bench, batch)
    except Exception:  # a step may refuse such a batch; then nothing is known of this entry
        return []


def _reversed(batch: Any, layout: Layout, entry: str) -> Any:
    def changed(name: str, value: Any) -> Any:
        if name != entry:
            return value
        other = torch.as_tensor(value).flatten().flip(0).reshape(value.shape)
        return other.numpy() if isinstance(value, np.ndarray) else other

    return layout.changed(batch, changed)


def _differ(one: Call, other: Call) -> bool:
    pairs = zip(one.inputs, other.inputs)
    return any(a.shape != b.shape or not torch.equal(a, b) for a, b in pairs)
