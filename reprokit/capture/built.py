"""What `build` made: a harness that has become another one since is told from it, when an incident is written.

A replay builds anew and writes the captured state into that. A module that training added, a cast, an optimizer that it
swapped are in no state; so the incident says what is not as it was built, and training is told once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch.nn.parameter import is_lazy

from reprokit.harness import Harness, anatomy

_NAMED = 3  # differences that are named; the rest is counted


def parts_of(harness: Harness) -> dict[str, str]:
    """Its modules, tensors and optimizers, with what each is."""
    return dict(_parts(harness))


def difference(built: Mapping[str, str], now: Mapping[str, str]) -> str:
    """One line; empty where there is none."""
    odd = [name for name in dict.fromkeys(chain(built, now)) if built.get(name) != now.get(name)]
    if not odd:
        return ""
    named = [_told(name, built.get(name), now.get(name)) for name in odd[:_NAMED]]
    more = f", and {len(odd) - _NAMED} more" if len(odd) > _NAMED else ""
    return f"the harness is not the one that was handed over: {', '.join(named)}{more}; a replay builds that one"


def _parts(harness: Harness) -> Iterator[tuple[str, str]]:
    for key, optimizer in harness.optimizers.items():
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        yield f"optimizer {key!r}", f"{type(optimizer).__name__} of {' + '.join(map(str, sizes))} parameters"
    seen = anatomy(harness)
    for name, module in seen.modules:
        yield f"module {name}", type(module).__name__
    for kind, tensors in ("parameter", seen.parameters), ("buffer", seen.buffers):
        for name, tensor in tensors.items():
            yield f"{kind} {name}", _form(tensor)


def _form(tensor: torch.Tensor) -> str:
    if is_lazy(tensor):
        return "not initialized"
    shape = "nested" if tensor.is_nested else list(tensor.shape)  # of which one cannot be asked
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape}"


def _told(name: str, built: str | None, now: str | None) -> str:
    if now is None:
        return f"{name} is gone"
    return f"{name} ({now}) is new" if built is None else f"{name} is {now}, was {built}"
