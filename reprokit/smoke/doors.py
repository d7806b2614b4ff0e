"""What passes the doors of a model: what its modules get that comes from data, and what they give.

Only outermost calls count: those that the step makes, not those that one module makes of another. So a harness may list
an encoder and a projector, or one module that holds both and is never called itself. A float that has no history of
operations comes from data; a predictor's input has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from reprokit.harness import Harness, named_modules
from reprokit.smoke.bench import eager
from reprokit.smoke.clips import tokens_in
from reprokit.smoke.encoders import encoders

Change = Callable[[int, int, torch.Tensor], torch.Tensor]  # number of the call, and of the tensor in it


@dataclass(kw_only=True, slots=True)
class Call:
    """One of a module, from outside."""

    module: str
    inputs: list[torch.Tensor] = field(default_factory=list)  # floats that come from data, as they were let in
    output: Any = None  # cut from its graph


class Doors:
    """A context around a forward pass. After it: `calls`, in order. change: what is let in, in the place of what came
    from data. What a backward pass computes anew is no call. Keeps inputs and outputs alive as long as it lives."""

    def __init__(self, harness: Harness, change: Change | None = None) -> None:
        self._modules, self._change = named_modules(harness), change
        self._depth, self._eager = 0, ExitStack()
        self._hooks: list[Any] = []
        self.calls: list[Call] = []

    def __enter__(self) -> Doors:
        self._eager.enter_context(eager())
        for name, module in self._modules:
            entering = lambda _module, args, kwargs, name=name: self._enter(name, args, kwargs)
            self._hooks.append(module.register_forward_pre_hook(entering, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._eager.close()
        for hook in self._hooks:
            hook.remove()

    def first(self) -> dict[str, Call]:
        """Of each module the first call that came back."""
        found: dict[str, Call] = {}
        for call in self.calls:
            if call.output is not None:
                found.setdefault(call.module, call)
        return found

    def _enter(self, name: str, args: Any, kwargs: Any) -> Any:
        if _in_backward():
            return None
        self._depth += 1
        if self._depth > 1:
            return None
        self.calls.append(Call(module=name))
        let_in = tree_map_only(torch.Tensor, self._let_in, (args, kwargs))
        return let_in if self._change else None  # a module may write into a list that it is given

    def _let_in(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.requires_grad:
            return tensor
        inputs = self.calls[-1].inputs
        inputs.append(self._change(len(self.calls) - 1, len(inputs), tensor) if self._change else tensor)
        return inputs[-1]

    def _leave(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if _in_backward():
            return
        self._depth -= 1
        if self._depth == 0:
            self.calls[-1].output = tree_map_only(torch.Tensor, torch.Tensor.detach, output)


def rows(harness: Harness, call: Call) -> torch.Tensor | None:
    """What a module gave, as a row a sample: of tokens [CLS] where it is an encoder of ours, else their mean, and of
    maps their mean over places. None where it gave nothing of that kind."""
    if call.module in encoders(harness) and (tokens := tokens_in(call.output)) is not None:
        return tokens[:, 0]
    tensors = [one for one in _tensors(call.output) if one.is_floating_point() and one.ndim > 1]
    if not tensors:
        return None
    first = tensors[0]
    if first.ndim == 2:
        return first
    return first.mean(1) if first.ndim == 3 else first.flatten(2).mean(2)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, value)
    yield from found


def _in_backward() -> bool:
    """Whether autograd runs: activation checkpoints call modules once more there."""
    return bool(torch._C._current_graph_task_id() != -1)
