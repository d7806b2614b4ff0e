"""Does what is to be trained get gradients, and does an optimizer hold it?

No demand that a loss falls: two batches cannot show that. A part counts as reached if any of its parameters has a
gradient that is finite and not zero, in any lap: layers that begin at zero hide what is before them for a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from reprokit.errors import some
from reprokit.harness import Harness, parameters
from reprokit.smoke.gate import Finding, Gate, Subject
from reprokit.smoke.laps import Lap, laps
from reprokit.smoke.words import counted

TERMS = "the loss goes through its terms"
GRAPH, FROZEN, OWNED = "the loss has a graph", "what an optimizer holds is trained", "what is trained is held"
DEPTH = 3  # names as long as "encoder.blocks.0": what is below may rest, as experts do, or begin at zero


class Gradients(Gate):
    """Costs two laps."""

    name = "gradients"

    def look(self, subject: Subject) -> Iterator[Finding]:
        harness = subject.harness()
        yield self._frozen(harness)
        yield self._owned(harness)
        names = list(harness.modules)
        if not subject.batches:
            yield from (self.not_applicable(check, subject.no_batches) for check in (GRAPH, TERMS, *map(_check, names)))
            return
        done = list(laps(subject, harness))
        yield self._graph(harness, done)
        yield self._terms(done)
        detached = any(lap.detached for lap in done)
        for name in names:
            if detached:
                yield self.not_applicable(_check(name), "the loss has no graph, so there is nothing to go back through")
            else:
                yield self._reached(harness, name, done)

    def _graph(self, harness: Harness, done: list[Lap]) -> Finding:
        if not harness.automatic_optimization:
            if any(lap.stepped or lap.live or lap.bad for lap in done):
                return self.passed(GRAPH, "gradients after the step", "the step goes back through it by itself")
            advice = "call backward and the harness's own optimizer in the step"
            return self.failed(GRAPH, "gradients after the step", "none: the step never called backward", advice)
        for lap in done:
            if lap.detached:
                advice = "find the detach, no_grad, .item() or .data between the modules and the loss"
                return self.failed(GRAPH, "requires_grad", f"none in lap {lap.number}", advice).on(lap.number)
        return self.passed(GRAPH, "requires_grad", f"in {counted(len(done), 'lap')}")

    def _terms(self, done: list[Lap]) -> Finding:
        """A term that is called a loss, and that the sum has only as a number. Others may be there to be watched."""
        graphs = {name: met for lap in done for name, met in lap.graphs.items()}
        if not graphs:
            return self.not_applicable(TERMS, "the step returns no other term with a graph")
        missed = [name for name, met in graphs.items() if not met]
        expected, observed = (
            "each that is called a loss",
            some([name for name, met in graphs.items() if met]) or "none",
        )
        if lost := [name for name in missed if name.endswith("loss")]:
            advice = (
                "find what detaches it on its way into the sum; detach it where it is returned if it is only watched"
            )
            return self.failed(TERMS, expected, f"not through {some(lost)}", advice, lost=len(lost))
        return self.passed(TERMS, expected, f"{observed}; {some(missed)} watched only" if missed else observed)

    def _frozen(self, harness: Harness) -> Finding:
        names = {id(p): name for name, p in parameters(harness).items()}
        held = _held(harness)
        frozen = [names.get(id(p), "a parameter of no module") for p in held if not p.requires_grad]
        expected = "requires_grad of each"
        if not held:
            return self.failed(FROZEN, expected, "it holds nothing", "hand the modules' parameters to the optimizer")
        if frozen:
            advice = "unfreeze it, or leave it out of the optimizer if it is meant to stay"
            return self.failed(FROZEN, expected, f"frozen: {some(frozen)}", advice, frozen=len(frozen))
        return self.passed(FROZEN, expected, counted(len(held), "parameter"), parameters=len(held))

    def _owned(self, harness: Harness) -> Finding:
        held = set(map(id, _held(harness)))
        trained = {name: p for name, p in parameters(harness).items() if p.requires_grad}
        lost = [name for name, p in trained.items() if id(p) not in held]
        expected = "by an optimizer, each"
        if not trained:
            return self.failed(OWNED, expected, "no parameter has requires_grad", "unfreeze what is to be trained")
        if lost:
            advice = "hand it to an optimizer, or freeze it (requires_grad_(False)) if it is meant to stay"
            return self.failed(OWNED, expected, f"not held: {some(lost)}", advice, lost=len(lost))
        return self.passed(OWNED, expected, counted(len(trained), "parameter"), parameters=len(trained))

    def _reached(self, harness: Harness, name: str, done: list[Lap]) -> Finding:
        mine = {key: p for key, p in parameters(harness).items() if key.startswith(f"{name}.")}
        trained = {key for key, p in mine.items() if p.requires_grad}
        if not mine:
            return self.not_applicable(_check(name), "it has no parameters of its own")
        if not trained:
            if set(map(id, _held(harness))) & set(map(id, mine.values())):
                advice = "unfreeze it: the optimizer holds it, and it gets no gradient"
                return self.failed(_check(name), _EXPECTED, "it is frozen", advice)
            return self.not_applicable(_check(name), "it is frozen, and no optimizer holds it (a teacher?)")
        live, bad = frozenset[str]().union(*(lap.live for lap in done)), {k: lap for lap in done for k in lap.bad}
        skips = harness.scaler is not None and harness.scaler.is_enabled()
        if skips and not trained & live and trained & bad.keys():
            return self.not_applicable(_check(name), "GradScaler skips each step: its first scale is high")
        if broken := [key for key in trained if key in bad and key not in live]:
            observed = f"not finite in {some(sorted(broken))}"
            advice = "reprokit locate on its incident names the operation"
            return self.failed(_check(name), _EXPECTED, observed, advice).on(bad[broken[0]].number)
        parts = _parts(trained)
        if dry := [part for part, inside in parts.items() if not inside & live]:
            advice = "find what cuts it off: a detach or no_grad, a zero weight, an output that nobody uses"
            return self.failed(_check(name), _EXPECTED, f"none in {some(dry)}", advice, live=len(trained & live))
        observed = f"{len(trained & live)} of {counted(len(trained), 'parameter')}, {counted(len(parts), 'part')}"
        return self.passed(_check(name), _EXPECTED, observed, live=len(trained & live), trained=len(trained))


_EXPECTED = "finite, not zero, in each part"


def _check(name: str) -> str:
    return f"gradients reach {name}"


def _held(harness: Harness) -> list[torch.Tensor]:
    """All that its optimizers are to update."""
    return [p for one in harness.optimizers.values() for group in one.param_groups for p in group["params"]]


def _parts(names: set[str]) -> Mapping[str, set[str]]:
    """Parameters by the part that they are in."""
    parts: dict[str, set[str]] = {}
    for name in sorted(names):
        parts.setdefault(".".join(name.split(".")[:-1][:DEPTH]), set()).add(name)
    return parts
