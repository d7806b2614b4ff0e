"""Follow bad values through a case's steps: what the state brought along, and the operation that made them.

One trace looks at every step of the case, so a value that went bad some steps back still has its origin when it shows:
in a teacher, a moment of the optimizer, a statistic. What torch did not make (NumPy, a kernel of the user's own, what a
loop does between two steps) is seen where the next step begins, and named as the entry of the state in which it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

import torch

from reprokit.harness import Harness, buffers, parameters
from reprokit.layout import Layout
from reprokit.step.probe import Probe
from reprokit.step.rewind import Step
from reprokit.step.trace import Operation, Trace, describe, given, is_fault


class Follower:
    """Looks at the steps of one evaluation, oldest first. Costs a few times each step."""

    def __init__(self, harness: Harness, layout: Layout) -> None:
        self._harness, self._layout = harness, layout
        self._trace = Trace(harness, {})
        self._step: Step | None = None
        self._bad: dict[str, Operation] = {}  # entries of the state that are bad where this step begins
        self._spoiled: int | None = None  # number of the first step after which there were more of them than before

    def begin(self, step: Step) -> Trace:
        """Look at what the step starts from; returns the context for it."""
        number, state = step.moment.number, dict(_state(self._harness))
        bad = {name: given(name, found, number) for name, value in state.items() if (found := _fault(name, value))}
        if self._step and self._spoiled is None and bad.keys() - self._bad.keys():
            self._spoiled = self._step.moment.number
        self._step, self._bad = step, bad
        leaves = self._layout.leaves(step.batch)
        entries = {f"batch entry {name}" if name else "batch": value for name, value in leaves.items()}
        starts = {name: value for name, value in (entries | state).items() if isinstance(value, torch.Tensor)}
        self._trace.begin(starts, number)
        return self._trace

    def located(self, probe: Probe) -> tuple[dict[str, Any] | None, Mapping[str, Any] | None]:
        """Where the first symptom of the last step has its bad values from, and the operation's arguments. Where none
        made them, what is bad in the state answers, and else the operation that got them."""
        suspect, trace, origin = probe.suspect(), self._trace, None
        if suspect is not None:
            state = next(iter(self._bad.values()), None)
            origin = trace.origin(suspect) or state or trace.met(suspect)
        elif probe.error and probe.signature:
            origin = trace.raised(probe.error, probe.signature.where)
        if origin is None:
            return None, None
        return {**origin.to_json(), "bad_before": list(self._bad), "spoiled_in": self._spoiled}, origin.arguments


def _state(harness: Harness) -> Iterator[tuple[str, torch.Tensor | float]]:
    """What a step starts from beside its batch, by the names that people know; tensors as they are, not copies."""
    for name, parameter in parameters(harness).items():
        yield f"parameter {name}", parameter
        if parameter.grad is not None:
            yield f"gradient {name}", parameter.grad
    yield from ((f"buffer {name}", buffer) for name, buffer in buffers(harness).items())
    names = {id(parameter): name for name, parameter in parameters(harness).items()}
    for key, optimizer in harness.optimizers.items():
        for owner, entry in optimizer.state.items():
            yield from _inside(dict(entry), f"{key} state of {names.get(id(owner), 'a parameter')}")
        for i, group in enumerate(optimizer.param_groups):
            yield from _inside({k: v for k, v in group.items() if k != "params"}, f"{key} group {i}")
    for key, holder in harness.extra_state.items():
        if not isinstance(holder, torch.Generator):
            yield from _inside(holder.state_dict(), f"extra_state {key}")
    if harness.scaler:
        yield from _inside(harness.scaler.state_dict(), "scaler")


def _inside(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor | float]]:
    if isinstance(value, torch.Tensor | float):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _inside(item, f"{name}.{key}")


def _fault(name: str, value: torch.Tensor | float) -> dict[str, Any] | None:
    """A description of what is bad. A number of the user's own may be infinite: the best loss so far."""
    if isinstance(value, float):
        bad = value != value or (not isfinite(value) and not name.startswith("extra_state"))
        return describe(torch.tensor(value)) if bad else None
    found = describe(value)
    return found if is_fault(name, value, found) else None
