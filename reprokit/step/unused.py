"""Modules of a variant that the step never runs: what is changed about them changes nothing, and shows nothing.

One hook for all modules, since those on a module of its own would turn fast paths off. It does not see a `forward` that
is called by that name, so such a module counts as unused: nothing is said about it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from reprokit.harness import Harness, named_modules


@contextmanager
def unused(harness: Harness, names: Iterable[str]) -> Iterator[set[str]]:
    """Of these modules, those that have not run since the context was entered."""
    left = set(names)
    if not left:
        yield left
        return
    by_module = {id(module): name for name, module in named_modules(harness) if name in left}

    def ran(module: Any, _inputs: Any) -> None:
        left.discard(by_module.get(id(module), ""))

    hook = register_module_forward_pre_hook(ran)
    try:
        yield left
    finally:
        hook.remove()
