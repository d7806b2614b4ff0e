"""Video encoders in a harness, known by their interface: what a gate can ask of them beside what any module answers.

An encoder here is a module that has `patch_size`, `tubelet_size` and `num_patches`, takes clips [B, C, T, H, W] and
gives tokens [B, 1 + N, D], the first of which is [CLS] and the others in order of time.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from reprokit.harness import Harness, named_modules

_ATTRIBUTES = ("patch_size", "tubelet_size", "num_patches")


def encoders(harness: Harness) -> dict[str, Any]:
    """Those modules by name; empty where there is none."""
    return {name: module for name, module in named_modules(harness) if _is_encoder(module)}


def _is_encoder(module: nn.Module) -> bool:
    return all(isinstance(getattr(module, name, None), int) for name in _ATTRIBUTES)
