"""Axes against the layout, content on its way, tokens and time."""

import numpy as np
import pytest
import torch
from torch import nn

from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.shapes import ALIKE, AXES, LARGEST, ROWS, TIME, TOKENS, WAY, Shapes
from reprokit.video.model import VideoTransformer, vit_tiny

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


def encoder(**changes):
    return vit_tiny(
        **{
            "img_size": 16,
            "patch_size": 8,
            "num_frames": 3,
            "tubelet_size": 1,
            "use_rope": True,
            "token_drop_rate": 0.0,
        }
        | {"width": 24, "depth": 1, "heads": 2}
        | changes
    )


def way(plain, step, batches=None, net=None, **fields):
    made = lambda: plain.harness(step, net or encoder(), **fields)
    batches = [{"clip": plain.clips(i, (2, 3, 3, 16, 16))} for i in range(2)] if batches is None else batches
    return plain.rows(Shapes(), plain.subject(made, batches))


exchanged = lambda net, batch: net((batch["clip"].float() / 255).transpose(1, 2)).square().mean()


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda clip: clip.transpose(1, 2), PASSED),
        (lambda clip: clip.transpose(1, 2).flip(1), PASSED),  # channels the other way round: BGR
        (lambda clip: (clip - clip.mean(dim=(1, 2, 3, 4), keepdim=True)).transpose(1, 2), PASSED),  # by clip
        (lambda clip: clip.transpose(1, 2).flip(-1), PASSED),  # an augmentation on the way
        (lambda clip: clip, FAILED),
        (lambda clip: clip.reshape(2, 3, 3, 16, 16), FAILED),
        (lambda clip: clip.transpose(1, 2).flip(2), FAILED),  # time runs backwards
        (lambda clip: clip.transpose(1, 2).roll(1, 2), FAILED),
        (lambda clip: clip.permute(0, 2, 3, 1, 4).reshape(2, 3, 3, 16, 16), FAILED),  # time among rows
        (lambda clip: torch.zeros_like(clip), FAILED),
    ],
)
def test_frames_arrive_whole_and_in_order(plain, change, verdict):
    step = lambda net, batch: net(change(batch["clip"].float() / 255)).square().mean()
    assert way(plain, step)[WAY].verdict is verdict


def bilinear(clip, grid):
    """Frames looked at through a grid [H, W, 2]."""
    grid = grid.expand(clip.shape[2] * len(clip), *grid.shape[-3:])
    frames = clip.transpose(1, 2).flatten(0, 1)
    seen = nn.functional.grid_sample(frames, grid, padding_mode="reflection", align_corners=False)
    return seen.unflatten(0, (len(clip), -1)).transpose(1, 2)


def tilted(clip, degrees):
    angle = torch.tensor(degrees * torch.pi / 180)
    cos, sin = angle.cos(), angle.sin()
    turn = torch.tensor([[[cos, -sin, 0], [sin, cos, 0]]])
    return bilinear(clip, nn.functional.affine_grid(turn, (1, 3, *clip.shape[-2:]), align_corners=False))


def resized(clip, size):
    """With its frames cut out of it first."""
    return nn.functional.interpolate(clip[..., 3:14, 5:15], (clip.shape[2], size, size), mode="trilinear")


def erased(clip):
    clip = clip.clone()
    clip[..., 4:11, 3:9] = torch.rand(3, 3, 7, 6)
    return clip


