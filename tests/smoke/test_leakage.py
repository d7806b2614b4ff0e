"""An encoder that must not see the future, and those that would pass for a wrong reason."""

import pytest
import torch
from torch import nn

from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.leakage import CHANGED, CHECKS, FORWARD, PAST, WITHIN, Leakage
from reprokit.video.model import VideoTransformer, vit_tiny

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


def encoder(kind=VideoTransformer, **changes):
    torch.manual_seed(0)
    made = vit_tiny(
        **{
            "img_size": 16,
            "patch_size": 8,
            "num_frames": 4,
            "tubelet_size": 1,
            "use_rope": True,
            "token_drop_rate": 0.0,
        }
        | {"width": 24, "depth": 2, "heads": 2}
        | changes
    )
    made.__class__ = kind
    return made


def asked(plain, net, frames=4, batches=None):
    step = lambda net, batch: _first(net((batch["clip"].float() / 255).transpose(1, 2))).square().mean()
    batches = [{"clip": plain.clips(0, (2, frames, 3, 16, 16))}] if batches is None else batches
    return plain.rows(Leakage(), plain.subject(lambda: plain.harness(step, net), batches))


def _first(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("changes", [{}, {"use_rope": False}, {"tubelet_size": 2}, {"token_drop_rate": 0.95}])
def test_a_causal_encoder_passes(plain, changes):
    found = asked(plain, encoder(**changes))
    assert [found[check].verdict for check in CHECKS] == [PASSED] * 4
    assert found[PAST].measured["difference"] < 1e-5 < found[CHANGED].measured["difference"]


class Full(VideoTransformer):
    """Sees all, and does not say so: its mask is lost."""

    def forward(self, clip):
        self.block_causal = False
        try:
            return super().forward(clip)
        finally:
            self.block_causal = True


class Chunks(VideoTransformer):
    """Sees the frame after its own within pairs: of 5 frames, neither the last nor the second half shows that."""

    def forward(self, clip):
        tokens = super().forward(clip)
        patches = tokens[:, 1:].unflatten(1, (clip.shape[2], -1)).clone()
        for first in range(0, clip.shape[2] - 1, 2):
            patches[:, first] = patches[:, first] + 0.1 * patches[:, first + 1]
        return torch.cat([tokens[:, :1], patches.flatten(1, 2)], dim=1)


def test_a_leak_within_chunks_is_seen_whatever_the_number_of_frames(plain):
    for frames in (4, 5):
        found = asked(plain, encoder(Chunks, num_frames=frames), frames=frames)
        assert found[PAST].verdict is FAILED


class Constant(VideoTransformer):
    def forward(self, clip):
        return super().forward(clip) * 0 + 1.0


class FrameByFrame(VideoTransformer):
    """Never looks back."""

    def forward(self, clip):
        frames = [super(FrameByFrame, self).forward(clip[:, :, [i]]) for i in range(clip.shape[2])]
        return torch.cat([frames[0][:, :1], *(tokens[:, 1:] for tokens in frames)], dim=1)


class Alone(VideoTransformer):
    """A patch sees its own place only, in this frame and those before."""

    def forward(self, clip):
        tokens = self.embed(self._patches(clip)[0]).unflatten(1, (clip.shape[2], -1)).cumsum(1).flatten(1, 2)
        return self.norm(torch.cat([tokens[:, :1], tokens], dim=1))


class Nan(VideoTransformer):
    def forward(self, clip):
        return super().forward(clip) * (float("nan") if not self.training else 1.0)


class NanLater(VideoTransformer):
    """Only what is said of other clips than the first is no number: a comparison with NaN must not pass."""

    def forward(self, clip):
        tokens = super().forward(clip)
        self.calls = getattr(self, "calls", 0) + (not self.training)
        return tokens * (float("nan") if self.calls > 1 else 1.0)


@pytest.mark.parametrize(
    ("kind", "check"),
    [(Full, PAST), (Constant, CHANGED), (FrameByFrame, FORWARD), (Alone, WITHIN), (Nan, PAST), (NanLater, PAST)],
)
def test_an_encoder_that_is_wrong_is_caught_by_the_check_that_is_there_for_it(plain, kind, check):
    found = asked(plain, encoder(kind))
    assert found[check].verdict is FAILED
    if kind in (Full, FrameByFrame, Alone):
        assert [one for one in CHECKS if found[one].verdict is FAILED] == [check]


def test_an_encoder_that_says_that_it_sees_all_is_not_asked(plain):
    found = asked(plain, encoder(attn_mode="full"))
    assert {one.verdict for one in found.values()} == {UNASKED}
    assert "says that it is not causal" in found[f"{PAST} (net)"].observed


def test_each_of_several_encoders_is_asked(plain):
    torch.manual_seed(0)
    modules = {"student": encoder(), "teacher": encoder(Full), "free": encoder(attn_mode="full")}
    step = lambda _, batch: sum(
        net((batch["clip"].float() / 255).transpose(1, 2)).square().mean() for net in modules.values()
    )
    batches = [{"clip": plain.clips(0, (2, 4, 3, 16, 16))}]
    found = plain.rows(Leakage(), plain.subject(lambda: plain.harness(step, modules=modules), batches))
    verdicts = [found[f"{PAST} ({name})"].verdict for name in modules]
    assert verdicts == [PASSED, FAILED, UNASKED]


def test_one_that_says_nothing_is_asked(plain):
    class Silent(nn.Module):
        patch_size, tubelet_size, num_patches = 8, 1, 16

        def __init__(self):
            super().__init__()
            self.inside = encoder(attn_mode="full")

        def forward(self, clip):
            return self.inside(clip)

    net = Silent()
    del net.inside.num_patches  # so that only the silent one counts as an encoder
    found = asked(plain, net)
    assert found[PAST].verdict is FAILED
    assert "attn_mode='full'" in found[PAST].advice


def test_without_batches_the_encoder_is_asked_with_the_clip_it_was_built_for(plain):
    assert {one.verdict for one in asked(plain, encoder(), batches=[]).values()} == {PASSED}
    assert asked(plain, encoder(Full), batches=[])[PAST].verdict is FAILED


def test_one_tubelet_has_no_future(plain):
    found = asked(plain, encoder(num_frames=1), frames=1)
    assert {one.verdict for one in found.values()} == {UNASKED}


class Tuple(VideoTransformer):
    def forward(self, clip):
        return super().forward(clip), None


class Pooled(VideoTransformer):
    def forward(self, clip):
        return (super().forward(clip).mean(1),)


def test_a_tuple_is_asked_for_its_tokens_and_one_without_is_not(plain):
    assert {one.verdict for one in asked(plain, encoder(Tuple)).values()} == {PASSED}
    assert {one.verdict for one in asked(plain, encoder(Pooled)).values()} == {UNASKED}


def test_a_harness_without_an_encoder_is_not_asked(plain):
    found = plain.rows(Leakage(), plain.subject())
    assert {one.verdict for one in found.values()} == {UNASKED}


def test_modes_are_as_before(plain):
    net = encoder()
    net.blocks[0].eval()
    asked(plain, net)
    assert net.training and not net.blocks[0].training
