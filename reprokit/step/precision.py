"""Run a step in another precision, also where its code asks for one by name.

Casting weights and inputs is half of it. A step that calls `.half()` or opens autocast itself would go on in the
precision that is under suspicion, and "still fails in float32" would be a lie. So each operation that torch dispatches
is looked at on its way, forward and backward: float16, bfloat16 and float32 mean the wanted dtype wherever they are
asked for, and what comes from no floating value (a new tensor, an image divided by 255) is made to have it. A float64
that the step asks for stays: somebody asked for it with care. Random numbers are drawn in the dtype of before and cast
afterwards, since torch draws others for each dtype: otherwise another draw would pass for another precision.

It holds for what goes through torch's dispatcher: code that was compiled does as it was written to, and a tensor that
shares memory with an array of NumPy's keeps its dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from reprokit.errors import BadInput
from reprokit.harness import Harness, buffers, named_modules, parameters

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ("float64", "float32", "bfloat16", "float16")}
_REPLACED = (torch.float32, torch.bfloat16, torch.float16)  # not float8: kernels for it take nothing else
_DEVICES = ("cpu", "cuda")

_aten = torch.ops.aten
_DRAWS = (_aten.rand, _aten.randn, _aten.rand_like, _aten.randn_like, _aten.normal, _aten.bernoulli, _aten.multinomial)
_FILLS = (_aten.uniform_, _aten.normal_, _aten.exponential_, _aten.log_normal_, _aten.cauchy_)


def cast(batch: Any, dtype: str) -> Any:
    """The batch with its floating tensors in this dtype; containers are new, all else is as it was. Raises BadInput."""
    wanted = known(dtype)
    return tree_map_only(torch.Tensor, lambda tensor: _converted(tensor, wanted), batch)


def known(dtype: str) -> torch.dtype:
    """By its name. Raises BadInput."""
    if dtype not in DTYPES:
        raise BadInput(f"variant: dtype={dtype!r}; expected one of {', '.join(DTYPES)}")
    return DTYPES[dtype]


@contextmanager
def held_in(harness: Harness, dtype: str) -> Iterator[None]:
    """Within it all that the harness holds is in this dtype: parameters, their gradients, buffers, optimizer state.

    A copy is made of each, so that the harness comes back as it went in, whatever the step did.
    """
    wanted = DTYPES[dtype]
    modules = [module for _, module in named_modules(harness)]
    modules += [part for one in harness.extra_state.values() if isinstance(one, nn.Module) for part in one.modules()]
    names = [(module, dict(module._parameters), dict(module._buffers)) for module in modules]
    tensors = [(tensor, tensor.data, tensor.grad) for tensor in _all(harness, modules)]
    states = [(one.state, dict(one.state)) for one in harness.optimizers.values()]
    try:
        for tensor, data, gradient in tensors:
            _hold(tensor, _copy(data, wanted), None if gradient is None else _copy(gradient, wanted))
        for state, entries in states:
            state.update({parameter: _cast_entry(entry, wanted) for parameter, entry in entries.items()})
        yield
    finally:
        for tensor, data, gradient in tensors:
            _hold(tensor, data, gradient)
        for state, entries in states:
            state.clear()
            state.update(entries)
        for module, params, bufs in names:  # a step may bind them anew
            module._parameters.update(params)
            module._buffers.update(bufs)


def _all(harness: Harness, modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Each once; also what only an optimizer knows."""
    found = [*parameters(harness).values(), *buffers(harness).values()]
    for module in modules:
        found += [tensor for tensor in (*module._parameters.values(), *module._buffers.values()) if tensor is not None]
    found += [p for one in harness.optimizers.values() for group in one.param_groups for p in group["params"]]
    return list({id(tensor): tensor for tensor in found}.values())


def _copy(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)


def _hold(tensor: torch.Tensor, data: torch.Tensor, gradient: torch.Tensor | None) -> None:
    tensor.grad = None  # first: a gradient must have the dtype of what it belongs to
    tensor.data = data
    tensor.grad = gradient


def _cast_entry(entry: Any, dtype: torch.dtype) -> Any:
    """As torch does it when it loads one: the count of steps is a tensor too, and no weight."""
    weight = lambda tensor: _copy(tensor, dtype)
    copies = {name: torch.clone if name == "step" else weight for name in entry}
    return {name: tree_map_only(torch.Tensor, copies[name], value) for name, value in entry.items()}


def _converted(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not tensor.is_floating_point() or tensor.dtype is dtype:
        return tensor
    return tensor.detach().to(dtype).requires_grad_(tensor.requires_grad)


@contextmanager
def no_autocast() -> Iterator[None]:
    """Within it autocast is off, also where the step opens it: a context of autocast's sets one global switch."""
    switch = torch.set_autocast_enabled
    before = [device for device in _DEVICES if torch.is_autocast_enabled(device)]
    torch.set_autocast_enabled = lambda device, _: switch(device, False)  # type: ignore[assignment]
    try:
        for device in before:
            switch(device, False)
        yield
    finally:
        torch.set_autocast_enabled = switch
        for device in before:
            switch(device, True)


class Precision(TorchDispatchMode):
    """A context around a step in which floating values are of one dtype."""

    def __init__(self, dtype: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dtype = DTYPES[dtype]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs, op, drawn = dict(kwargs or {}), func.overloadpacket, torch.get_default_dtype()
        if op in _FILLS and args[0].dtype is self._dtype:
            return args[0].copy_(func(torch.empty_like(args[0], dtype=drawn), *args[1:], **kwargs))
        if op in _DRAWS:
            args = tuple(_converted(one, drawn) if isinstance(one, torch.Tensor) else one for one in args)
            if "dtype" in _arguments(func):
                kwargs["dtype"] = kwargs.get("dtype") or drawn
            return _as(func(*args, **kwargs), self._dtype)
        if func is not _aten.view.dtype:  # the same bytes under another dtype: no cast
            args = tuple(self._dtype if _asks(one) else one for one in args)
            kwargs = {name: self._dtype if _asks(one) else one for name, one in kwargs.items()}
        result = func(*args, **kwargs)
        fresh = op is _aten.lift_fresh or not _has_floats(args)  # lift_fresh: what torch.tensor made of numbers
        return _as(result, self._dtype) if fresh else result


def _arguments(func: Any) -> list[str]:
    return [argument.name for argument in func._schema.arguments]


def _asks(argument: Any) -> bool:
    return isinstance(argument, torch.dtype) and argument in _REPLACED


def _has_floats(arguments: Iterable[Any]) -> bool:
    return any(
        one.is_floating_point() if isinstance(one, torch.Tensor) else isinstance(one, list | tuple) and _has_floats(one)
        for one in arguments
    )


def _as(result: Any, dtype: torch.dtype) -> Any:
    replaced = isinstance(result, torch.Tensor) and result.dtype in _REPLACED
    return result.to(dtype) if replaced else result
