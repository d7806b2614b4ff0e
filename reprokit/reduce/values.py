"""Which simpler values are worth a question: those that would change an entry, each result once, the cheapest first.

Pure: it makes the values to compare them, and asks nobody. In this order an answer tells most, too: where zeros still
fail the content does not matter at all, and where only a few distinct values do, it hardly does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.step.case import Simpler
from reprokit.step.values import simpler

ORDER: tuple[Simpler, ...] = ("zero", "constant", "special", "few")


def candidates(value: Any) -> list[Simpler]:
    """The moves to ask about for one entry of a batch. Empty for text, objects, and what is as simple as can be."""
    found: list[Simpler] = []
    seen = [_print(value)]
    for kind in ORDER:
        try:
            made = _print(simpler(value, kind))
        except BadInput:
            return []
        if made not in seen:
            seen.append(made)
            found.append(kind)
    return found


def _print(value: Any) -> Any:
    """Equal for values that no step could tell apart."""
    if isinstance(value, torch.Tensor):
        return tree.digest(value)
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), np.shape(value), np.asarray(value).tobytes()
    if isinstance(value, list | tuple):
        return [_print(one) for one in value]
    return repr(value)
