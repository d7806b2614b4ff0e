"""Can the model learn one batch, and does it still tell samples apart when it has?

A falling loss alone proves little: a joint embedding reaches its minimum by giving every sample the same features. So
two things are asked of the same steps, and a model that fails one of them cannot pass by the other. A third one comes
before: built twice from one seed, the first loss is the same, or a curve says nothing about a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.harness import Harness, parameters
from reprokit.layout import Layout
from reprokit.smoke import course
from reprokit.smoke.bench import Bench, one_step
from reprokit.smoke.course import Course
from reprokit.smoke.gate import Finding, Gate, Subject
from reprokit.smoke.words import counted
from reprokit.step import rng
from reprokit.step.detectors.collapse import Moments, look_at_features, moments
from reprokit.step.detectors.view import Spectrum
from reprokit.step.limits import Limits
from reprokit.tree import digest

FEWEST, MOST = 50, 100  # steps: a warm-up of AdamW takes some ten; past a hundred one batch shows nothing new
WINDOW = 5  # the moving average is over so large a part of the steps
LEAST_FALL = 1e-3  # of the loss: a fall below that is rounding, or a learning rate that shows nothing in these steps
DRAWS = 8  # of a term that no seed controls: two more are farther apart than all of these once in 45 times
WIDEST = 100  # deviation before, in multiples of that after, past which features are on their way to one point
SHRUNK = 8  # the same of their absolute size: the healthy reference model goes down to a fifth, and comes back
LITTLE = 1.0  # of that size: what was far too large at first, and is of order one at last, has only found its scale
GROWS = 1.1  # from one window to the next, on the way back
NARROW = 8  # columns of an embedding; what has fewer is an answer (classes, a mask), and may well lie on a line
ENOUGH = 8  # samples before dimensions are counted: few points lie near a line by chance
LINE = 1.0001  # dimensions of what has one; on its way the healthy reference model has 1.03 for a while

_NORMAL = Limits()


def judged(gates: Sequence[Gate]) -> Course | None:
    """The steps that were judged, where this gate is among them and was asked."""
    return next((gate.taken for gate in gates if isinstance(gate, Overfit)), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """Features in the first step and in the last."""

    name: str
    samples: int  # that they come from
    first: Spectrum
    last: Spectrum
    spread: Sequence[float] = ()  # in each step, absolute; empty where nobody looked


class Overfit(Gate):
    """The loss of a fixed batch falls, and features do not fall to one point with it. Catches a model that learns
    nothing, one that collapses, and one that explodes. Costs so many optimizer steps, and ten forward passes."""

    name = "overfit"

    def __init__(self, steps: int = FEWEST) -> None:
        if not FEWEST <= steps <= MOST:
            raise BadInput(f"--overfit {steps}: expected {FEWEST} to {MOST} steps on one batch")
        self._steps = steps
        self.taken: Course | None = None  # what was judged, for whoever draws it

    def look(self, subject: Subject) -> Iterator[Finding]:
        if not subject.batches:
            yield self.not_applicable("one batch can be learned", subject.no_batches or "there are no batches")
            return
        batch = subject.batches[0]
        finding, noise = self._first_loss(subject, batch)
        yield finding
        harness = subject.harness()
        before = look_at_features(harness, batch)
        taken = self.taken = course.take(harness, batch, self._steps, subject.seed)
        yield self._bounded(taken)
        if taken.symptom is None:
            yield self._falls(taken, noise)
            after = look_at_features(harness, batch)
            yield from self._spread(_judged(taken, (before, after), _samples(harness, batch)))

    def _first_loss(self, subject: Subject, batch: Any) -> tuple[Finding, float]:
        """And how far the loss moves although nothing was changed."""
        check, expected = "the first loss under one seed", "equal in two builds"
        (ours, here), (theirs, there) = (_begun(subject, batch) for _ in range(2))
        if repr(here) == repr(there):  # NaN equals itself here; that it is one, others say
            return self.passed(check, expected, f"equal: {_number(here['loss'])}", loss=here["loss"]), 0.0
        advice = "seed what build draws (torch.manual_seed before it makes modules), and keep nothing between builds"
        if changed := [name for name in ours if ours[name] != theirs.get(name)]:
            return self.failed(check, expected, f"two builds give other weights, as in {changed[0]}", advice), 0.0
        bench, until = Bench(subject.harness(), subject.seed), Kind.NONFINITE_LOSS
        again = [bench.step(batch, until=until).losses for _ in range(DRAWS)]
        reach = {term: 2 * _range([terms.get(term, value) for terms in again]) for term, value in here.items()}
        off = {term: abs(value - there.get(term, value)) for term, value in here.items()}
        worst = max(here, key=lambda term: (off[term] > reach[term], off[term]))
        told = f"{worst} is {_number(here[worst])}, then {_number(there.get(worst, 0.0))}"
        numbers: dict[str, Any] = {"difference": off[worst], "tolerance": reach[worst]}
        if any(off[term] > reach[term] for term in here):
            more = f"{told}; {DRAWS} runs of one build differ by {_number(reach[worst] / 2)}"
            return self.failed(check, expected, more, advice, **numbers), reach["loss"]
        within = f"{told}: within {_number(reach[worst])}, twice what {DRAWS} runs of one build differ by"
        return self.passed(check, f"{expected}, or as near as runs of one", within, **numbers), reach["loss"]

    def _bounded(self, taken: Course) -> Finding:
        check, expected = "losses and gradients stay bounded", f"finite and bounded over {self._steps} steps"
        advice = "lower the learning rate or clip (each changes the experiment), or look at the term that grows"
        if symptom := taken.symptom:
            where = f"{symptom.kind} at {symptom.where} in step {len(taken.losses)}"
            return self.failed(check, expected, where, advice, steps=len(taken.losses))
        window = self._window
        start = max(map(abs, taken.total[:window]))
        end = min(map(abs, taken.total[-window:]))
        ratio, limit = _NORMAL.spike_ratio or 0.0, _NORMAL.grad_norm_above or 0.0
        norms = [norm for norm in taken.grad_norms if norm is not None]
        least = min(norms[-window:], default=0.0)
        numbers: dict[str, Any] = {"largest_before": start, "least_after": end, "grad_norm": least}
        if end > ratio * start and abs(taken.total[-1]) > abs(taken.total[0]):
            grown = f"the last {window} losses are all over {_number(end)}, the first {window} under {_number(start)}"
            return self.failed(check, expected, grown, advice, **numbers)
        if least > limit:
            high = f"the last {window} gradient norms are all over {_number(least)}"
            return self.failed(check, expected, f"{high} (limit {limit:.0e})", advice, **numbers)
        top = max(map(abs, taken.total))
        return self.passed(check, expected, f"loss at most {_number(top)}, gradient norm {_norms(norms)}", **numbers)

    def _falls(self, taken: Course, noise: float) -> Finding:
        window = self._window
        start, end = fmean(taken.total[:window]), fmean(taken.total[-window:])
        least = max(LEAST_FALL * max(map(abs, taken.total[:window])), noise)
        check, expected = "the loss of one batch falls", f"its average of {window} steps falls by {_number(least)}"
        observed = f"from {_number(start)} to {_number(end)} in {self._steps} steps"
        numbers: dict[str, Any] = {"first": start, "last": end, "fall": start - end, "least": least}
        if start - end > least:
            return self.passed(check, expected, observed, **numbers)
        advice = (
            "see the gates of gradients: is the loss detached, a module frozen, the optimizer given other parameters? "
            "A learning rate in warm-up may be too low for so few steps; a higher one changes the experiment"
        )
        return self.failed(check, expected, observed, advice, **numbers)

    def _spread(self, judged: Sequence[_Judged]) -> Iterator[Finding]:
        if not judged:
            because = f"the harness gives no features, and no module two rows or more of {NARROW} columns or more"
            yield self.not_applicable("features tell samples apart", because)
        for one in judged:
            yield self._apart(one)

    def _apart(self, one: _Judged) -> Finding:
        check = f"{one.name} tell samples apart"
        least = _NORMAL.collapse_deviation or 0.0
        counts = one.samples >= ENOUGH
        beyond = f", in over {LINE} dimensions" if counts else ""
        expected = f"they deviate by over {least:g} of their size{beyond}, and do not go to the origin"
        before, after = one.first, one.last
        numbers: dict[str, Any] = {
            "deviation": after.deviation,
            "deviation_before": before.deviation,
            "dimensions": after.dimensions,
        }
        moved = f"deviation {_number(before.deviation)} to {_number(after.deviation)} of their size"
        if one.spread:
            numbers |= {"spread": one.spread[-1], "spread_before": one.spread[0]}
            moved = f"{moved}, {_number(one.spread[0])} to {_number(one.spread[-1])} in all"
        dimensions = f"{after.dimensions:.5g}" if counts else f"{after.dimensions:.3g}"
        observed = f"{moved}; in {dimensions} dimensions" + ("" if counts else _uncounted(one.samples))
        one_point = after.deviation < max(least, before.deviation / WIDEST)
        one_line = counts and after.dimensions < LINE
        if not (one_point or one_line or self._shrinks(one.spread)):
            return self.passed(check, expected, observed, **numbers)
        advice = "a collapse: look at the term that keeps features apart (its weight, its sign, what it is given)"
        return self.failed(check, expected, observed, advice, **numbers)

    def _shrinks(self, spread: Sequence[float]) -> bool:
        """Far below what it was, and not on its way back."""
        window = self._window
        if not spread or spread[-1] > min(LITTLE, spread[0] / SHRUNK):
            return False
        return fmean(spread[-window:]) <= GROWS * fmean(spread[-2 * window : -window])

    @property
    def _window(self) -> int:
        return self._steps // WINDOW


def _begun(subject: Subject, batch: Any) -> tuple[Mapping[str, str], Mapping[str, float]]:
    """Of a harness as it is built: hashes of its parameters by name, and the terms of its first loss."""
    harness = subject.harness()
    weights = {name: digest(tensor) for name, tensor in parameters(harness).items()}
    rng.seed(subject.seed)
    return weights, one_step(harness, batch, until=Kind.NONFINITE_LOSS).losses


def _judged(taken: Course, features: tuple[Moments | None, Moments | None], samples: int) -> list[_Judged]:
    """What the harness calls features, and what its modules give."""
    before, after = features
    found = []
    if before and after and after.samples > 1:
        found.append(_Judged(name="features", samples=samples, first=before.spectrum(), last=after.spectrum()))
    for name, rows in taken.last.items():
        first = taken.first.get(name)
        if first is not None and len(rows) > 1 and rows.shape[-1] >= NARROW:
            ends = _spectrum(first), _spectrum(rows)
            outputs = f"outputs of {name}"
            found.append(_Judged(name=outputs, samples=samples, first=ends[0], last=ends[1], spread=taken.spread[name]))
    return found


def _spectrum(rows: torch.Tensor) -> Spectrum:
    return moments(rows.cpu()).spectrum()  # in float64, which not every device has


def _samples(harness: Harness, batch: Any) -> int:
    """Of the batch, not of its views, which are to agree; 0 where the layout names none."""
    return Layout.parse(harness.layout).sizes(batch).get("b", 0)


def _uncounted(samples: int) -> str:
    few = f"{counted(samples, 'sample')} of {ENOUGH} at least" if samples else "the layout names no samples, b"
    return f", which is not judged: {few}"


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _norms(norms: Sequence[float]) -> str:
    return f"at most {_number(max(norms))}" if norms else "not seen"


def _number(value: float) -> str:
    return f"{value:.4g}"