def quarter_turns(clip):
    """As augmentations draw them, a clip at a time."""
    return torch.stack([torch.rot90(one, int(torch.randint(4, ())), (-2, -1)) for one in clip])


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda clip: clip, PASSED),
        (lambda clip: clip.flip(-1), PASSED),
        (lambda clip: clip.flip(-2).flip(1), PASSED),
        (lambda clip: resized(clip, 16), PASSED),
        (lambda clip: tilted(clip, 15.0), PASSED),
        (lambda clip: tilted(clip, -20.0).flip(-1), PASSED),
        (lambda clip: erased(clip), PASSED),
        (lambda clip: erased(clip.mT), FAILED),
        (lambda clip: clip + 0.02 * torch.randn(clip.shape), PASSED),
        (lambda clip: clip * (0.5 + torch.rand(len(clip), 3, 1, 1, 1)), PASSED),
        (lambda clip: clip.mean(1, keepdim=True).expand(clip.shape), PASSED),  # grey
        (quarter_turns, PASSED),
        (lambda clip: clip.mT, FAILED),
        (lambda clip: clip.mT.flip(-1), FAILED),  # a quarter turn, always
        (lambda clip: resized(clip.mT, 16), FAILED),
        (lambda clip: tilted(clip.mT, 15.0), FAILED),
        (lambda clip: torch.cat([clip[:1], clip[1:].mT]), FAILED),  # of one sample alone
        (lambda clip: clip.mean(-2, keepdim=True).expand(clip.shape), UNASKED),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_rows_of_square_frames_arrive_as_rows(plain, change, verdict, seed):
    step = lambda net, batch: net(change((batch["clip"].float() / 255).transpose(1, 2)).contiguous()).square().mean()
    made = lambda: plain.harness(step, encoder())
    batches = [{"clip": plain.clips(i, (2, 3, 3, 16, 16))} for i in range(2)]
    found = plain.rows(Shapes(), plain.subject(made, batches, seed=seed))
    assert (found[WAY].verdict, found[ROWS].verdict) == (PASSED, verdict)


@pytest.mark.parametrize(
    ("layout", "verdict"),
    [("b t c h w", FAILED), ("b t c w h", PASSED), ("b t c y x", UNASKED), ("b t c clip.h clip.w", FAILED)],
)
def test_which_axis_is_the_height_is_what_the_layout_says(plain, layout, verdict):
    step = lambda net, batch: net((batch["clip"].float() / 255).transpose(1, 2).mT.contiguous()).square().mean()
    found = way(plain, step, layout={"clip": layout})
    assert (found[WAY].verdict, found[ROWS].verdict) == (PASSED, verdict)


def test_frames_that_go_astray_are_not_asked_for_their_rows(plain):
    found = way(plain, lambda net, batch: net(batch["clip"].float() / 255).square().mean())
    assert (found[WAY].verdict, found[ROWS].verdict) == (FAILED, UNASKED)


@pytest.mark.parametrize(("order", "verdict"), [((0, 2, 1, 3, 4), PASSED), ((0, 1, 2, 3, 4), FAILED)])
def test_a_convolution_over_time_is_asked_too(plain, order, verdict):
    step = lambda net, batch: net((batch["clip"].float() / 255).permute(order)).square().mean()
    found = way(plain, step, net=nn.Sequential(nn.Conv3d(3, 2, 3), nn.GELU(), nn.Conv3d(2, 2, 1)))
    assert (found[WAY].verdict, found[TOKENS].verdict) == (verdict, UNASKED)


def test_what_takes_clips_in_an_order_that_nobody_knows_is_not_asked(plain):
    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 2, 3), nn.Conv3d(2, 2, 1)

        def forward(self, clip):
            return self.second(self.first(clip.flatten(0, 1)).unflatten(0, clip.shape[:2]).transpose(1, 2))

    step = lambda net, batch: net(batch["clip"].float() / 255).square().mean()
    assert way(plain, step, net=Late())[WAY].verdict is UNASKED


def test_frames_that_are_exchanged_behind_the_first_are_caught(plain):
    step = lambda net, batch: net((batch["clip"][:, [0, 2, 1]].float() / 255).transpose(1, 2)).square().mean()
    assert way(plain, step)[WAY].verdict is FAILED


@pytest.mark.parametrize(
    ("kept", "verdict"), [([0, 2, 4], PASSED), ([4, 2, 0], FAILED), ([1, 3], PASSED), ([3, 1], FAILED), ([2], PASSED)]
)
def test_a_step_that_takes_some_of_the_frames_takes_them_in_order(plain, kept, verdict):
    batches = [{"clip": plain.clips(i, (2, 5, 3, 16, 16))} for i in range(2)]
    step = lambda net, batch: net((batch["clip"][:, kept].float() / 255).transpose(1, 2)).square().mean()
    assert way(plain, step, batches, encoder(num_frames=len(kept)))[WAY].verdict is verdict


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (1, 0, 2, 3, 4, 5)])  # views of a sample together, or not
def test_one_view_of_many_that_runs_backwards_is_caught(plain, order):
    batches = [{"clip": plain.clips(i, (16, 4, 3, 3, 16, 16))} for i in range(2)]

    def step(net, batch):
        clip = torch.cat([batch["clip"][:, :3], batch["clip"][:, 3:].flip(2)], 1)
        clip = (clip.float() / 255).permute(order).flatten(0, 1)
        return net(clip.transpose(1, 2)).square().mean()

    assert way(plain, step, batches, layout={"clip": "b v t c h w"})[WAY].verdict is FAILED


