"""A hash of what each operation of a step made, in order: two attempts of one case part where the first one differs.

A fingerprint says that the losses differ. Which operation made the first other value says why: a draw of random
numbers, a sum in another order, a value that the step got from outside of torch. Hashing brings every value to the
host, so it is for the few attempts that are compared, and not for those that are counted.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from reprokit.harness import Harness
from reprokit.step.trace import Trace
from reprokit.tree import digest

MOST = 20_000  # operations of one attempt that are told: two megabytes, and a step of a large model
_SHORT = 16  # characters of a hash: two values that differ are taken for equal once in 2**64
_BLANK = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided")  # memory as it was left


class Operations(Trace):
    """A context around a step; after it `seen` has each operation with its place, and a hash."""

    def __init__(self, harness: Harness, root: Path) -> None:
        super().__init__(harness, {})
        self._root = f"{root}/"
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        module, stack = self._place()
        result = func(*args, **kwargs)
        name = func._schema.name.partition("::")[2]
        if len(self.seen) < MOST and name not in _BLANK and not _is_view(func):
            made = result if result is not None else (args, kwargs)  # what returns nothing wrote into what it got
            self.seen.append((self._label(str(func), module, stack), _hash(made)))
        return result

    def _label(self, name: str, module: str, stack: tuple[str, ...]) -> str:
        phase = self._phase()
        where = f" of {module}" if module else ""
        place = f", {stack[-1].replace(self._root, '')}" if stack else ""
        return f"{name}{where}{'' if phase == 'forward' else f' ({phase})'}{place}"

    def _phase(self) -> str:
        if self._optimizing:
            return "optimizer"
        return "forward" if torch._C._current_autograd_node() is None else "backward"


def _is_view(func: Any) -> bool:
    """Shows what is there already."""
    infos = [one.alias_info for one in func._schema.returns]
    return bool(infos) and all(info is not None and not info.is_write for info in infos)


def _hash(made: Any) -> str:
    leaves = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor | float | int | bool)]
    texts = [digest(one) if isinstance(one, torch.Tensor) and not one.is_meta else repr(one) for one in leaves]
    return sha256("\n".join(texts).encode()).hexdigest()[:_SHORT]
