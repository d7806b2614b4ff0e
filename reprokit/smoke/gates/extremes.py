"""What a step makes of content that no loader should give, and sometimes does.

A step may refuse a hostile batch, or survive it with a finite loss and finite gradients. What it may not do is go on
with NaN that came from finite values: the optimizer would write them into the weights. And what it may least do is turn
NaN into a finite loss: then the one signal that something is broken is gone. So NaN is asked the other way round: it
must come out. Where an entry does not reach the loss at all, nothing can be said, and nothing is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from reprokit.capture.logs import one_line
from reprokit.failure import Kind, Symptom, said
from reprokit.harness import AUTOCAST
from reprokit.layout import Layout
from reprokit.smoke import drift, hostile
from reprokit.smoke.bench import Bench
from reprokit.smoke.doors import Change, Doors
from reprokit.smoke.gate import Finding, Gate, Subject, Verdict

NUDGE = 0.1  # of what a module gets, in its deviations: 5 of 255 grey levels after the statistics of ImageNet
_LONGEST = 120  # characters of an error that are shown

_Kind = Callable[[torch.Tensor, torch.dtype], torch.Tensor]  # content, and what it is computed in
_SURVIVES = "a finite loss and finite gradients, or an error"
_KINDS: tuple[tuple[str, _Kind], ...] = (
    ("very large values (bytes at 255, floats times 1e6, or 256 in float16)", hostile.large),
    ("very small values (bytes at 0, floats by 1e6, or 256 in float16)", hostile.small),
    ("constant values (each entry at its mean)", hostile.constant),
)
_UNCLEAR = (ArithmeticError, LookupError, TypeError, AttributeError, NameError)  # what Python says of itself


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """Of one step."""

    error: str = ""
    clear: bool = True  # the error is somebody's word about the batch
    symptom: Symptom | None = None
    loss: float = 0.0

    @property
    def told(self) -> str:
        if self.error:
            return f"refused: {self.error}"
        if self.symptom is None:
            return f"loss {self.loss:.4g}, finite gradients"
        first = self.symptom.evidence.get("activations", {}).get("first", [])
        return f"{self.symptom.kind} at {self.symptom.where}" + (f", first in {first[0]}" if first else "")


class Extremes(Gate):
    """Content at its ends, flat, missing, NaN, and led along the gradient; and the configured precision beside float32.
    Catches 0/0 and overflow, NaN that is swallowed, and drift. Costs some ten steps and copies of the state."""

    name = "extremes"

    def look(self, subject: Subject) -> Iterator[Finding]:
        if not subject.batches:
            yield self.not_applicable("hostile content", subject.no_batches or "there are no batches")
            return
        bench, batch = Bench(subject.harness(), subject.seed), subject.batches[0]
        layout = Layout.parse(bench.harness.layout)
        bench.step(batch)  # what it raises has nothing to do with extremes, and leaves this gate
        if (usual := _outcome(bench, batch)).symptom:
            advice = "mend that first: beside a batch that fails as it is, extremes say nothing"
            yield self.failed("the batch as it is", _SURVIVES, usual.told, advice)
            return
        yield from self._content(bench, batch, layout)
        yield self._empty(bench, batch, layout)
        yield from self._missing(bench, batch, layout, usual)
        yield self._adversarial(bench, batch)
        yield self._precision(bench, batch)

    def _content(self, bench: Bench, batch: Any, layout: Layout) -> Iterator[Finding]:
        changeable = hostile.content(batch, layout)
        computed = AUTOCAST.get(bench.harness.autocast or "", torch.float32)
        for check, make in _KINDS:
            if changeable:
                change = _in(computed, make)
                yield self._survives(bench, check, hostile.changed(batch, layout, change))
            else:
                yield self.not_applicable(check, "the batch has no entry of floats, and no images of bytes")

    def _empty(self, bench: Bench, batch: Any, layout: Layout) -> Finding:
        check = "no samples (a batch of length 0)"
        empty = hostile.without_samples(batch, layout)
        if empty is None:
            return self.not_applicable(check, f"the layout names no axis of samples, {hostile.SAMPLES!r}")
        outcome = _outcome(bench, empty)
        if outcome.symptom and outcome.symptom.kind is Kind.NONFINITE_LOSS:  # as of any mean, and nobody can miss it
            because = f"a mean of nothing is NaN ({outcome.told}); where a batch may be empty, refuse it with an error"
            return self.not_applicable(check, because)
        return self._judged(check, outcome, empty)

    def _survives(self, bench: Bench, check: str, batch: Any) -> Finding:
        return self._judged(check, _outcome(bench, batch), batch)

    def _judged(self, check: str, outcome: _Outcome, batch: Any) -> Finding:
        found = self._survived(check, outcome)
        return replace(found, batch=batch if found.verdict is Verdict.FAILED else None)

    def _survived(self, check: str, outcome: _Outcome) -> Finding:
        if outcome.symptom is None:
            observed = outcome.told if outcome.clear else f"{outcome.told}; an error of its own would say why"
            return self.passed(check, _SURVIVES, observed)
        advice = "guard the operation (0/0, log 0, the norm of zero, an overflow), or refuse such a batch with an error"
        return self.failed(check, _SURVIVES, outcome.told, advice)

    def _missing(self, bench: Bench, batch: Any, layout: Layout, usual: _Outcome) -> Iterator[Finding]:
        """In each entry that can hold NaN; where none can, in what modules get from data."""
        floats = [entry for entry, tensor in hostile.content(batch, layout).items() if tensor.is_floating_point()]
        for entry in floats:
            check = f"NaN in {entry or 'the batch'}"
            other = _outcome(bench, hostile.changed(batch, layout, hostile.mirrored, [entry]))
            if other.error or other.loss != usual.loss:
                poisoned = hostile.changed(batch, layout, hostile.missing, [entry])
                found = self._came_out(check, _outcome(bench, poisoned))
                yield replace(found, batch=poisoned if found.verdict is Verdict.FAILED else None)
            else:
                yield self.not_applicable(check, "the loss does not depend on it")
        if not floats:
            yield from self._missing_inside(bench, batch)

    def _missing_inside(self, bench: Bench, batch: Any) -> Iterator[Finding]:
        """Bytes hold no NaN, but what is made of them does, as soon as somebody divides by a deviation of zero."""
        with Doors(bench.harness) as doors:
            bench.step(batch, until=Kind.NONFINITE_LOSS)
        names = {call.module: None for call in doors.calls if call.inputs}
        for name in names:
            place = lambda number, name=name: doors.calls[number].module == name
            poison = lambda number, _, tensor, place=place: hostile.missing(tensor) if place(number) else tensor
            yield self._came_out(f"NaN in what {name} gets", _outcome(bench, batch, poison))
        if not names:
            because = "the batch has no entry of floats, and no module is called with any that come from it"
            yield self.not_applicable("NaN", because)

    def _came_out(self, check: str, outcome: _Outcome) -> Finding:
        expected = "a loss that is not finite, or an error"
        lost = not outcome.error and (outcome.symptom is None or outcome.symptom.kind is not Kind.NONFINITE_LOSS)
        if not lost:
            return self.passed(check, expected, outcome.told)
        advice = "find what hides it (nan_to_num, a clamp, a mask, nanmean): from here on a broken input looks healthy"
        return self.failed(check, expected, f"swallowed: {outcome.told}", advice)

    def _adversarial(self, bench: Bench, batch: Any) -> Finding:
        """On what modules get, not on the batch: bytes have no gradient."""
        check = f"adversarial inputs ({NUDGE:g} deviations along the gradient's sign)"
        leaves: dict[tuple[int, int], torch.Tensor] = {}

        def watched(number: int, place: int, tensor: torch.Tensor) -> torch.Tensor:
            leaf = leaves.setdefault((number, place), tensor.detach().clone().requires_grad_())
            return leaf.clone()  # which may be written into

        before = _outcome(bench, batch, watched)
        if before.error:  # though without a gradient to its inputs it runs
            return self.not_applicable(check, f"with a gradient to its inputs the step is {before.told}")
        nudges = {key: _nudge(leaf) for key, leaf in leaves.items() if leaf.grad is not None and leaf.grad.any()}
        if not nudges:
            return self.not_applicable(check, "no gradient reaches anything that a module gets from the batch")
        nudge: Change = lambda number, place, tensor: nudges.get((number, place), tensor)
        after = _outcome(bench, batch, nudge)
        if after.error or after.symptom:
            return self._survived(check, after)
        observed = f"loss {before.loss:.4g} to {after.loss:.4g}, finite gradients; {len(nudges)} inputs of modules"
        return self.passed(check, _SURVIVES, observed, loss_before=before.loss, loss=after.loss)

    def _precision(self, bench: Bench, batch: Any) -> Finding:
        check = "the configured precision beside float32"
        found = drift.measure(bench, batch)
        if found is None:
            autocast = bench.harness.autocast
            because = f"autocast is {autocast}, yet" if autocast else "no autocast is configured, and"
            return self.not_applicable(check, f"{because} no module gives anything narrower than float32")
        (mean, here), (variance, there), (loss, term) = found.mean, found.variance, found.loss
        name = str(found.dtype).removeprefix("torch.")
        expected = f"{name}: means, variances and loss terms drift by {found.tolerance:.2%} at most"
        observed = f"mean {mean:.2%} ({here}), variance {variance:.2%} ({there}), {term} {loss:.2%}"
        numbers: dict[str, Any] = {"mean": mean, "variance": variance, "loss": loss, "tolerance": found.tolerance}
        if found.within:
            return self.passed(check, expected, f"{observed}; {found.outputs} outputs", **numbers)
        advice = f"keep that module in float32 (autocast off around it), or centre what it gets: {name} is coarse"
        where = f"first beyond it {found.first}: " if found.first else ""
        return self.failed(check, expected, f"{where}{observed}", advice, **numbers)


def _in(dtype: torch.dtype, make: _Kind) -> hostile.Make:
    return lambda tensor: make(tensor, dtype)


def _outcome(bench: Bench, batch: Any, change: Change | None = None) -> _Outcome:
    """What the step makes of a batch; change: of what modules get from it."""
    try:
        with warnings.catch_warnings(action="ignore"), Doors(bench.harness, change):
            probe = bench.step(batch)
    except Exception as error:
        clear = bool(said(error).strip()) and not isinstance(error, _UNCLEAR)
        return _Outcome(error=one_line(error)[:_LONGEST], clear=clear)
    return _Outcome(symptom=next(iter(probe.symptoms), None), loss=probe.losses["loss"])


def _nudge(leaf: torch.Tensor) -> torch.Tensor:
    """The input, led along the sign of its gradient."""
    assert leaf.grad is not None
    values = leaf.detach()
    return values + NUDGE * values.float().std(correction=0).to(values.dtype) * leaf.grad.sign()
