"""The reference model in small, and ways in which it could have been wired wrongly.

Each mutant trains without an exception: that is what makes it dangerous. `CAUGHT_BY` names the gate that must see it.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from einops import rearrange
from torch import Generator, Tensor

from reprokit.harness import Harness
from reprokit.smoke.gate import LAPS, Subject
from reprokit.smoke.laps import copied
from reprokit.video import model, train
from reprokit.video.loader import Loader, Views, Window
from reprokit.video.model import VideoTransformer
from reprokit.video.preprocess import DEVIATION, MEAN, to_float_normalized

HERE = "tests/smoke/mutants.py"


def small(seed: int = 0, *, drop: float = 0.0, frames: int = 4, **of_model: Any) -> dict[str, Any]:
    """A config whose step takes a few hundredths of a second, and in which nothing is wrong."""
    config = copy.deepcopy(train.default_config())
    config["video"] |= {"frames": frames, "windows": 8, "overhang": 1, "pad_last": False, "max_frames": 24}
    config["data"] |= {"views": 3, "global_size": 32, "local_size": 16, "seed": seed, "standardize": "imagenet"}
    config["model"] |= {"patch_size": 8, "width": 48, "depth": 2, "heads": 2, "projector_width": 32, "embedding": 16}
    config["model"] |= {"token_drop_rate": drop, **of_model}
    config["training"] |= {"seed": seed, "steps": 4}
    return config


def build(config: Mapping[str, Any]) -> Harness:
    """The healthy one, on clips that need no decoder."""
    harness = train.build(config)
    harness.loader = _of_noise(harness.loader, Clips)
    return harness


class Clips(Loader):
    """Smooth moving noise in the place of videos: no frame is flat, no two are equal."""

    def _windows(self, videos: dict[Path, Tensor]) -> Iterator[Window]:
        path = Path("noise.mp4")
        coarse = torch.rand(1, 3, 12, 6, 6, generator=Generator().manual_seed(self.seed))
        smooth = torch.nn.functional.interpolate(coarse, (24, 40, 40), mode="trilinear")[0]
        videos[path] = (smooth * 255).to(torch.uint8).transpose(0, 1).contiguous()
        while True:
            for first in range(0, 24 - self.frames, 2):
                yield Window(video=path, first=first, real=self.frames)


def _of_noise(loader: Any, kind: type[Loader]) -> Loader:
    return kind(**{name: getattr(loader, name) for name in Loader.__dataclass_fields__})


def axis_swapped(config: Mapping[str, Any]) -> Harness:
    """Nobody exchanged the axes; with three frames the sizes are right all the same."""
    return _stepping(build(config), rearrange=_rearranged(lambda clips: clips))


def reshaped(config: Mapping[str, Any]) -> Harness:
    """A reshape in the place of the exchange: right sizes, whatever their number."""
    reshape = lambda clips: clips.reshape(len(clips), clips.shape[2], clips.shape[1], *clips.shape[3:])
    return _stepping(build(config), rearrange=_rearranged(reshape))


def transposed(config: Mapping[str, Any]) -> Harness:
    """Height and width change places with time and channels; frames are square."""
    exchange = lambda clips: clips.permute(0, 2, 1, 4, 3).contiguous()
    return _stepping(build(config), rearrange=_rearranged(exchange))


def mask_off_by_one(config: Mapping[str, Any]) -> Harness:
    return _become(build(config), _OffByOne)


def cls_visible(config: Mapping[str, Any]) -> Harness:
    return _become(build(config), _ClsVisible)


def normalised_twice(config: Mapping[str, Any]) -> Harness:
    return _stepping(build(config), standardize=lambda clip, how: _normalised(to_float_normalized(clip)))


def floats_normalised_twice(config: Mapping[str, Any]) -> Harness:
    """In the loader once, and once more before the encoder."""
    return _of_floats(build(config), _normalised)


def floats(config: Mapping[str, Any]) -> Harness:
    """Healthy: the loader normalises, and the step does not."""
    return _of_floats(build(config), lambda clip: clip)


def frozen_projector(config: Mapping[str, Any]) -> Harness:
    harness = build(config)
    harness.modules["projector"].requires_grad_(False)
    return harness


def detached_loss(config: Mapping[str, Any]) -> Harness:
    return _losing(build(config), lambda terms: {name: term.detach() for name, term in terms.items()})


def detached_term(config: Mapping[str, Any]) -> Harness:
    """Its number is in the sum, and its gradient is not: the sum still reaches every module."""
    total = lambda terms: terms["pred_loss"].detach() + 0.02 * terms["sigreg_loss"]
    return _losing(build(config), lambda terms: {**terms, "loss": total(terms)})


def drop_ignored(config: Mapping[str, Any]) -> Harness:
    return _become(build(config), _Undropped)


def other_times(config: Mapping[str, Any]) -> Harness:
    """Local views show the frames after those of the global one."""
    harness = build(config)
    harness.loader = _of_noise(harness.loader, _Late)
    return harness


def dead_view(config: Mapping[str, Any]) -> Harness:
    harness = build(config)
    harness.loader = _of_noise(harness.loader, _Dead)
    return harness


def unseen_view(config: Mapping[str, Any]) -> Harness:
    """The loader gives it, and the step writes over it."""
    harness = build(config)
    whole = harness.step

    def step(batch: Mapping[str, Any]) -> Any:
        local = batch["local"].clone()
        local[:, 1] = local[:, 0]
        return whole({**batch, "local": local})

    harness.step = step
    return harness


def exploding_regulariser(config: Mapping[str, Any]) -> Harness:
    return _losing(build(config), lambda terms: {**terms, "loss": terms["pred_loss"] + 1e9 * terms["sigreg_loss"]})


def not_finite(config: Mapping[str, Any]) -> Harness:
    return _losing(build(config), lambda terms: {**terms, "loss": terms["loss"] * float("nan")})


def private_generator(config: Mapping[str, Any]) -> Harness:
    own = Generator().manual_seed(0)
    draw = lambda: 1 + torch.rand((), generator=own)
    return _losing(build(config), lambda terms: {**terms, "loss": terms["loss"] * draw()})


def hanging(config: Mapping[str, Any]) -> Harness:
    return _losing(build(config), lambda terms: threading.Event().wait())


CAUGHT_BY = {  # mutant -> the gate, and what of the config makes it silent
    axis_swapped: ("shapes", {"frames": 3}),
    reshaped: ("shapes", {}),
    transposed: ("shapes", {}),
    mask_off_by_one: ("leakage", {}),
    cls_visible: ("leakage", {}),
    normalised_twice: ("numbers", {}),
    floats_normalised_twice: ("numbers", {}),
    frozen_projector: ("gradients", {}),
    detached_loss: ("gradients", {}),
    detached_term: ("gradients", {}),
    drop_ignored: ("shapes", {"drop": 0.95}),
    other_times: ("shapes", {}),
    dead_view: ("numbers", {}),
    unseen_view: ("numbers", {}),
    exploding_regulariser: ("numbers", {}),
}


def subject(of: Callable[[Any], Harness] = build, config: Any = None, **changes: Any) -> Subject:
    """As the command opens it."""
    config = small() if config is None else config
    loader = of(copy.deepcopy(config)).loader
    pairs = list(loader.timed()) if hasattr(loader, "timed") else [(batch, None) for batch in loader or ()]
    pairs = pairs[:LAPS]
    name = f"{HERE}:{of.__name__}"
    made = Subject(
        build=of,
        config=config,
        entrypoint=name,
        batches=[copied(batch) for batch, _ in pairs],
        times=[times for _, times in pairs if times is not None],
        no_batches="" if pairs else "the harness has no loader",
    )
    return replace(made, **changes)


def _stepping(harness: Harness, **instead: Any) -> Harness:
    """The same with other functions in its step."""
    whole = harness.step

    def step(batch: Any) -> Any:
        with mock.patch.multiple(train, **instead):
            return whole(batch)

    harness.step = step
    return harness


def _rearranged(exchange: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    """einops' rearrange, which does something else where it should exchange time and channels."""

    def instead(tensor: Tensor, pattern: str, **sizes: int) -> Tensor:
        if "t c h w" not in pattern:
            return rearrange(tensor, pattern, **sizes)
        return exchange(tensor.flatten(0, tensor.ndim - 5))

    return instead