def test_a_loader_with_channels_last_that_is_only_reshaped_is_caught(plain):
    batches = [{"clip": plain.clips(0, (2, 3, 16, 16, 3))}]
    good = lambda net, batch: net((batch["clip"].float() / 255).permute(0, 4, 1, 2, 3)).mean()
    bad = lambda net, batch: net((batch["clip"].float() / 255).reshape(2, 3, 3, 16, 16)).mean()
    for step, verdict in (good, PASSED), (bad, FAILED):
        assert way(plain, step, batches, layout={"clip": "b t h w c"})[WAY].verdict is verdict


def test_a_step_that_raises_in_the_encoder_still_shows_what_it_was_given(plain):
    batches = [{"clip": plain.clips(0, (2, 2, 3, 16, 16))}]
    step = lambda net, batch: net(batch["clip"].float()).mean()
    found = way(plain, step, batches, encoder(num_frames=2))
    assert found[WAY].verdict is FAILED
    assert {one.verdict for check, one in found.items() if check.startswith(TOKENS)} <= {UNASKED, FAILED, PASSED}


def test_a_frame_that_the_step_leaves_out_may_move_the_others(plain):
    step = lambda net, batch: net((batch["clip"][:, 1:].float() / 255).transpose(1, 2)).mean()
    assert way(plain, step, net=encoder(num_frames=2))[WAY].verdict is PASSED


