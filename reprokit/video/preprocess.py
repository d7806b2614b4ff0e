"""From bytes to what the encoder reads, in one of two customary ways.

`imagenet`: the statistics of a data set, one mean and deviation per channel. `frame`: each frame by its own mean and
deviation, which takes out exposure and fades. The latter has no epsilon, as in many pipelines: a black frame has no
deviation, and 0/0 is NaN.
"""

from __future__ import annotations

import torch
from torch import Tensor

from reprokit.errors import BadInput

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's training set, RGB in [0, 1]


def standardize(clip: Tensor, how: str) -> Tensor:
    """uint8 [..., C, H, W] to float, by `imagenet` or by `frame`."""
    if how == "imagenet":
        return to_float_normalized(clip)
    if how == "frame":
        return frame_standardized(clip)
    raise BadInput(f"data.standardize: {how!r} is unknown; use 'imagenet' or 'frame'")


def to_float_normalized(clip: Tensor) -> Tensor:
    """uint8 [..., C, H, W] to float: by 255, then ImageNet's statistics, once."""
    mean, deviation = (torch.tensor(values, device=clip.device)[:, None, None] for values in (MEAN, DEVIATION))
    return (_unit(clip) - mean) / deviation


def frame_standardized(clip: Tensor) -> Tensor:
    """uint8 [..., C, H, W] to float with mean 0 and deviation 1 in every frame."""
    frames = _unit(clip)
    deviation, mean = torch.std_mean(frames, dim=(-3, -2, -1), keepdim=True)
    return (frames - mean) / deviation


def _unit(clip: Tensor) -> Tensor:
    if clip.dtype != torch.uint8:
        raise BadInput(f"clip: {clip.dtype} instead of uint8 would be normalised twice; hand over the decoded bytes")
    return clip.float() / 255
