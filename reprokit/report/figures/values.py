"""The small entries of a batch in words: labels, lengths, masks, paths.

Only what is plain is shown: text, numbers, and tensors of a few numbers. Of anything else its type is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from reprokit.report.figures.thumbs import numbers

FEW = 8  # values in one line
LONG = 60  # characters of one text


def small(value: Any, axes: Sequence[str]) -> bool:
    """Whether one sample of it goes into a line."""
    if isinstance(value, list | tuple):
        return True
    rest = [length for axis, length in zip(axes, value.shape) if axis != "b"]
    return int(np.prod(rest, dtype=np.int64)) <= FEW


def sample(value: Any, place: int, index: int) -> Any:
    """One sample of an entry whose samples are its axis number `place`."""
    return value[index] if isinstance(value, list | tuple) else value[(*[slice(None)] * place, index)]


def text(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, bool | int | float | np.number | np.bool_ | None):
        return number(value)
    if isinstance(value, str):
        return value if len(value) <= LONG else f"{value[:LONG]}…"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list | tuple) and all(map(_plain, value[:FEW])):
        return f"[{', '.join(map(text, value[:FEW]))}{', …' if len(value) > FEW else ''}]"
    held = numbers(value)
    if held is not None and held.numel() <= FEW:
        found = [number(one) for one in held.reshape(-1).tolist()]
        return found[0] if held.ndim == 0 else f"[{', '.join(found)}]"
    return _kind(value)


def number(value: Any) -> str:
    """Short: four digits of a float."""
    return f"{value:.4g}" if isinstance(value, float | complex) else str(value)


def _plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | None)


def _kind(value: Any) -> str:
    shaped = isinstance(value, np.ndarray) or (isinstance(value, Tensor) and not value.is_nested)
    count = f" of {len(value):,}" if isinstance(value, list | tuple | dict) else ""
    return type(value).__name__ + (f" {list(value.shape)}" if shaped else count)