@pytest.mark.parametrize(("size", "tokens"), [(224, 158), (96, 30)])
def test_token_counts_of_the_usual_sizes(plain, size, tokens):
    net = encoder(img_size=size, patch_size=16, num_frames=16, token_drop_rate=0.95, width=12, heads=1)
    net.blocks = nn.ModuleList()  # what is counted does not depend on depth, and all tokens in eval mode cost gigabytes
    found = way(plain, exchanged, [{"clip": plain.clips(0, (1, 16, 3, size, size))}], net)
    (training,) = (one for check, one in found.items() if "in training" in check)
    assert (training.verdict, training.observed) == (PASSED, str(tokens))
    (whole,) = (one for check, one in found.items() if "in eval" in check)
    assert (whole.verdict, whole.observed) == (PASSED, str(1 + 16 * (size // 16) ** 2))


class Eager(VideoTransformer):
    """Drops in eval mode, too."""

    def _kept(self, patches, positions):
        return patches[:, :5], positions[:, :5]


def test_dropping_in_eval_mode_is_caught(plain):
    net = encoder()
    net.__class__ = Eager
    found = way(plain, exchanged, net=net)
    asked = {check.split()[-1]: one.verdict for check, one in found.items() if check.startswith(TOKENS)}
    assert asked == {"training": FAILED, "mode": FAILED}


def test_an_encoder_that_is_built_for_larger_clips_is_caught(plain):
    assert way(plain, exchanged, net=encoder(img_size=32))[LARGEST].verdict is FAILED
    assert way(plain, exchanged)[LARGEST].verdict is PASSED


class Pair(VideoTransformer):
    def forward(self, clip):
        return super().forward(clip), {"aux": 1}


class Pooled(VideoTransformer):
    def forward(self, clip):
        return super().forward(clip).mean(1)


def test_an_encoder_that_returns_a_tuple_is_asked_for_its_tokens(plain):
    net = encoder()
    net.__class__ = Pair
    step = lambda net, batch: net((batch["clip"].float() / 255).transpose(1, 2))[0].mean()
    assert all(one.verdict is PASSED for check, one in way(plain, step, net=net).items() if check.startswith(TOKENS))


def test_one_without_tokens_cannot_be_asked(plain):
    net = encoder()
    net.__class__ = Pooled
    found = [one for check, one in way(plain, exchanged, net=net).items() if check.startswith(TOKENS)]
    assert {one.verdict for one in found} == {UNASKED}
    assert all("without tokens" in one.observed for one in found)


def test_a_harness_of_another_kind_is_asked_what_it_can_be(plain):
    found = plain.rows(Shapes(), plain.subject())
    assert found[AXES].verdict is found[ALIKE].verdict is PASSED
    assert all(found[check].verdict is UNASKED for check in (WAY, ROWS, TOKENS, LARGEST, TIME))
    assert "patch_size" in found[WAY].observed


def test_no_loader_no_answers(plain):
    found = plain.rows(Shapes(), plain.subject(lambda: plain.harness(exchanged, encoder()), []))
    assert {one.verdict for one in found.values()} == {UNASKED}
    assert all("no loader" in one.observed for one in found.values())


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ({"clip": torch.zeros(2, 3, 3, 16)}, "axes"),
        ({"other": 1}, "no entry 'clip'"),
        ({"clip": torch.zeros(0, 3, 3, 16, 16)}, "0 long"),
    ],
)
def test_a_batch_that_the_layout_does_not_fit(plain, batch, says):
    found = way(plain, exchanged, [batch])[AXES]
    assert found.verdict is FAILED
    assert says in found.observed


def test_a_last_smaller_batch_is_named_with_its_lap(plain):
    batches = [{"clip": plain.clips(i, (2 - i, 3, 3, 16, 16))} for i in range(2)]
    found = way(plain, exchanged, batches)[ALIKE]
    assert (found.verdict, found.lap) == (FAILED, 2)


LAYOUT = {"a_times": "b t", "b_times": "b v t"}


def told(plain, a, b, layout=LAYOUT, times=()):
    batch = {"a_times": a, "b_times": b}
    made = lambda: plain.harness(layout=layout)
    return plain.rows(Shapes(), plain.subject(made, [batch], times=times))[TIME]


def test_indices_in_a_batch_are_compared_view_by_view(plain):
    a = torch.arange(3).expand(2, 3)
    b = torch.arange(3).expand(2, 4, 3).clone()
    assert told(plain, a, b).verdict is PASSED
    assert told(plain, a.numpy(), b.numpy().astype(np.int32)).verdict is PASSED
    b[1, 2] += 1
    found = told(plain, a, b)
    assert found.verdict is FAILED
    assert "sample 1" in found.observed and "b_times view 2 1 2 3" in found.observed


def test_fewer_frames_in_some_views_are_caught_and_private_frames_left_alone(plain):
    a, b = torch.arange(3).expand(2, 3), torch.arange(2).expand(2, 4, 2)
    assert told(plain, a, b).verdict is FAILED
    private = told(plain, a, b, {"a_times": "b t", "b_times": "b v b_times.t"})
    assert (private.verdict, "one view" in private.observed) == (UNASKED, True)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"a": [[0, 1, 2]] * 2, "b": [[[0, 1, 2]]] * 2}, ""),
        ({"a": [[0, 1]] * 2, "b": [[[0, 1]]] * 2}, "a is told [2, 2] of them, and has [2, 3] frames (b t)"),
        ({"a": [[0, 1, 2]] * 2, "b": [[0, 1, 2]] * 2}, "b is told [2, 3] of them, and has [2, 1, 3] frames (b v t)"),
        ({"a": [[0, 1, 2]] * 2, "b": "all"}, "b: "),
    ],
)
def test_indices_that_are_not_of_the_frames_that_came_are_no_pass(plain, told, says):
    batch = {"a": torch.zeros(2, 3, 4), "b": torch.zeros(2, 1, 3, 4)}
    made = lambda: plain.harness(layout={"a": "b t d", "b": "b v t d"})
    found = plain.rows(Shapes(), plain.subject(made, [batch], times=[told]))[TIME]
    assert found.verdict is (FAILED if says else PASSED)
    assert says in found.observed


def test_views_that_only_stand_in_each_others_way_are_no_pass(plain):
    found = plain.rows(Shapes(), plain.subject(lambda: plain.harness(layout={"x": "b d"}), [{"x": torch.ones(2, 3)}]))
    assert "no entry has an axis of frames" in found[TIME].observed
