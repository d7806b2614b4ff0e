"""Views of a window: crops, and the augmentations of the local ones. uint8 in, uint8 out.

One view is one draw: the same crop, factors and flip for all its frames, so that only the scene moves. Brightness,
contrast and saturation only ever blend towards black, the mean or grey. A blend cannot leave the range of a byte, so
nothing clips, and no bright sky turns into a flat white frame.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor
from torch.nn.functional import interpolate

GLOBAL_SCALE = (0.8, 1.0)  # side of the crop, as a part of the frame's shorter side
LOCAL_SCALE = (0.4, 0.8)
BLEND = (0.6, 1.0)  # how much of the picture stays in each jitter
JITTER, GRAYSCALE, FLIP = 0.8, 0.2, 0.5  # how often: the customary rates of joint-embedding training
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def global_view(frames: Tensor, size: int, generator: Generator) -> Tensor:
    """[T, C, H, W] to [T, C, size, size]."""
    return _crop(frames, size, GLOBAL_SCALE, generator)


def local_view(frames: Tensor, size: int, generator: Generator) -> Tensor:
    """A smaller crop, with colour jitter, grayscale and flip."""
    view = _crop(frames, size, LOCAL_SCALE, generator)
    factors = [_uniform(BLEND, generator) for _ in range(3)]
    jitter, grayscale, flip = (_chance(p, generator) for p in (JITTER, GRAYSCALE, FLIP))
    if jitter:
        view = _jitter(view, *factors)
    if grayscale:
        view = _to_uint8(_grey(view.float())).expand_as(view)
    return view.flip(-1) if flip else view


def _crop(frames: Tensor, size: int, scale: tuple[float, float], generator: Generator) -> Tensor:
    height, width = frames.shape[-2:]
    side = max(1, round(min(height, width) * _uniform(scale, generator)))
    top, left = (int(_uniform((0, length - side + 1), generator)) for length in (height, width))
    return interpolate(frames[..., top : top + side, left : left + side], (size, size), mode="bilinear", antialias=True)


def _jitter(view: Tensor, brightness: float, contrast: float, saturation: float) -> Tensor:
    colours = view.float() * brightness
    colours = colours.lerp(colours.mean(dim=(-3, -2, -1), keepdim=True), 1 - contrast)
    return _to_uint8(colours.lerp(_grey(colours).expand_as(colours), 1 - saturation))


def _grey(colours: Tensor) -> Tensor:
    return (colours * torch.tensor(LUMA)[:, None, None]).sum(dim=-3, keepdim=True)


def _to_uint8(colours: Tensor) -> Tensor:
    return colours.round().clamp(0, 255).to(torch.uint8)


def _uniform(bounds: tuple[float, float], generator: Generator) -> float:
    low, high = bounds
    return low + (high - low) * float(torch.rand((), generator=generator))


def _chance(p: float, generator: Generator) -> bool:
    return float(torch.rand((), generator=generator)) < p
