"""Are the numbers what they are taken for? What the loader gives, what the encoder gets of it, and what it loses.

A picture is normalised once. How dark a scene is says little about that, so the range is asked for: noise over all
that the loader can give is sent through the step, and what arrives at the encoder spans what black and white span.
Customary statistics make that 1 to 6; the same ones twice about 20. A view that is looked at moves the loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isfinite
from typing import Any

import torch

from reprokit.layout import KEY, Layout
from reprokit.smoke.clips import Picture, Received, Seen, Trials, noise, pictures
from reprokit.smoke.gate import Finding, Gate, Subject
from reprokit.smoke.laps import Lap, laps
from reprokit.smoke.words import counted
from reprokit.step.detectors import inputs
from reprokit.step.limits import Limits

ONCE, MOVES = "pictures arrive normalised once", "each view moves the loss"
TERMS, NORM, GROWTH = "every loss term is finite", "the gradient norm is no explosion", "no loss term explodes"
SPAN = (0.1, 8.0)  # of black to white: [0, 1] spans 1, ImageNet's statistics 4.5; those twice 20, and 1/255 twice 0.004
MORE = 4  # seeds under which a view is asked again before it is called dead
GROWN = 1000.0  # times, from lap to lap: a term of 1 that then is 1,000 is no training
_BAD_NOTES = ("not finite", "normalised twice", "uint8 of 0 and 1", "no values", "could not be looked at")


class Numbers(Gate):
    """Costs two laps, and a forward pass for each view and three more."""

    name = "numbers"

    def look(self, subject: Subject) -> Iterator[Finding]:
        if not subject.batches:
            for check in ("entries are finite and in range", ONCE, MOVES, TERMS, NORM, GROWTH):
                yield self.not_applicable(check, subject.no_batches)
            return
        harness = subject.harness()
        layout = Layout.parse(harness.layout)
        yield from self._entries(subject, layout)
        yield from self._forward(Trials(harness, subject.seed), subject, layout)
        done = list(laps(subject, subject.harness()))
        yield self._terms(done)
        skips = harness.scaler is not None and harness.scaler.is_enabled()
        yield self._norm(done, Limits().grad_norm_above or float("inf"), skips=skips)
        yield self._growth(done)

    def _entries(self, subject: Subject, layout: Layout) -> Iterator[Finding]:
        looked = [inputs.look(batch, layout) for batch in subject.batches]
        if not any(looked):
            yield self.not_applicable("entries are finite and in range", "the batch holds no tensors")
        for name in dict.fromkeys(name for one in looked for name in one):
            check = f"{name or 'the batch'}: finite, in range, alive"
            for lap, (about, batch) in enumerate(zip(looked, subject.batches), start=1):
                picture = pictures(batch, layout).get(name)
                problem = _problem(about[name], picture) if name in about else "it is missing"
                if problem:
                    advice = f"look at what the loader does with {name or 'it'}; an incident of this batch holds it"
                    yield self.failed(check, _expected(looked[0].get(name, {})), problem, advice).on(lap)
                    break
            else:
                about = looked[0][name]
                numbers = {key: float(about[key]) for key in ("min", "max", "mean", "std") if key in about}
                yield self.passed(check, _expected(about), _described(about), **numbers)

    def _forward(self, bench: Trials, subject: Subject, layout: Layout) -> Iterator[Finding]:
        batch = subject.batches[0]
        found = pictures(batch, layout).values()
        if not found or not all(picture.value.numel() for picture in found):
            why = "an entry is empty" if found else "no entry holds pictures"
            yield from (self.not_applicable(check, why) for check in (ONCE, MOVES))
            return
        noisy = noise(batch, layout, subject.seed)
        if any(picture.value.dtype == torch.uint8 or picture.channels in (None, 1, 3) for picture in found):
            yield self._once(bench.forward(batch), bench.forward(noisy))
        else:
            yield self.not_applicable(
                ONCE, "no entry has the 1 or 3 channels of a picture; latents have their own range"
            )
        yield self._moves(bench, batch, noisy, layout)

    def _once(self, real: Seen, on_noise: Seen) -> Finding:
        low, high = SPAN
        expected = f"finite; black to white spans {low:g} to {high:g}"
        advice = "normalise in one place, once: in the loader, or in the step (bytes by 255, then mean and deviation)"
        if not on_noise.received or not real.received:
            why = on_noise.error or real.error
            return self.not_applicable(ONCE, f"no module was seen to take a picture{f' ({why})' if why else ''}")
        for call in real.received:
            if not call.dtype.is_floating_point or not call.finite:
                what = "values that are not finite" if call.dtype.is_floating_point else str(call.dtype)
                return self.failed(ONCE, expected, f"{call.module} gets {what}", advice)
        spans: dict[str, list[float]] = {}  # of all calls of a module
        for call in on_noise.received:
            span = _spans(call)
            spans.setdefault(call.module, []).extend(span)
            odd = [one for one in span if not low <= one <= high]  # NaN, too
            if odd:
                what = "twice?" if not odd[0] < low else "divided twice?"
                observed = f"at {call.module} it spans {odd[0]:.3g}: normalised {what}" if odd[0] == odd[0] else "NaN"
                return self.failed(ONCE, expected, observed, advice, span=odd[0])
        shown = ", ".join(f"{min(span):.2g} to {max(span):.2g} at {module}" for module, span in spans.items())
        widest = max(max(span) for span in spans.values())
        return self.passed(ONCE, expected, f"spans {shown}", span=widest)

    def _moves(self, bench: Trials, batch: Any, noisy: Any, layout: Layout) -> Finding:
        base, again = bench.forward(batch), bench.forward(batch)
        if error := base.error or again.error:
            return self.not_applicable(MOVES, f"the step raises {type(error).__name__}")
        if not all(map(isfinite, base.losses.values())):
            return self.not_applicable(MOVES, "the loss is not finite as it is")
        if base.loss != again.loss:
            return self.not_applicable(MOVES, "the loss differs from run to run under the same seed")
        expected, views = "another loss with noise in its place", list(_views(batch, layout))
        for title, cell in views:
            after = bench.forward(layout.heal(batch, noisy, [cell]))
            if after.error:
                return self.not_applicable(MOVES, f"the step raises {type(after.error).__name__} with noise as {title}")
            if not all(map(isfinite, after.losses.values())):
                observed = f"a loss that is not finite, with noise as {title}"
                return self.failed(MOVES, expected, observed, "mend the loss before anything is said about views")
            if after.loss == base.loss and not _ever(bench, batch, layout.heal(batch, noisy, [cell])):
                advice = "follow the view through the step: something drops it, or writes over it"
                return self.failed(MOVES, expected, f"the same bits, with noise as {title}", advice)
        observed = f"all of {counted(len(views), 'view')}" if len(views) > 1 else "it does"
        return self.passed(MOVES, expected, observed, views=len(views))

    def _terms(self, done: list[Lap]) -> Finding:
        expected = f"finite in {counted(len(done), 'lap')}"
        for lap in done:
            if bad := {name: value for name, value in lap.losses.items() if not isfinite(value)}:
                shown = ", ".join(f"{name} {value}" for name, value in bad.items())
                advice = "reprokit reduce on its incident says which sample, and locate which operation"
                return self.failed(TERMS, expected, f"lap {lap.number}: {shown}", advice).on(lap.number)
        shown = ", ".join(f"{name} {value:.3g}" for name, value in done[-1].losses.items())
        return self.passed(TERMS, expected, shown, **dict(done[-1].losses))

    def _norm(self, done: list[Lap], most: float, *, skips: bool = False) -> Finding:
        """skips: a GradScaler passes over gradients that are not finite, and that is its work."""
        known = {lap.number: lap.grad_norm for lap in done if lap.grad_norm is not None}
        if skips and known and not any(map(isfinite, known.values())):
            steps = counted(len(known), "step")
            return self.not_applicable(NORM, f"GradScaler skips each of {steps}: its first scale is high")
        known = {lap: norm for lap, norm in known.items() if not skips or isfinite(norm)}
        if not known:
            return self.not_applicable(NORM, "no optimizer of the harness was called, so no gradient was seen")
        expected = f"at most {most:.0e} before clipping"
        for lap, norm in known.items():
            if not norm <= most:
                advice = "lower the weight of the term that explodes, or look at it alone; clipping only hides it"
                return self.failed(NORM, expected, f"{norm:.3g} in lap {lap}", advice, norm=norm).on(lap)
        return self.passed(
            NORM, expected, ", ".join(f"{norm:.3g}" for norm in known.values()), norm=max(known.values())
        )

    def _growth(self, done: list[Lap]) -> Finding:
        if len(done) < 2:
            return self.not_applicable(GROWTH, "there is one lap")
        if not all(map(isfinite, done[0].losses.values())):
            return self.not_applicable(GROWTH, "a term is not finite from the first lap on")
        expected = f"less than {GROWN:,.0f} times from lap to lap, or below {GROWN:,.0f}"
        for before, after in pairwise(done):
            for name, value in after.losses.items():
                was = before.losses.get(name, value)
                if not abs(value) < GROWN * max(1.0, abs(was)):
                    advice = "lower the learning rate, or the weight of this term"
                    observed = f"{name} goes from {was:.3g} to {value:.3g}"
                    return self.failed(GROWTH, expected, observed, advice).on(after.number)
        return self.passed(GROWTH, expected, f"holds for {counted(len(done[-1].losses), 'term')}")


def _ever(bench: Trials, batch: Any, other: Any) -> bool:
    """Whether two batches have another loss under some seed: a step may draw the views that it looks at."""
    pairs = ((bench.forward(batch, seed), bench.forward(other, seed)) for seed in range(1, 1 + MORE))
    return any(one.loss != two.loss and isfinite(two.loss) for one, two in pairs)


def _problem(about: Mapping[str, Any], picture: Picture | None) -> str:
    """What is wrong with an entry; empty where nothing is. Labels may be constant, pictures may not."""
    notes = [note for note in about["notes"] if any(bad in note for bad in _BAD_NOTES)]
    if notes:
        return f"{_described(about)}: {'; '.join(notes)}"
    return _dead(picture) if picture is not None else ""


def _dead(picture: Picture) -> str:
    """Which view of which sample is one constant from its first frame to its last; empty where none is."""
    lead = [i for axis in ("b", "v") if axis in picture.axes for i in [picture.axes.index(axis)]]
    rest = [i for i in range(picture.value.ndim) if i not in lead]
    flat = picture.value.detach().permute(*lead, *rest).flatten(len(lead)).cpu()
    dead = flat.amin(-1) == flat.amax(-1)
    if not dead.any():
        return ""
    where = [int(i) for i in dead.nonzero()[0]] if dead.ndim else []
    names = [name for axis, name in (("b", "sample"), ("v", "view")) if axis in picture.axes]
    of = ", ".join(f"{name} {i}" for name, i in zip(names, where)) or "all of it"
    value = float(flat[tuple(where)].flatten()[0])
    return f"{of} is constant, {value:g} in all frames ({int(dead.sum())} of {dead.numel()} such)"


def _expected(about: Mapping[str, Any]) -> str:
    dtype = str(about.get("dtype", ""))
    if dtype == "uint8":
        return "uint8 in [0, 255], no view constant"
    return f"{dtype} finite, no view constant, normalised once at most" if "float" in dtype else f"{dtype} values"


def _described(about: Mapping[str, Any]) -> str:
    text = f"{about.get('dtype', '')} {'x'.join(map(str, about.get('shape', ())))}".strip()
    if "min" in about:
        text += f" in [{about['min']:.4g}, {about['max']:.4g}]"
    return text + (f", mean {about['mean']:.4g}" if "mean" in about else "")


def _spans(call: Received) -> list[float]:
    """Highest less lowest value, of each channel."""
    channels = call.clip.detach().cpu().float().transpose(0, 1).flatten(1)
    spans: list[float] = (channels.amax(1) - channels.amin(1)).tolist() if channels.numel() else [float("nan")]
    return spans


def _views(batch: Any, layout: Layout) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """Each view, and the cell of the batch that it is."""
    for name, picture in pictures(batch, layout).items():
        entry: dict[str, list[Any]] = {KEY: [name]} if name else {}
        if "v" not in picture.axes:
            yield name or "the batch", entry
        else:
            views = picture.value.shape[picture.axes.index("v")]
            yield from ((f"{name} view {i}".strip(), {**entry, "v": [i]}) for i in range(views))
