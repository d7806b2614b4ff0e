"""Writing an incident's objects, beside torch.save with fsync and sha256 of the same objects.

The objects: the state of the reference model at 16 frames of 224 x 224 (ViT-tiny, with AdamW's moments), a batch of
eight samples with six local views, its donor, generators. Both ways end with every byte on the disk and known by its
hash; an incident is checked on the way for what it can store, and is renamed into place.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from recorder_pairs import in_turn, ratio, seconds
from safetensors.torch import save_file

from reprokit.harness import take_state
from reprokit.incident import Draft
from reprokit.step import rng
from reprokit.video.train import build, default_config

SAMPLES, VIEWS, FRAMES = 8, 6, 16


def written(pairs: int) -> Iterator[dict[str, Any]]:
    objects = _objects()
    with tempfile.TemporaryDirectory(prefix="reprokit-write-", dir=os.environ.get("BENCH_DIR")) as scratch:
        folder = Path(scratch)
        took = in_turn(
            pairs,
            {
                "incident": lambda: _incident(objects, folder),
                "torch.save": lambda: _torch_save(objects, folder),
                "save_file": lambda: _save_file(objects, folder),
            },
        )
    yield ratio("incident write / torch.save", took["incident"], took["torch.save"])
    yield ratio("incident write / save_file", took["incident"], took["save_file"])
    for name in took:
        yield seconds(f"write of {_size(objects) / 1e6:.0f} MB, {name}", took[name])


def _objects() -> dict[str, Any]:
    return {"state": state_of(FRAMES), "batch": _batch(0), "donor": _batch(1), "rng": rng.take()}


def state_of(frames: int) -> dict[str, Any]:
    """Of the reference model at its full width and depth, after a step of AdamW."""
    config = default_config()
    config["video"]["frames"] = frames
    config["data"] |= {"global_size": 224, "local_size": 96}
    config["model"]["depth"] = 12
    harness = build(config)
    (optimizer,) = harness.optimizers.values()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    return take_state(harness)


def _batch(seed: int) -> dict[str, Any]:
    random = torch.Generator().manual_seed(seed)
    pixels = lambda *shape: torch.randint(256, (SAMPLES, *shape), generator=random, dtype=torch.uint8)
    return {
        "global": pixels(FRAMES, 3, 224, 224),
        "local": pixels(VIEWS, FRAMES, 3, 96, 96),
        "source": [f"clips/{seed}-{i}.mp4" for i in range(SAMPLES)],
    }


def _incident(objects: dict[str, Any], folder: Path) -> None:
    with Draft(folder) as draft:
        draft.write_tree("state", "state", objects["state"])
        for name in ("batch", "donor", "rng"):
            draft.write_tree("ranks/00", name, objects[name])
        path = draft.publish("incident", signature=None, step=1, entrypoint="train.py:build", layout={}).path
    shutil.rmtree(path)


def _torch_save(objects: dict[str, Any], folder: Path) -> None:
    path = folder / "objects.pt"
    torch.save(objects, path)
    _sealed(path)


def _save_file(objects: dict[str, Any], folder: Path) -> None:
    """Its tensors alone: the format has no room for the rest."""
    path = folder / "objects.safetensors"
    save_file({str(i): tensor for i, tensor in enumerate(_tensors(objects))}, path)
    _sealed(path)


def _sealed(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
        hashlib.file_digest(file, "sha256").hexdigest()
    path.unlink()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value.contiguous()
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _size(objects: dict[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in _tensors(objects))