def _normalised(clip: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(values)[:, None, None] for values in (MEAN, DEVIATION))
    return (clip - mean) / deviation


def _of_floats(harness: Harness, change: Callable[[Tensor], Tensor]) -> Harness:
    """The loader normalises; the step does what is left."""
    views = ("global", "local")
    batches = [{**one, **{view: to_float_normalized(one[view]) for view in views}} for one in harness.loader or ()]
    harness.loader = batches
    return _stepping(harness, standardize=lambda clip, how: change(clip))


def _become(harness: Harness, kind: type[VideoTransformer]) -> Harness:
    harness.modules["encoder"].__class__ = kind
    return harness


def _losing(harness: Harness, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Harness:
    whole = harness.step
    harness.step = lambda batch: change(whole(batch))
    return harness


class _OffByOne(VideoTransformer):
    """A patch sees the next frame, too."""

    def forward(self, clip: Tensor) -> Tensor:
        real = model.block_causal_mask

        def mask(times: Tensor) -> Tensor:
            seen = real(times)
            seen[:, 0, 1:, 1:] = times[:, :, None] + 1 >= times[:, None, :]
            return seen

        with mock.patch.object(model, "block_causal_mask", mask):
            return super().forward(clip)


class _ClsVisible(VideoTransformer):
    def forward(self, clip: Tensor) -> Tensor:
        real = model.block_causal_mask

        def mask(times: Tensor) -> Tensor:
            seen = real(times)
            seen[..., 0] = True
            return seen

        with mock.patch.object(model, "block_causal_mask", mask):
            return super().forward(clip)


class _Undropped(VideoTransformer):
    def _kept(self, patches: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return patches, positions


class _Late(Clips):
    def _views(self, video: Tensor, window: Window, generator: Generator) -> Views:
        views, late = (super(_Late, self)._views(video, one, generator) for one in (window, _later(window)))
        return views._replace(local=late.local, local_times=late.local_times)


class _Dead(Clips):
    def _views(self, video: Tensor, window: Window, generator: Generator) -> Views:
        views = super()._views(video, window, generator)
        views.local[1] = 0
        return views


def _later(window: Window) -> Window:
    return replace(window, first=window.first + 1)
