"""A step that is run again and again from one state, with the same random numbers.

What two runs differ by is then what was changed between them: the batch, or the precision. Parameters, buffers,
optimizers and generators that the harness lists are put back before each run; batches are copied, since a step may
write into its own. Costs a copy of the state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from reprokit.failure import Kind
from reprokit.harness import Harness, put_state, take_state
from reprokit.smoke.laps import copied
from reprokit.step import rng
from reprokit.step.detectors import Watching
from reprokit.step.probe import Probe
from reprokit.step.run import run


class Bench:
    """A harness as it was built. `step` always begins there."""

    def __init__(self, harness: Harness, seed: int) -> None:
        self.harness, self._seed = harness, seed
        self._state = take_state(harness)

    def rewind(self) -> None:
        """Back to the start, with the generators seeded."""
        put_state(self.harness, self._state)
        rng.seed(self._seed)

    def step(self, batch: Any, *, until: Kind | None = Kind.NONFINITE_GRAD) -> Probe:
        """What one step shows up to its gradients. Raises what the step does."""
        self.rewind()
        return one_step(self.harness, batch, until=until)


def one_step(harness: Harness, batch: Any, *, until: Kind | None = None) -> Probe:
    """A step from where the harness is, its gradients looked at; with accumulation the last of its batches."""
    watching = Watching(activations=True)  # names the module that went bad first
    with eager(), Probe(harness, watching) as probe:
        run(harness, copied(batch), probe, micro=harness.accumulate - 1, until=until)
    return probe


def update(harness: Harness, batch: Any) -> Probe:
    """One optimizer step, as training makes it: with accumulation from the same batch each time, up to one that shows
    something. A step writes into copies."""
    for micro in range(harness.accumulate):
        with Probe(harness) as probe:
            run(harness, copied(batch), probe, micro=micro)
        if probe.symptoms:
            break
    return probe


@contextmanager
def eager() -> Iterator[None]:
    """Without torch.compile, whose code calls no hooks."""
    if "torch._dynamo" not in sys.modules:  # importing it to find out would cost seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield
