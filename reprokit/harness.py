"""What the user hands over, and how its state is taken and put back.

State is everything that a step reads and that outlives it: parameters, all buffers, training flags, `requires_grad`,
gradients that survive a step, optimizer state and hyperparameters, the scaler, and whatever the user lists in
`extra_state`. Names are those of the modules underneath wrappers, so that a state taken under DistributedDataParallel
or `torch.compile` fits a bare module. Optimizer state is keyed by parameter name and written directly:
`load_state_dict` casts it to the parameter's dtype, and would keep entries that did not exist when the state was taken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from reprokit.errors import BadInput

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_WRAPPERS: dict[
    str, str
] = {  # class name -> attribute that holds the module; by name, so that nothing is imported for it
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
}

State = dict[str, Any]
_replaying: ContextVar[bool] = ContextVar("replaying", default=False)


@dataclass(kw_only=True, slots=True)
class Harness:
    """The modules, the optimizer and the training step, rebuilt by one function from a config.

    Raises BadInput where a field cannot be what it should be.
    """

    modules: Mapping[str, nn.Module]
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]
    step: Callable[[Any], Any]  # batch -> loss, or a mapping of loss terms with the key "loss"
    layout: Mapping[str, str] | str  # named axes of each entry of the batch, in einops' notation
    automatic_optimization: bool = True  # False: the step does backward, clipping and the optimizer's step itself
    scaler: torch.amp.GradScaler | None = None
    clip_grad_norm: float | None = None  # largest L2 norm of all gradients together
    accumulate: int = 1  # batches per optimizer step; the loss is divided by it
    autocast: str | None = None  # "bf16" or "fp16"
    extra_state: Mapping[str, Any] = field(default_factory=dict)  # anything with state_dict and load_state_dict
    loader: Iterable[Any] | None = None
    features: Callable[[Any], torch.Tensor] | None = None
    knobs: Mapping[str, list[Any]] = field(default_factory=dict)  # dotted config key -> values that may be tried

    def __post_init__(self) -> None:
        modules = self.modules if isinstance(self.modules, Mapping) else {}
        if not modules or not all(isinstance(module, nn.Module) for module in modules.values()):
            raise BadInput("Harness: modules must map names to torch modules; for example {'model': model}")
        if not self.optimizers or not all(isinstance(one, torch.optim.Optimizer) for one in self.optimizers.values()):
            raise BadInput("Harness: optimizer must be a torch optimizer, or a mapping of names to optimizers")
        if self.autocast is not None and self.autocast not in AUTOCAST:
            raise BadInput(f"Harness: autocast={self.autocast!r}; expected one of {sorted(AUTOCAST)}, or None")
        if self.accumulate < 1:
            raise BadInput(f"Harness: accumulate={self.accumulate}; expected the number of batches per optimizer step")
        parameters(self)  # refuses two of one name
        for name, holder in self.extra_state.items():
            if not isinstance(holder, torch.Generator) and not hasattr(holder, "load_state_dict"):
                kind = type(holder).__name__
                raise BadInput(f"Harness: extra_state[{name!r}] ({kind}) needs state_dict() and load_state_dict()")

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """By name; a single one is called "optimizer"."""
        return self.optimizer if isinstance(self.optimizer, Mapping) else {"optimizer": self.optimizer}

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives; the CPU where there is none."""
        return next((p.device for p in parameters(self).values()), torch.device("cpu"))


def is_replay() -> bool:
    """True while reprokit rebuilds a harness for a replay: its state will be overwritten, so a build that would
    download
    weights or open a data set can leave that out."""
    return _replaying.get()


@contextmanager
def replaying() -> Iterator[None]:
    """Within it, `is_replay()` is True."""
    token = _replaying.set(True)
    try:
        yield
    finally:
        _replaying.reset(token)


def parameters(harness: Harness) -> dict[str, nn.Parameter]:
    """Every parameter once, by name: "encoder.blocks.0.weight". A tied one has the first of its names."""
    return _named(harness, lambda module: module._parameters)


def buffers(harness: Harness) -> dict[str, torch.Tensor]:
    """Every buffer once, by name, the non-persistent ones too."""
    return _named(harness, lambda module: module._buffers)


