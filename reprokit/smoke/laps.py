"""Steps of training, as the harness says they go, looked at from inside: what gates that need a step share.

Gradients are looked at where they are whole: before clipping, which turns one infinity into NaN everywhere, and before
the optimizer, which may drop them. What a step raises leaves the lap as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.smoke.gate import Subject
from reprokit.step import between
from reprokit.step.probe import Probe
from reprokit.step.run import run


@dataclass(frozen=True, kw_only=True, slots=True)
class Lap:
    """What one step showed."""

    number: int  # from 1
    losses: Mapping[str, float]
    detached: bool  # the loss has no graph, so nothing was run after it
    graphs: Mapping[str, bool]  # other terms that have a graph, and whether the loss goes through it
    stepped: bool  # an optimizer of the harness was called
    grad_norm: float | None  # before clipping, unscaled; None where nobody saw gradients
    live: frozenset[str]  # parameters with a gradient that is finite and not zero
    bad: frozenset[str]  # with one that is not finite


def laps(subject: Subject, harness: Harness) -> Iterator[Lap]:
    """A step for each batch, one after the other, in the same harness."""
    for number, batch in enumerate(subject.batches, start=1):
        probe, detached = _Looking(harness), False
        try:
            with probe:
                run(harness, copied(batch), probe, micro=harness.accumulate - 1)
        except _Detached:
            detached = True
        probe.look()  # of a step that optimizes by itself, and keeps gradients for the next one
        yield Lap(
            number=number,
            losses=probe.losses,
            detached=detached,
            graphs=probe.graphs,
            stepped=probe.stepped,
            grad_norm=probe.grad_norm,
            live=frozenset(probe.live),
            bad=frozenset(probe.bad),
        )


def copied(batch: Any) -> Any:
    """A batch that a step may write into; on the devices where it is."""
    try:
        return tree.unpack(tree.refer(batch, name="batch"))
    except BadInput:  # a type that has no form there
        return copy.deepcopy(batch)


class _Detached(Exception):
    """There is nothing to go back through."""


class _Looking(Probe):
    """A probe that tells which parameters have gradients."""

    def __init__(self, harness: Harness) -> None:
        super().__init__(harness, at_door=self._at_each_door)
        self._automatic = harness.automatic_optimization
        grads = {name: parameter.grad for name, parameter in self._parameters.items()}
        self._left = {name: (grad, between.version(grad)) for name, grad in grads.items() if grad is not None}
        self.live: set[str] = set()
        self.bad: set[str] = set()
        self.graphs: dict[str, bool] = {}

    @property
    def stepped(self) -> bool:
        return self._stepped

    def look_at_losses(self, losses: Any) -> dict[str, torch.Tensor]:
        terms = super().look_at_losses(losses)
        if self._automatic and not terms["loss"].requires_grad:
            raise _Detached
        if terms["loss"].grad_fn is not None:
            within = _nodes(terms["loss"].grad_fn)
            others = {name: term.grad_fn for name, term in terms.items() if name != "loss" and term.grad_fn is not None}
            self.graphs = {name: _meets(node, within) for name, node in others.items()}
        return terms

    def look_at_gradients(self, **how: Any) -> None:
        self.look()
        super().look_at_gradients(**how)

    def _at_each_door(self, _: torch.optim.Optimizer) -> None:
        if not self._automatic:  # otherwise they were seen before they were clipped
            self.look()

    def look(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter.grad is not None and parameter.grad.numel() and not self._is_left(name, parameter.grad):
                values = parameter.grad.coalesce().values() if parameter.grad.is_sparse else parameter.grad
                largest = float(values.detach().abs().amax()) if values.numel() else 0.0
                if 0 < largest < float("inf"):
                    self.live.add(name)
                elif largest:  # NaN, too
                    self.bad.add(name)


    def _is_left(self, name: str, grad: torch.Tensor) -> bool:
        """Whether somebody else made it, as a build that tries its model out: nothing in this step wrote into it."""
        before, count = self._left.get(name, (None, -1))
        return grad is before and between.version(grad) == count >= 0


def _nodes(root: Any) -> set[Any]:
    """All operations that a backward pass from here comes through."""
    found, left = {root}, [root]
    while left:
        new = {node for node, _ in left.pop().next_functions if node is not None} - found
        found |= new
        left += new
    return found


_SCALES = ("Mul", "Div", "Neg", "Mean", "Sum", "Clone", "Alias", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy")


def _meets(node: Any, within: set[Any]) -> bool:
    """Whether an operation is one of these, but for a scale or a mean that was taken once more, to be shown."""
    while node not in within:
        inputs = [one for one, _ in node.next_functions if one is not None]
        if len(inputs) != 1 or not node.name().startswith(_SCALES):
            return False
        node = inputs[0]
    return True
