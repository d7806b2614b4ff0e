"""The modules, parameters and buffers of a model by name, walked once and again only where something was replaced.

Names are those beneath wrappers, so that what is taken under DistributedDataParallel or `torch.compile` fits a bare
module. A walk costs a millisecond for a small model, and a recorder asks several times a step; that nothing was added,
removed or replaced since is seen from identities, a twentieth of that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import nn

from reprokit.errors import BadInput

_WRAPPERS: dict[
    str, str
] = {  # class name -> attribute that holds the module; by name, so that nothing is imported for it
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}


class Anatomy:
    """Of the modules below `roots`; each, and each tensor, has the first of its names. Not to be written into.

    Raises BadInput where two tensors have one name.
    """

    def __init__(self, roots: Mapping[str, nn.Module]) -> None:
        self._roots = dict(roots)
        walked: dict[int, nn.Module] = {}
        self.modules = [pair for name, module in roots.items() for pair in _walk(name, module, walked)]
        inside = walked.values()  # wrappers too
        self._held = [_values(held) for one in inside for held in (one._modules, one._parameters, one._buffers)]
        self.parameters: dict[str, nn.Parameter] = self._named("_parameters")
        self.buffers: dict[str, torch.Tensor] = self._named("_buffers")
        self._parts = self._identities()

    def holds(self, roots: Mapping[str, nn.Module]) -> bool:
        """Whether it still describes them. What it describes it keeps alive, so an identity is not given twice."""
        return dict(roots) == self._roots and self._identities() == self._parts

    def _identities(self) -> list[int]:
        return list(map(id, chain.from_iterable(self._held)))

    def _named(self, kind: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        seen: set[int] = set()
        for prefix, module in self.modules:
            for name, tensor in getattr(module, kind).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    if f"{prefix}.{name}" in found:
                        raise BadInput(f"Harness: two tensors are called {prefix}.{name}; give the modules other names")
                    found[f"{prefix}.{name}"] = tensor
        return found


def _values(holder: Mapping[str, Any]) -> Iterable[Any]:
    """Of a dict as they are whenever one looks; compiled modules (`torch.jit`) hold theirs elsewhere, in what gives a
    list."""
    return holder.values() if isinstance(holder, dict) else _Values(holder)


@dataclass(frozen=True, slots=True)
class _Values:
    holder: Mapping[str, Any]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.holder.values())


def _walk(prefix: str, module: nn.Module, walked: dict[int, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with the names that they have underneath wrappers, each once."""
    if id(module) in walked:
        return
    walked[id(module)] = module
    if inside := _WRAPPERS.get(type(module).__name__):
        yield from _walk(prefix, getattr(module, inside), walked)
        return
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(f"{prefix}.{name}", child, walked)
