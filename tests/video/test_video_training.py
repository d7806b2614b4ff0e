import copy
import json

import pytest
import torch

from reprokit.harness import parameters
from reprokit.video.train import LAYOUT, _first_bad_step, build, default_config


def config(**changes):
    """The demo's, with dotted keys changed."""
    changed = default_config()
    for dotted, value in changes.items():
        section, key = dotted.split("__")
        changed[section][key] = value
    return changed


@pytest.fixture(scope="module")
def batches():
    """The demo's batches up to the first padded one, which is last."""
    return list(build(config(training__steps=6)).loader)


def gradients_after(harness, batch):
    losses = harness.step(batch)
    losses["loss"].backward()
    return losses, [p.grad for p in parameters(harness).values() if p.grad is not None]


def cut_down(batch, *, b, v, t):
    return {
        "global": batch["global"][b][:, t],
        "local": batch["local"][b][:, v][:, :, t],
        "source": [batch["source"][sample] for sample in b],
    }


def guilty(batch):
    black = (batch["global"] == 0).flatten(2).all(dim=2)
    (sample,) = black.any(dim=1).nonzero().flatten().tolist()
    return sample, black[sample].nonzero().flatten().tolist()


def test_the_config_is_plain_data_and_each_call_gives_a_new_one():
    assert json.loads(json.dumps(default_config())) == default_config()
    default_config()["model"]["depth"] = 99
    assert default_config()["model"]["depth"] == 4


def test_build_changes_no_config_and_gives_the_same_weights_each_time():
    ours = default_config()
    before = copy.deepcopy(ours)
    one, two = (parameters(build(ours)) for _ in range(2))
    assert ours == before and one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    other = parameters(build(config(training__seed=1)))
    assert not torch.equal(one["encoder.cls"], other["encoder.cls"])


def test_build_needs_no_video():
    harness = build(config(video__paths=["/no/such/video.mp4"]))
    assert set(harness.modules) == {"encoder", "projector"} and harness.layout == LAYOUT


def test_a_healthy_step_has_three_terms_and_finite_gradients(batches):
    losses, gradients = gradients_after(build(default_config()), batches[0])
    assert list(losses) == ["loss", "pred_loss", "sigreg_loss"]
    assert gradients and all(gradient.isfinite().all() for gradient in gradients)


def test_features_have_a_row_for_every_view(batches):
    assert build(default_config()).features(batches[0]).shape == (4, 5, 192)


def test_training_goes_nan_at_the_padded_window_and_not_before():
    assert _first_bad_step(default_config()) == 5


def test_without_padding_the_same_steps_stay_finite():
    assert _first_bad_step(config(video__pad_last=False)) is None


def test_imagenet_statistics_bear_the_padding():
    assert _first_bad_step(config(data__standardize="imagenet")) is None


def test_any_video_fails_once_some_steps_were_healthy(make_video):
    video = str(make_video(64))
    assert 3 <= _first_bad_step(config(video__paths=[video])) < 12
    assert _first_bad_step(config(video__paths=[video], video__pad_last=False)) is None


@pytest.mark.parametrize("use_rope", [True, False])
def test_one_black_frame_of_one_sample_and_one_view_is_the_whole_failure(batches, use_rope):
    """The smallest shape runs on healthy content, and fails on the guilty frame alone."""
    sample, frames = guilty(batches[-1])
    smallest = {"b": [sample], "v": [0], "t": [frames[0]]}
    healthy, gradients = gradients_after(build(config(model__use_rope=use_rope)), cut_down(batches[0], **smallest))
    assert healthy["loss"].isfinite() and all(gradient.isfinite().all() for gradient in gradients)
    failing = build(config(model__use_rope=use_rope)).step(cut_down(batches[-1], **smallest))
    assert all(term.isnan() for term in failing.values())


def test_nothing_else_of_the_failing_batch_is_to_blame(batches):
    sample, frames = guilty(batches[-1])
    views, times = list(range(4)), list(range(8))
    others = [b for b in range(4) if b != sample]
    for keep in ({"b": others, "v": views, "t": times}, {"b": list(range(4)), "v": views, "t": times[: frames[0]]}):
        assert build(default_config()).step(cut_down(batches[-1], **keep))["loss"].isfinite()


@pytest.mark.parametrize("changes", [{"model__token_drop_rate": 0.95}, {"model__depth": 1, "model__attn_mode": "full"}])
def test_sizes_are_config_values(batches, changes):
    losses, gradients = gradients_after(build(config(**changes)), batches[0])
    assert losses["loss"].isfinite() and all(gradient.isfinite().all() for gradient in gradients)


def test_a_step_under_autocast(batches):
    harness = build(default_config())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert harness.step(batches[0])["loss"].isfinite()
