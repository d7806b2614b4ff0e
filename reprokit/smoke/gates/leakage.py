"""Can an encoder that must not see the future see it? Asked of its tokens, on noise, in eval mode.

Only the last frames of a clip are changed. What was said about the frames before them must stay: below 1e-5, for sums
may be taken in another order. That alone would pass an encoder that says the same of every clip, one that sees a frame
at a time, or one whose patches see nobody, so it is also asked that the changed part does change, that later frames
know of earlier ones, and that patches of a frame know of each other. [CLS] sees all and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from reprokit.harness import Harness
from reprokit.smoke.bench import eager
from reprokit.smoke.clips import CLIP, Trials, tokens_in
from reprokit.smoke.encoders import encoders, no_encoder, read
from reprokit.smoke.gate import Finding, Gate, Subject
from reprokit.smoke.gates.shapes import patches_of

TOLERANCE = 1e-5
PAST, CHANGED = "no patch sees a later frame", "changed frames change their own tokens"
FORWARD, WITHIN = "patches see earlier frames", "patches of a frame see each other"
CHECKS = (PAST, CHANGED, FORWARD, WITHIN)
CHANNELS = 3  # where no batch tells


class Leakage(Gate):
    """Costs one forward pass of the step, and five or six of each encoder, with one clip each."""

    name = "leakage"

    def look(self, subject: Subject) -> Iterator[Finding]:
        harness = subject.harness()
        found = encoders(harness)
        if not found:
            yield from (self.not_applicable(check, no_encoder(harness)) for check in CHECKS)
            return
        shapes = _shapes(harness, subject)
        for name, encoder in found.items():
            if (said := sees_all(encoder)) is not None:
                why = f"{name} says that it is not causal ({said})"
            elif name not in shapes:
                why = f"no clip of whole patches is known for {name}"
            elif shapes[name][2] // encoder.tubelet_size < 2:
                why = f"a clip of {name} is one tubelet long"
            else:
                why, of = "", f" ({name})" if len(found) > 1 else ""
                for one in self._asked(name, encoder, shapes[name], subject.seed):
                    yield replace(one, check=one.check + of)
            yield from (self.not_applicable(f"{check} ({name})", why) for check in CHECKS if why)

    def _asked(self, name: str, encoder: Any, shape: tuple[int, ...], seed: int) -> Iterator[Finding]:
        training = {module: module.training for module in encoder.modules()}
        encoder.eval()
        try:
            clips = _Clips(encoder, shape, seed)
            if clips.problem:
                yield self.failed(PAST, _EXPECTED[PAST], clips.problem, "an encoder must say something of noise, too")
            if why := clips.problem or clips.cannot:
                checks = CHECKS[1:] if clips.problem else CHECKS
                yield from (self.not_applicable(check, why) for check in checks)
                return
            for check, asked in zip(CHECKS, (clips.past, clips.changed, clips.forward, clips.within)):
                yield self._judged(check, name, asked())
        finally:
            for module, was in training.items():
                module.training = was

    def _judged(self, check: str, name: str, answer: _Answer) -> Finding:
        if answer.cannot:
            return self.not_applicable(check, answer.cannot)
        observed = f"{answer.difference:.1e} {answer.where} ({name})"
        if answer.holds:
            return self.passed(check, _EXPECTED[check], observed, difference=answer.difference)
        return self.failed(check, _EXPECTED[check], observed, _ADVICE[check], difference=answer.difference)


_EXPECTED = {
    PAST: f"earlier tokens move by less than {TOLERANCE:g}",
    CHANGED: f"each frame moves by more than {TOLERANCE:g}",
    FORWARD: f"later tokens move by more than {TOLERANCE:g}",
    WITHIN: f"another patch of it moves by more than {TOLERANCE:g}",
}
_MASK = "look at the attention mask: a patch sees frames up to its own, never later ones and not [CLS]"
_ADVICE = {
    PAST: f"{_MASK}; an encoder that is meant to see all says so (attn_mode='full')",
    CHANGED: "the encoder says the same whatever it sees: look at its input and its last norm",
    FORWARD: f"nothing is passed on from frame to frame; {_MASK}",
    WITHIN: f"patches see only themselves in their frame; {_MASK}",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Answer:
    holds: bool = False
    difference: float = float("nan")
    where: str = ""
    cannot: str = ""


class _Clips:
    """Clips of noise that differ in some places, and the tokens that they give: [time, patches of a frame, width]."""

    def __init__(self, encoder: Any, shape: tuple[int, ...], seed: int) -> None:
        self._encoder, self._tubelet, self._patch = encoder, encoder.tubelet_size, encoder.patch_size
        self._count = patches_of(encoder, (1, *shape[1:]))
        self._times = shape[2] // self._tubelet
        generator, size = Generator().manual_seed(seed), (1, *shape[1:])
        like = next(encoder.parameters(), torch.empty(0))
        self._clip, self._other = (torch.randn(size, generator=generator).to(like.device, like.dtype) for _ in range(2))
        self.cannot, self._seen = "", dict[int, Tensor]()
        self._base, self.problem = self._tokens(self._clip)
        # the last tubelet, the second half, and all but the first: a mask of chunks leaks in each chunk, the first too
        self._cuts = sorted({self._times - 1, self._times // 2, 1} - {0})

    def past(self) -> _Answer:
        """The largest change before each cut."""
        worst = _Answer(holds=True, difference=0.0, where="at most")
        for cut in self._cuts:
            before = self._after(cut)[:cut]
            largest = _largest(before)
            if not largest < TOLERANCE:  # NaN, too
                frame = int(before.amax(1).nan_to_num(float("inf")).argmax())
                where = f"in tubelet {frame}, when those from {cut} on change"
                return _Answer(holds=False, difference=largest, where=where)
            worst = _Answer(holds=True, difference=max(worst.difference, largest), where="at most")
        return worst

    def changed(self) -> _Answer:
        """The smallest change of a frame from each cut on: of a frame its most changed token."""
        return _at_least(torch.cat([self._after(cut)[cut:].amax(1) for cut in self._cuts]), "at least")

    def forward(self) -> _Answer:
        """Of the frames after the first, when that one changes."""
        clip = self._clip.clone()
        clip[:, :, : self._tubelet] = self._other[:, :, : self._tubelet]
        return _at_least(self._moved(clip)[1:].amax(1), "at least")

    def within(self) -> _Answer:
        """Of the first frame's other patches, when its first one changes."""
        if self._base.shape[1] < 2:
            return _Answer(cannot="a frame is one patch")
        clip, last = self._clip.clone(), self._tubelet
        clip[:, :, :last, : self._patch, : self._patch] = self._other[:, :, :last, : self._patch, : self._patch]
        return _at_least(self._moved(clip)[0, 1:].amax()[None], "at most")

    def _after(self, cut: int) -> Tensor:
        """How far tokens moved when all tubelets from there on changed; asked once, and looked at from both sides."""
        if cut not in self._seen:
            clip, start = self._clip.clone(), cut * self._tubelet
            clip[:, :, start:] = self._other[:, :, start:]
            self._seen[cut] = self._moved(clip)
        return self._seen[cut]

    def _moved(self, clip: Tensor) -> Tensor:
        """How far each patch token moved: [time, patches]."""
        tokens, problem = self._tokens(clip)
        if problem:
            return torch.full(self._base.shape[:2], float("nan"))
        return (tokens - self._base).abs().amax(-1)

    def _tokens(self, clip: Tensor) -> tuple[Tensor, str]:
        with torch.no_grad(), eager():
            output = self._encoder(clip)
        found = tokens_in(output)
        if found is None:
            self.cannot = f"the encoder gives a {type(output).__name__} without tokens [B, 1 + N, D]"
            return torch.empty(0), ""
        if self._count is None or found.shape[1] != 1 + self._count:
            return torch.empty(0), f"{found.shape[1]} tokens in eval mode instead of 1 + {self._count}: see shapes"
        patches = found[0, 1:].detach().cpu().float()
        if not patches.isfinite().all():
            return torch.empty(0), "tokens that are not finite, of a clip of noise"
        return patches.unflatten(0, (self._times, -1)), ""


