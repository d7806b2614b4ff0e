"""Which modules gave values that are not finite, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any

import torch

from reprokit.harness import Harness, named_modules
from reprokit.step.finite import bad_numbers

_NAMED = 5  # modules in an evidence: enough to see where it began


class Activations:
    """A context around a step: a module's output holds NaN or infinity. Costs a read of the device for each module that
    runs, and keeps compiled code from fusing across modules; no failure by itself, since a loss may mask what it does
    not use. Minus infinity is what masks are made of, and is not counted."""

    def __init__(self, harness: Harness) -> None:
        self._modules = dict(named_modules(harness))
        self._hooks: list[Any] = []
        self.bad: list[str] = []

    def __enter__(self) -> Activations:
        self._hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, name=name: self._look(name, output))
            for name, module in self._modules.items()
        ]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for hook in self._hooks:
            hook.remove()

    @property
    def evidence(self) -> dict[str, Any]:
        """Of the first of all, which is the innermost: a module's children give their outputs before it."""
        return {"activations": {"modules": len(self.bad), "first": self.bad[:_NAMED]}} if self.bad else {}

    def _look(self, name: str, output: Any) -> None:
        with suppress(Exception):  # whatever a module returns, its step goes on as without us
            if name not in self.bad and any(bad_numbers(tensor) for tensor in _tensors(output)):
                self.bad.append(name)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)
