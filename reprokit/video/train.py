"""Training the reference model: what `reprokit demo`, the gates and the tests run.

A user's module looks like this one: `build` makes everything from plain data and hands over a harness. Building seeds
torch, reads no video and needs no network, so a replay can do it anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from reprokit.harness import Harness, parameters
from reprokit.video.loader import Loader
from reprokit.video.losses import losses
from reprokit.video.model import vit_tiny
from reprokit.video.preprocess import standardize

LAYOUT = {"global": "b t c h w", "local": "b v t c h w", "source": "b"}


def default_config() -> dict[str, Any]:
    """The demo: real clips, padded windows and per-frame standardisation, which do not go together."""
    return {
        "video": {
            "paths": [],  # none: the sample clips
            "frames": 8,
            "windows": 24,  # of one video
            "overhang": 2,  # frames that its last window lacks
            "pad_last": True,  # False drops that window
            "max_frames": 1000,
            "short_side": 80,
        },
        "data": {
            "batch_size": 4,
            "views": 4,
            "global_size": 64,
            "local_size": 32,
            "shuffle": 8,
            "seed": 0,
            "standardize": "frame",
        },
        "model": {
            "patch_size": 16,
            "tubelet_size": 1,  # a single frame is a clip
            "use_rope": True,
            "token_drop_rate": 0.0,  # 0.95 is usual, and would drop a guilty frame now and then
            "attn_mode": "block_causal",
            "width": 192,
            "depth": 4,
            "heads": 3,
            "projector_width": 256,
            "embedding": 64,
        },
        "optim": {"lr": 3e-4, "weight_decay": 0.05, "clip_grad_norm": 1.0},
        "training": {"steps": 12, "seed": 0, "device": "cpu"},
    }


def build(config: Mapping[str, Any]) -> Harness:
    """Everything that one training step needs, with the weights of the config's seed."""
    optim, how, device = config["optim"], config["data"]["standardize"], config["training"]["device"]
    torch.manual_seed(config["training"]["seed"])
    encoder, projector = _encoder(config).to(device), _projector(config["model"]).to(device)

    def features(batch: Mapping[str, Any]) -> Tensor:
        """[CLS] of every view, [B, 1 + V, width], the global view first."""
        whole = standardize(batch["global"].to(device), how)
        local = standardize(batch["local"].to(device), how)
        whole_cls = encoder(rearrange(whole, "b t c h w -> b c t h w"))[:, 0]
        local_cls = encoder(rearrange(local, "b v t c h w -> (b v) c t h w"))[:, 0]
        local_cls = rearrange(local_cls, "(b v) d -> b v d", b=len(local))
        return torch.cat([whole_cls[:, None], local_cls], dim=1)

    def step(batch: Mapping[str, Any]) -> dict[str, Tensor]:
        views = features(batch)
        embeddings = projector(rearrange(views, "b v d -> (b v) d"))
        return losses(rearrange(embeddings, "(b v) d -> b v d", b=len(views)))

    return Harness(
        modules={"encoder": encoder, "projector": projector},
        optimizer=torch.optim.AdamW(
            [*encoder.parameters(), *projector.parameters()], lr=optim["lr"], weight_decay=optim["weight_decay"]
        ),
        step=step,
        layout=LAYOUT,
        clip_grad_norm=optim["clip_grad_norm"],
        loader=_loader(config),
        features=features,
        knobs={"model.depth": [depth for depth in (1, 2, 4, 8) if depth < config["model"]["depth"]]},
    )


def _encoder(config: Mapping[str, Any]) -> nn.Module:
    model = {key: value for key, value in config["model"].items() if key not in ("projector_width", "embedding")}
    return vit_tiny(config["data"]["global_size"], num_frames=config["video"]["frames"], **model)


def _projector(model: Mapping[str, Any]) -> nn.Module:
    """BatchNorm sees the embeddings of all views of all samples: two are the fewest that it takes."""
    hidden = model["projector_width"]
    return nn.Sequential(
        nn.Linear(model["width"], hidden), nn.BatchNorm1d(hidden), nn.GELU(), nn.Linear(hidden, model["embedding"])
    )


def _loader(config: Mapping[str, Any]) -> Loader:
    data = {key: value for key, value in config["data"].items() if key != "standardize"}
    return Loader(steps=config["training"]["steps"], **config["video"], **data)


def _first_bad_step(config: Mapping[str, Any]) -> int | None:
    """The first step with a loss that is not finite, in a plain loop without reprokit; None where all are finite."""
    harness = build(config)
    (optimizer,) = harness.optimizers.values()
    for number, batch in enumerate(harness.loader or ()):
        loss = harness.step(batch)["loss"]
        if not isfinite(loss.item()):
            return number
        loss.backward()
        nn.utils.clip_grad_norm_(parameters(harness).values(), config["optim"]["clip_grad_norm"])
        optimizer.step()
        optimizer.zero_grad()
    return None