def sees_all(encoder: Any) -> str | None:
    """What an encoder says of itself where it sees all frames; None where it does not say that."""
    for name in ("block_causal", "causal", "is_causal"):
        if read(encoder, name) is False:
            return f"{name}=False"
    mode = read(encoder, "attn_mode")
    return f"attn_mode={mode!r}" if isinstance(mode, str) and "causal" not in mode else None


def _shapes(harness: Harness, subject: Subject) -> dict[str, tuple[int, ...]]:
    """Of the longest clip that each encoder gets; without batches, of the one that it was built for."""
    found: dict[str, tuple[int, ...]] = {}
    received = Trials(harness, subject.seed).forward(subject.batches[0]).received if subject.batches else []
    for call in received:
        encoder = encoders(harness)[call.module]
        if len(call.shape) == CLIP and patches_of(encoder, call.shape) is not None:
            found[call.module] = max(found.get(call.module, call.shape), call.shape, key=lambda shape: shape[2:])
    for name, encoder in encoders(harness).items():
        frames = read(encoder, "num_frames", 0)
        if name in found or not isinstance(frames, int) or frames < encoder.tubelet_size:
            continue
        side = round((encoder.num_patches / (frames // encoder.tubelet_size)) ** 0.5) * encoder.patch_size
        shape = (1, CHANNELS, frames, side, side)
        if patches_of(encoder, shape) == encoder.num_patches:
            found[name] = shape
    return found


def _largest(values: Tensor) -> float:
    return float(values.amax()) if values.numel() else float("nan")


def _at_least(values: Tensor, where: str) -> _Answer:
    smallest = float(values.amin()) if values.numel() else float("nan")
    return _Answer(holds=smallest > TOLERANCE, difference=smallest, where=where)