def named_modules(harness: Harness) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, by the name that it has beneath wrappers: "encoder.blocks.0"."""
    seen: set[int] = set()
    for name, module in harness.modules.items():
        yield from _walk(name, module, seen)


def take_state(harness: Harness) -> State:
    """A copy of the state, as plain nested data; nothing in it shares memory with the harness."""
    params = parameters(harness)
    return {
        "parameters": {name: _copied(p) for name, p in params.items()},
        "buffers": {name: _copied(b) for name, b in buffers(harness).items()},
        "gradients": {name: _copied(p.grad) for name, p in params.items() if p.grad is not None},
        "requires_grad": {name: p.requires_grad for name, p in params.items()},
        "training": {name: module.training for name, module in named_modules(harness)},
        "optimizers": {key: _take_optimizer(one, params) for key, one in harness.optimizers.items()},
        "scaler": _copied(harness.scaler.state_dict()) if harness.scaler else None,
        "extra": {key: _take_extra(holder) for key, holder in harness.extra_state.items()},
    }


def put_state(harness: Harness, state: State) -> None:
    """Write a state back, in place, so that references held by the user's code stay valid.

    Raises BadInput where the harness has other names or shapes than the state.
    """
    params = parameters(harness)
    _put_tensors("parameters", params, state["parameters"])
    _put_tensors("buffers", buffers(harness), state["buffers"])
    for name, parameter in params.items():
        parameter.requires_grad_(state["requires_grad"][name])
        gradient = state["gradients"].get(name)
        parameter.grad = None if gradient is None else _copied(gradient.to(parameter.device))
    for name, module in named_modules(harness):
        module.training = state["training"].get(name, module.training)
    for key, optimizer in harness.optimizers.items():
        _put_optimizer(key, optimizer, state["optimizers"], params)
    if harness.scaler and state["scaler"]:
        harness.scaler.load_state_dict(_copied(state["scaler"]))
    for key, holder in harness.extra_state.items():
        _put_extra(key, holder, state["extra"])


def _named(harness: Harness, of: Callable[[nn.Module], Mapping[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for prefix, module in named_modules(harness):
        for name, tensor in of(module).items():
            if tensor is not None and id(tensor) not in seen:
                seen.add(id(tensor))
                if f"{prefix}.{name}" in found:
                    raise BadInput(f"Harness: two tensors are called {prefix}.{name}; give the modules other names")
                found[f"{prefix}.{name}"] = tensor
    return found


def _walk(prefix: str, module: nn.Module, seen: set[int]) -> Iterator[tuple[str, nn.Module]]:
    """Modules with the names that they have underneath wrappers, each once."""
    if id(module) in seen:
        return
    seen.add(id(module))
    if inside := _WRAPPERS.get(type(module).__name__):
        yield from _walk(prefix, getattr(module, inside), seen)
        return
    yield prefix, module
    for name, child in module._modules.items():
        if child is not None:
            yield from _walk(f"{prefix}.{name}", child, seen)


def _take_optimizer(optimizer: torch.optim.Optimizer, params: Mapping[str, nn.Parameter]) -> State:
    names = _names_in(optimizer, params)
    return {
        "groups": [{k: _copied(v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
        "names": [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups],
        "state": {names[id(p)]: _copied(dict(entry)) for p, entry in optimizer.state.items() if id(p) in names},
    }


def _put_optimizer(
    key: str, optimizer: torch.optim.Optimizer, states: Mapping[str, State], params: Mapping[str, nn.Parameter]
) -> None:
    names = _names_in(optimizer, params)
    state = states.get(key)
    ours = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    if state is None or ours != state["names"]:
        raise BadInput(f"optimizer {key!r}: build gives it other parameters than were captured; build from that config")
    optimizer.state.clear()
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    for name, entry in state["state"].items():
        optimizer.state[by_name[name]] = _copied(entry)
    for group, captured in zip(optimizer.param_groups, state["groups"]):
        for gone in [k for k in group if k != "params" and k not in captured]:
            del group[gone]
        group.update(_copied(captured))


def _names_in(optimizer: torch.optim.Optimizer, params: Mapping[str, nn.Parameter]) -> dict[int, str]:
    """Names of an optimizer's parameters by identity; those of no registered module are named by their place."""
    known = {id(p): name for name, p in params.items()}
    return {
        id(p): known.get(id(p), f"groups.{i}.{j}")
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    }


def _take_extra(holder: Any) -> Any:
    return holder.get_state() if isinstance(holder, torch.Generator) else _copied(holder.state_dict())


def _put_extra(key: str, holder: Any, states: Mapping[str, Any]) -> None:
    if key not in states:
        raise BadInput(f"extra_state[{key!r}]: not in the captured state; build from the captured config")
    if isinstance(holder, torch.Generator):
        holder.set_state(states[key])
    else:
        holder.load_state_dict(_copied(states[key]))


@torch.no_grad()
def _put_tensors(what: str, ours: Mapping[str, torch.Tensor], captured: Mapping[str, torch.Tensor]) -> None:
    if odd := sorted(ours.keys() ^ captured.keys()):
        raise BadInput(f"{what}: build gives another set than was captured ({_some(odd)}); build from that config")
    for name, tensor in ours.items():
        value = captured[name]
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            given, expected = f"{tensor.dtype} {list(tensor.shape)}", f"{value.dtype} {list(value.shape)}"
            raise BadInput(f"{what}: {name} is {given}, captured was {expected}; build from the captured config")
        if tensor.stride() != value.stride():
            tensor.data = _copied(value.to(tensor.device))
        else:
            tensor.data.copy_(value)


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _copied(value: Any) -> Any:
    """A copy that shares no memory; tensors are cut from their graph and keep their strides."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return type(value)((k, _copied(v)) for k, v in value.items()) if type(value) is dict else copy.deepcopy(value)
    if type(value) in (list, tuple):
        return type(value)(_copied(v) for v in value)
    return copy.deepcopy(value)
