import pytest
import torch

from reprokit.errors import BadInput
from reprokit.video.model import block_causal_mask, vit_tiny


def encoder(img_size=32, *, num_frames=4, tubelet_size=1, use_rope=True, token_drop_rate=0.0, depth=2, **more):
    torch.manual_seed(0)
    return vit_tiny(
        img_size,
        num_frames=num_frames,
        tubelet_size=tubelet_size,
        use_rope=use_rope,
        token_drop_rate=token_drop_rate,
        depth=depth,
        **more,
    )


@pytest.mark.parametrize(("size", "patches", "kept"), [(224, 3136, 158), (96, 576, 30)])
def test_training_keeps_five_percent_of_the_patches(size, patches, kept):
    model = encoder(size, num_frames=16, token_drop_rate=0.95, depth=1)
    assert model.num_patches == patches
    assert model(torch.randn(2, 3, 16, size, size)).shape == (2, kept, 192)


def test_nothing_is_dropped_outside_training():
    model = encoder(96, num_frames=16, token_drop_rate=0.95, depth=1).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 16, 96, 96)).shape == (1, 577, 192)


def test_the_usual_size_is_192_wide_12_deep_with_3_heads():
    torch.manual_seed(0)
    model = vit_tiny(224, num_frames=16, tubelet_size=2, use_rope=True, token_drop_rate=0.95)
    assert (model.width, len(model.blocks), model.blocks[0].heads, model.patch_size) == (192, 12, 3, 16)
    assert 5_000_000 < sum(parameter.numel() for parameter in model.parameters()) < 6_500_000


@pytest.mark.parametrize("use_rope", [True, False])
@pytest.mark.parametrize(("frames", "height", "width"), [(1, 16, 16), (2, 32, 48), (4, 64, 32)])
def test_any_length_up_to_num_frames_and_any_size_in_whole_patches(use_rope, frames, height, width):
    tokens = encoder(use_rope=use_rope)(torch.randn(2, 3, frames, height, width))
    assert tokens.shape == (2, 1 + frames * height * width // 256, 192)


@pytest.mark.parametrize("use_rope", [True, False])
def test_later_frames_and_cls_do_not_reach_earlier_patches(use_rope):
    model = encoder(use_rope=use_rope)
    clip = torch.randn(1, 3, 4, 32, 32)
    changed = clip.clone()
    changed[:, :, 2:] = torch.randn(1, 3, 2, 32, 32)
    with torch.no_grad():
        before, after = model(clip), model(changed)
        model.cls.add_(1.0)
        other_cls = model(clip)
    earlier = slice(1, 1 + 2 * 4)
    torch.testing.assert_close(before[:, earlier], after[:, earlier])
    assert (before[:, earlier.stop :] - after[:, earlier.stop :]).abs().amax(dim=-1).min() > 1e-3
    torch.testing.assert_close(before[:, 1:], other_cls[:, 1:])
    assert not torch.allclose(before[:, 0], after[:, 0]) and not torch.allclose(before[:, 0], other_cls[:, 0])


def test_full_attention_sees_later_frames():
    model = encoder(attn_mode="full")
    clip = torch.randn(1, 3, 4, 32, 32)
    changed = clip.clone()
    changed[:, :, 3] += 1
    with torch.no_grad():
        assert not torch.allclose(model(clip)[:, 1:5], model(changed)[:, 1:5])


@pytest.mark.parametrize("use_rope", [True, False])
def test_order_in_time_and_place_matters(use_rope):
    """Also where the mask does not show it."""
    model = encoder(use_rope=use_rope, attn_mode="full")
    clip = torch.randn(1, 3, 4, 32, 32)
    places = clip.unflatten(-1, (2, 16)).flip(-2).flatten(-2)  # the left patches swapped with the right ones
    with torch.no_grad():
        cls, reversed_cls, swapped_cls = (model(one)[:, 0] for one in (clip, clip.flip(2), places))
    assert (cls - reversed_cls).abs().max() > 1e-4 and (cls - swapped_cls).abs().max() > 1e-4


def test_the_mask_by_hand():
    seen = block_causal_mask(torch.tensor([[0, 0, 1]]))[0, 0].int().tolist()
    assert seen == [[1, 1, 1, 1], [0, 1, 1, 0], [0, 1, 1, 0], [0, 1, 1, 1]]


def test_a_dropped_token_takes_its_time_along():
    """With dropping, each clip has a mask of its own: the kept patches still see no later frame."""
    model = encoder(token_drop_rate=0.5)
    clip = torch.randn(2, 3, 4, 32, 32)
    changed = clip.clone()
    changed[:, :, 3] = 0
    outputs = []
    for batch in (clip, changed):
        torch.manual_seed(5)
        with torch.no_grad():
            outputs.append(model(batch))
    same = (outputs[0] - outputs[1]).abs().amax(dim=-1) < 1e-6
    assert not same[:, 0].any() and (same[:, 1:].sum(dim=1) >= 4).all()


def test_tubelets_join_frames():
    model = encoder(tubelet_size=2)
    assert model(torch.randn(1, 3, 4, 32, 32)).shape == (1, 9, 192)
    with pytest.raises(BadInput, match="3 frames, the encoder takes up to 4, in steps of 2"):
        model(torch.randn(1, 3, 3, 32, 32))


def test_clips_that_do_not_fit():
    with pytest.raises(BadInput, match=r"5 frames, the encoder takes up to 4"):
        encoder()(torch.randn(1, 3, 5, 32, 32))
    with pytest.raises(BadInput, match=r"40x32 pixels, no whole patches of 16"):
        encoder()(torch.randn(1, 3, 4, 40, 32))


def test_sizes_that_cannot_be():
    with pytest.raises(BadInput, match=r"model\.attn_mode: 'causal' is unknown"):
        encoder(attn_mode="causal")
    with pytest.raises(BadInput, match=r"model\.width: 50"):
        encoder(width=50)
