import pytest
import torch

from reprokit.errors import BadInput
from reprokit.video.preprocess import frame_standardized, standardize, to_float_normalized


def clip():
    return torch.randint(256, (2, 4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_imagenet_statistics_by_hand():
    expected = torch.empty(2, 4, 3, 16, 16)
    for channel, (mean, deviation) in enumerate([(0.485, 0.229), (0.456, 0.224), (0.406, 0.225)]):
        expected[:, :, channel] = (clip()[:, :, channel] / 255 - mean) / deviation
    torch.testing.assert_close(to_float_normalized(clip()), expected)


@pytest.mark.parametrize("how", ["imagenet", "frame"])
def test_a_clip_is_not_normalised_twice(how):
    with pytest.raises(BadInput, match="normalised twice"):
        standardize(standardize(clip(), how), how)


def test_each_frame_has_mean_zero_and_deviation_one():
    frames = frame_standardized(clip()).flatten(2)
    torch.testing.assert_close(frames.mean(dim=2), torch.zeros(2, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(frames.std(dim=2), torch.ones(2, 4))


def test_a_black_frame_is_nan_by_frame_and_finite_by_imagenet():
    frames = clip()
    frames[1, 3] = 0
    bad = frame_standardized(frames).isnan().flatten(2)
    assert bad[1, 3].all() and bad.sum() == bad[1, 3].numel()
    assert to_float_normalized(frames).isfinite().all()


def test_an_unknown_way():
    with pytest.raises(BadInput, match=r"data\.standardize: 'video' is unknown"):
        standardize(clip(), "video")
