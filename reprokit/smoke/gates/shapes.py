"""Are tensors what they are taken for? Axes against the layout, frames on their way, tokens, time.

[B, T, C, H, W] becomes [B, C, T, H, W] by an exchange of two axes. A reshape gives the same sizes, and where a clip has
three frames nothing at all need be done to get them; so content is followed: one frame is changed where the loader
gives it, and must arrive as one frame of the encoder's clip, whole and nowhere else; `upright` looks within a frame.
The number of tokens follows from the encoder's own attributes: in training what token dropping leaves, otherwise all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from reprokit.errors import BadInput
from reprokit.harness import Harness, named_modules
from reprokit.layout import Layout
from reprokit.smoke.bench import eager
from reprokit.smoke.clips import CLIP, Received, Seen, Trials, noise, other_frame, pictures, tokens_in
from reprokit.smoke.encoders import drop_rate, encoders, no_encoder
from reprokit.smoke.gate import Finding, Gate, Subject, Verdict
from reprokit.smoke.times import Times
from reprokit.smoke.upright import Upright
from reprokit.smoke.words import counted

AXES, ALIKE, TIME = "entries fit the layout", "shapes are equal in each lap", "views show the same frames"
WAY, ROWS = "frames arrive along T of [B, C, T, H, W]", "rows of a frame arrive along H"
TOKENS, LARGEST = "tokens", "the largest clip fills the encoder"
AT_LEAST = 3  # frames that are changed, one by one
ALONE = 0.9  # of what changes in a clip lies in the one frame: the rest is a clip-wide normalisation
FAINT = 0.01  # of the largest change of a clip: less is what a normalisation over all clips hands on

Landed = dict[tuple[int, int], dict[int, int]]  # of a call and a clip in it: frame -> the index where it was met


class Shapes(Gate):
    """Costs seven forward passes, more where the step leaves frames out or frames lie on their side."""

    name = "shapes"

    def look(self, subject: Subject) -> Iterator[Finding]:
        harness = subject.harness()
        layout = Layout.parse(harness.layout)
        yield from self._entries(subject, layout)
        if not encoders(harness):
            yield from self._convolved(subject, harness, layout)
            yield from (self.not_applicable(check, no_encoder(harness)) for check in (TOKENS, LARGEST))
        elif not subject.batches:
            yield from (self.not_applicable(check, subject.no_batches) for check in (WAY, ROWS, TOKENS, LARGEST))
        else:
            yield from self._encoders(subject, harness, layout)
        yield from Times(self, TIME).look(subject, layout)

    def _convolved(self, subject: Subject, harness: Harness, layout: Layout) -> Iterator[Finding]:
        """Of a harness without an encoder: a convolution over time takes the same order of axes."""
        if not subject.batches or not any(isinstance(module, nn.Conv3d) for _, module in named_modules(harness)):
            why = no_encoder(harness) if subject.batches else subject.no_batches
            yield from (self.not_applicable(check, why) for check in (WAY, ROWS))
            return
        yield from self._arrival(Trials(harness, subject.seed), subject.batches[0], layout, subject.seed)

    def _entries(self, subject: Subject, layout: Layout) -> Iterator[Finding]:
        if not subject.batches:
            yield from (self.not_applicable(check, subject.no_batches) for check in (AXES, ALIKE))
            return
        spec = layout.spec if isinstance(layout.spec, str) else "; ".join(f"{k}: {v}" for k, v in layout.spec.items())
        for lap, batch in enumerate(subject.batches, start=1):
            try:
                empty = [axis for axis, length in layout.sizes(batch).items() if not length]
            except BadInput as error:
                yield self.failed(AXES, spec, str(error), "mend the loader, or the harness's layout").on(lap)
                break
            if empty:
                advice = "mend the loader: nothing can be learnt from it"
                yield self.failed(AXES, spec, f"axis {empty[0]} is 0 long", advice).on(lap)
                break
        else:
            yield self.passed(AXES, spec, _shown(subject.batches[0], layout))
        if len(subject.batches) < 2:
            yield self.not_applicable(ALIKE, "the loader gives one batch only")
            return
        first, *others = (_shown(batch, layout) for batch in subject.batches)
        lap = next((i for i, other in enumerate(others, start=2) if other != first), 0)
        if lap:
            advice = "crop and pad to one size, and drop the loader's last, smaller batch (drop_last)"
            yield self.failed(ALIKE, first, others[lap - 2], advice).on(lap)
        else:
            yield self.passed(ALIKE, "as in lap 1", f"equal in {counted(len(subject.batches), 'lap')}")

    def _encoders(self, subject: Subject, harness: Harness, layout: Layout) -> Iterator[Finding]:
        bench, batch = Trials(harness, subject.seed), subject.batches[0]
        yield from self._arrival(bench, batch, layout, subject.seed)
        seen = bench.forward(batch)
        if not seen.received:
            why = "the step raises before it" if seen.error else "the step never calls it"
            yield from (self.not_applicable(check, f"{why}: the encoder gets nothing") for check in (TOKENS, LARGEST))
            return
        yield from self._tokens(harness, seen)
        yield from self._largest(harness, seen)

    def _arrival(self, bench: Trials, batch: Any, layout: Layout, seed: int) -> Iterator[Finding]:
        way = self._way(bench, batch, layout, seed)
        yield way
        if way.verdict is Verdict.PASSED:
            yield Upright(self, ROWS).look(bench, batch, layout, seed)
        elif way.verdict is Verdict.FAILED:
            yield self.not_applicable(ROWS, "frames go astray before that")
        else:
            yield replace(way, check=ROWS)

    def _way(self, bench: Trials, batch: Any, layout: Layout, seed: int) -> Finding:
        found = pictures(batch, layout)
        frames = {p.value.shape[p.frames] for p in found.values() if p.frames is not None}
        if not frames:
            return self.not_applicable(WAY, "no entry of pictures has an axis of frames, t")
        before, donor = noise(batch, layout, seed), noise(batch, layout, seed + 1)
        base = bench.forward(before)
        if not base.received:
            why = f"the step raises on noise before it ({base.error})" if base.error else "the step never calls it"
            return self.not_applicable(WAY, f"the encoder gets nothing: {why}")
        modules = dict(named_modules(bench.harness))
        if not all(
            call.module in encoders(bench.harness) or isinstance(modules[call.module], nn.Conv3d)
            for call in base.received
        ):
            return self.not_applicable(
                WAY, f"{base.received[0].module} takes the clips first, whose order nobody knows"
            )
        advice = "exchange the axes by name, as einops.rearrange(x, 'b t c h w -> b c t h w') does"
        if odd := next((one for one in base.received if len(one.shape) != CLIP), None):
            return self.failed(WAY, "clips with 5 axes", f"{odd.module} gets {list(odd.shape)}", advice)
        again = bench.forward(before)
        if any(not torch.equal(a.clip, b.clip) for a, b in zip(base.received, again.received)):
            return self.not_applicable(WAY, "the clips differ from run to run under the same seed")
        landed: Landed = {}
        for number, frame in enumerate(_order(max(frames))):
            if number >= AT_LEAST and _enough(base, landed):
                break
            after = bench.forward(other_frame(before, donor, layout, frame))
            if problem := _astray(base, after, frame, frames, landed):
                return self.failed(WAY, f"changed frame {frame} is index {frame} of axis 2", problem, advice)
            if problem := _disorder(base, landed):
                return self.failed(WAY, "frames keep their order", problem, "take frames in the order of time")
        if landed:
            shapes = ", ".join(dict.fromkeys(f"{list(one.shape)}" for one in base.received))
            return self.passed(WAY, "a changed frame is one index of axis 2", f"it is, in {shapes}")
        return self.failed(WAY, "a changed frame changes a clip", "no clip depends on any frame", advice)

    def _tokens(self, harness: Harness, seen: Seen) -> Iterator[Finding]:
        done = set[tuple[Any, ...]]()
        for call in seen.received:
            key = (call.module, call.shape[1:], call.training)
            if key not in done:
                done.add(key)
                yield from self._tokens_of(harness, call, raised=seen.error is not None)

    def _tokens_of(self, harness: Harness, call: Received, *, raised: bool) -> Iterator[Finding]:
        encoder = encoders(harness)[call.module]
        check = f"{TOKENS} of {_clip(call.shape)} in {{}}"
        check += f" ({call.module})" if len(encoders(harness)) > 1 else ""
        patches = patches_of(encoder, call.shape)
        if patches is None:
            size = f"patches of {encoder.tubelet_size}x{encoder.patch_size}x{encoder.patch_size}"
            advice = "crop to whole patches, or swap the axes back: [B, C, T, H, W] is expected"
            yield self.failed(check.format("training"), f"whole {size}", f"{list(call.shape)}", advice)
            return
        kept, (rate, odd) = patches, drop_rate(encoder)
        if odd:
            yield self.not_applicable(check.format("training"), f"{call.module}.{odd}")
            return
        if call.training and rate:
            kept = max(1, round(patches * (1 - rate)))
        how = f": {1 - rate:.3g} of {patches}, and [CLS]" if kept != patches else f": {patches} and [CLS]"
        mode = "training" if call.training else "the step (eval mode)"
        advice = "the encoder's token_drop_rate, or what it does with it, is not what training runs"
        if call.tokens is None:
            why = "the step raises in it" if raised else f"the encoder gives a {call.gave} without tokens [B, 1 + N, D]"
            yield self.not_applicable(check.format(mode), why)
        else:
            yield self._counted(check.format(mode), 1 + kept, how, call.tokens[1], advice)
        if raised and call.tokens is None:
            yield self.not_applicable(check.format("eval mode"), "the step raises in it")
        elif (whole := _evaluated(encoder, call.clip)) is None:
            yield self.not_applicable(check.format("eval mode"), f"the encoder gives a {call.gave} without tokens")
        else:
            advice = "nothing may be dropped in eval mode"
            yield self._counted(check.format("eval mode"), 1 + patches, f": {patches} and [CLS]", whole, advice)

    def _counted(self, check: str, expected: int, how: str, observed: int, advice: str) -> Finding:
        if observed != expected:
            return self.failed(check, f"{expected}{how}", str(observed), advice, tokens=observed)
        return self.passed(check, f"{expected}{how}", str(observed), tokens=observed)

    def _largest(self, harness: Harness, seen: Seen) -> Iterator[Finding]:
        for name, encoder in encoders(harness).items():
            calls = [patches_of(encoder, call.shape) for call in seen.received if call.module == name]
            known = [count for count in calls if count is not None]
            if not known:
                why = "the step never calls it with whole patches" if calls else "the step never calls it"
                yield self.not_applicable(LARGEST, f"{why} ({name})")
            elif max(known) != encoder.num_patches:
                advice = "build it for the clips that the loader gives: image size and number of frames"
                yield self.failed(LARGEST, f"{encoder.num_patches} patches ({name})", f"{max(known)}", advice)
            else:
                yield self.passed(LARGEST, f"{encoder.num_patches} patches ({name})", f"{max(known)}")


def patches_of(encoder: Any, shape: tuple[int, ...]) -> int | None:
    """Of a clip [B, C, T, H, W]; None where it is no whole number of them."""
    if len(shape) != CLIP:
        return None
    divided = [divmod(n, by) for n, by in zip(shape[2:], (encoder.tubelet_size, *2 * [encoder.patch_size]))]
    return None if any(rest or not n for n, rest in divided) else divided[0][0] * divided[1][0] * divided[2][0]


def _evaluated(encoder: Any, clip: torch.Tensor) -> int | None:
    """How many tokens come out in eval mode."""
    training = encoder.training
    encoder.eval()
    try:
        with torch.no_grad(), eager():
            found = tokens_in(encoder(clip[:1]))
    finally:
        encoder.train(training)
    return None if found is None else found.shape[1]


def _order(frames: int) -> list[int]:
    """The first, the last and the one between them, then all others: a step may leave some out."""
    return list(dict.fromkeys([0, frames - 1, frames // 2, *range(frames)]))


def _astray(base: Seen, after: Seen, frame: int, frames: set[int], landed: Landed) -> str:
    """Where a change of one frame went instead of to that index of axis 2; empty where it went there, or nowhere. Of
    each clip by itself, so that many that are right do not hide one that is not."""
    for number, (one, other) in enumerate(zip(base.received, after.received)):
        if one.clip.shape != other.clip.shape:
            return f"{one.module} gets {list(other.shape)} instead of {list(one.shape)} for another content"
        each = (other.clip.cpu().double() - one.clip.cpu().double()).square().sum(dim=(3, 4))  # [B, C, T]
        if not each.isfinite().all():
            return f"{one.module} gets values that are not finite"
        whole = each.sum(dim=(1, 2))
        if not whole.any():
            continue
        for clip in (whole > FAINT * whole.max()).nonzero().flatten().tolist():
            share = each[clip] / whole[clip]
            at = int(share.sum(dim=0).argmax())
            lowest = float(share[:, at].min()) * len(share)
            expected = frame if one.clip.shape[2] in frames else at  # fewer frames: the step takes some of them
            if float(share[:, at].sum()) < ALONE or lowest <= 0 or at != expected:
                rows, columns = (share > 1e-6 * share.max()).nonzero(as_tuple=True)
                where = f"at {_some(rows)} of axis 1, {_some(columns)} of axis 2"
                return f"in {one.module}'s {list(one.shape)} it is {where}"
            landed.setdefault((number, clip), {})[frame] = at
    return ""


def _enough(base: Seen, landed: Landed) -> bool:
    """Whether the order of frames is known wherever one was met: of two of them, where there are two."""
    return bool(landed) and all(
        len(places) >= min(2, base.received[call].clip.shape[2]) for (call, _), places in landed.items()
    )


def _disorder(base: Seen, landed: Landed) -> str:
    """Where a frame comes before one that was before it; empty where none does."""
    for (call, _), places in landed.items():
        for (earlier, at), (later, then) in pairwise(sorted(places.items())):
            if then < at:
                one = base.received[call]
                return f"in {one.module}'s {list(one.shape)} frame {later} is index {then}, and frame {earlier} is {at}"
    return ""


def _some(places: torch.Tensor, most: int = 4) -> str:
    indices = places.unique().tolist()
    return ", ".join(map(str, indices[:most])) + (" ..." if len(indices) > most else "")


def _shown(batch: Any, layout: Layout) -> str:
    """Its entries with their types and sizes."""
    leaves: Mapping[str, Any] = layout.leaves(batch)
    parts = []
    for name in layout.entries:
        value: Any = leaves.get(name, ())
        sizes = "x".join(map(str, value.shape)) if hasattr(value, "shape") else str(len(value))
        dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
        parts.append(f"{name or 'batch'} {sizes} {dtype}")
    return ", ".join(parts)


def _clip(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape[2:]))
