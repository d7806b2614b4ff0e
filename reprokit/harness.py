"""What the user hands over, and how its state is taken and put back.

State is everything that a step reads and that outlives it: parameters, all buffers, training flags, `requires_grad`,
gradients that survive a step, optimizer state and hyperparameters, the scaler, and whatever the user lists in
`extra_state`. Names are those of the modules underneath wrappers, so that a state taken under DistributedDataParallel
or `torch.compile` fits a bare module. Optimizer state is keyed by parameter name and written directly:
`load_state_dict` casts it to the parameter's dtype, and would keep entries that did not exist when the state was taken.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from reprokit.anatomy import Anatomy
from reprokit.errors import BadInput, some

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
State = dict[str, Any]
Keep = Callable[[str, torch.Tensor], torch.Tensor]  # what a state holds in place of a tensor, given its path
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
    fetch: Callable[[Any], Any] | None = None  # a batch -> its samples read and decoded again, by ids that it holds
    knobs: Mapping[str, list[Any]] = field(default_factory=dict)  # dotted config key -> values that may be tried
    _anatomy: Anatomy | None = field(default=None, init=False, repr=False, compare=False)

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
        self._check_functions()
        if not isinstance(self.knobs, Mapping) or not all(map(_is_list, self.knobs.values())):
            raise BadInput("Harness: knobs must map config keys to lists of values; such as {'model.depth': [1, 2]}")
        if not isinstance(self.extra_state, Mapping):
            raise BadInput(f"Harness: extra_state is a {type(self.extra_state).__name__}; expected a mapping by name")
        parameters(self)  # refuses two of one name
        for name, holder in self.extra_state.items():
            if not isinstance(holder, torch.Generator) and not hasattr(holder, "load_state_dict"):
                kind = type(holder).__name__
                raise BadInput(f"Harness: extra_state[{name!r}] ({kind}) needs state_dict() and load_state_dict()")

    def _check_functions(self) -> None:
        for name in ("step", "features", "fetch"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise BadInput(f"Harness: {name} is a {type(given).__name__}; expected a function of a batch")

    @property
    def optimizers(self) -> Mapping[str, torch.optim.Optimizer]:
        """By name; a single one is called "optimizer"."""
        return self.optimizer if isinstance(self.optimizer, Mapping) else {"optimizer": self.optimizer}

    @property
    def device(self) -> torch.device:
        """Where the first parameter lives; the CPU where there is none."""
        every = (parameter for module in self.modules.values() for parameter in module.parameters())
        return next((parameter.device for parameter in every), torch.device("cpu"))


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


def autocasting(harness: Harness) -> AbstractContextManager[Any]:
    """The precision that a forward pass has, where the harness asks for another than its tensors'."""
    if harness.autocast is None:
        return nullcontext()
    return torch.autocast(harness.device.type, dtype=AUTOCAST[harness.autocast])


def anatomy(harness: Harness) -> Anatomy:
    """Its modules and tensors by name, as they are now."""
    known = harness._anatomy
    if known is None or not known.holds(harness.modules):
        known = harness._anatomy = Anatomy(harness.modules)
    return known


def parameters(harness: Harness) -> dict[str, nn.Parameter]:
    """Every parameter once, by name: "encoder.blocks.0.weight". A tied one has the first of its names."""
    return dict(anatomy(harness).parameters)


def buffers(harness: Harness) -> dict[str, torch.Tensor]:
    """Every buffer once, by name, the non-persistent ones too."""
    return dict(anatomy(harness).buffers)


def named_modules(harness: Harness) -> list[tuple[str, nn.Module]]:
    """Every module once, by the name that it has beneath wrappers: "encoder.blocks.0"."""
    return list(anatomy(harness).modules)


def cloned(_path: str, tensor: torch.Tensor) -> torch.Tensor:
    """A copy that shares no memory, cut from its graph, in the same strides."""
    return tensor.detach().clone()


def take_state(harness: Harness, keep: Keep = cloned) -> State:
    """The state, as plain nested data: a copy that shares no memory with the harness, unless `keep` decides otherwise
    for some tensors."""
    return joined(take_lasting(harness, keep), take_passing(harness, keep))


def take_lasting(harness: Harness, keep: Keep) -> State:
    """So much of the state as lies in the same tensors from step to step, as a rule."""
    seen = anatomy(harness)
    return {
        "parameters": _held(seen.parameters, "parameters", keep),
        "buffers": _held(seen.buffers, "buffers", keep),
        "optimizers": {
            key: _take_optimizer(f"optimizers.{key}", one, seen.parameters, keep)
            for key, one in harness.optimizers.items()
        },
    }


def take_passing(harness: Harness, keep: Keep) -> State:
    """The rest: numbers and flags of the host, gradients that were left, and what only the user's objects know."""
    seen = anatomy(harness)
    gradients = {name: p.grad for name, p in seen.parameters.items() if p.grad is not None}
    return {
        "gradients": _held(gradients, "gradients", keep),
        "requires_grad": {name: p.requires_grad for name, p in seen.parameters.items()},
        "training": {name: module.training for name, module in seen.modules},
        "groups": {key: _take_groups(f"optimizers.{key}", one, keep) for key, one in harness.optimizers.items()},
        "scaler": _take_scaler(harness.scaler, keep),
        "extra": {key: _take_extra(f"extra.{key}", holder, keep) for key, holder in harness.extra_state.items()},
    }


def joined(lasting: State, passing: State) -> State:
    """One state of both halves."""
    optimizers = {key: {"groups": passing["groups"][key], **one} for key, one in lasting["optimizers"].items()}
    rest = {name: passing[name] for name in ("gradients", "requires_grad", "training")}
    return {
        "parameters": lasting["parameters"],
        "buffers": lasting["buffers"],
        **rest,
        "optimizers": optimizers,
        "scaler": passing["scaler"],
        "extra": passing["extra"],
    }


def settled(state: State, keep: Keep) -> State:
    """A state whose tensors are replaced once more, and where no number of the scaler is still on a device."""
    found: State = _held(state, "", keep)
    for name in _ON_DEVICE if found["scaler"] else ():
        if isinstance(number := found["scaler"][name], torch.Tensor):
            found["scaler"][name] = number.item()
    return found


def _is_list(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, str | bytes)


def put_state(harness: Harness, state: State) -> None:
    """Write a state back, in place, so that references held by the user's code stay valid.

    Raises BadInput where the harness has other names or shapes than the state, before anything is written; for a
    harness of another config see `step.refit`, which makes a state that fits.
    """
    params = parameters(harness)
    _check(harness, params, state)
    _put_tensors(params, state["parameters"])
    _put_tensors(buffers(harness), state["buffers"])
    for name, parameter in params.items():
        parameter.requires_grad_(state["requires_grad"][name])
        gradient = state["gradients"].get(name)
        parameter.grad = None if gradient is None else _copied(gradient.to(parameter.device))
    for name, module in named_modules(harness):
        module.training = state["training"].get(name, module.training)
    for key, optimizer in harness.optimizers.items():
        _put_optimizer(optimizer, state["optimizers"][key], params)
    if harness.scaler and state["scaler"]:
        harness.scaler.load_state_dict(_copied(state["scaler"]))
        harness.scaler._per_optimizer_states.clear()  # of a step that did not come to its end
    for key, holder in harness.extra_state.items():
        _put_extra(holder, state["extra"][key])


def _check(harness: Harness, params: Mapping[str, nn.Parameter], state: State) -> None:
    """Raises BadInput where this state is of another harness."""
    _check_tensors("parameters", params, state["parameters"])
    _check_tensors("buffers", buffers(harness), state["buffers"])
    for key, optimizer in harness.optimizers.items():
        captured = state["optimizers"].get(key)
        if captured is None or _names_of(optimizer, params) != captured["names"]:
            raise BadInput(
                f"optimizer {key!r}: build gives it other parameters than were captured; build from that config"
            )
    if missing := harness.extra_state.keys() - state["extra"].keys():
        raise BadInput(f"extra_state[{min(missing)!r}]: not in the captured state; build from the captured config")


def _take_optimizer(
    path: str, optimizer: torch.optim.Optimizer, params: Mapping[str, nn.Parameter], keep: Keep
) -> State:
    names = _names_in(optimizer, params)
    state = {names[id(p)]: dict(entry) for p, entry in optimizer.state.items() if id(p) in names}
    return {
        "names": _names_of(optimizer, params),
        "state": _held(state, f"{path}.state", keep),
    }


def _take_groups(path: str, optimizer: torch.optim.Optimizer, keep: Keep) -> Any:
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return _held(groups, f"{path}.groups", keep)


def _put_optimizer(optimizer: torch.optim.Optimizer, state: State, params: Mapping[str, nn.Parameter]) -> None:
    names = _names_in(optimizer, params)
    optimizer.state.clear()
    by_name = {names[id(p)]: p for group in optimizer.param_groups for p in group["params"]}
    for name, entry in state["state"].items():
        optimizer.state[by_name[name]] = _copied(entry)
    for group, captured in zip(optimizer.param_groups, state["groups"]):
        for gone in [k for k in group if k != "params" and k not in captured]:
            del group[gone]
        group.update(_copied(captured))


def _names_of(optimizer: torch.optim.Optimizer, params: Mapping[str, nn.Parameter]) -> list[list[str]]:
    """Group by group."""
    names = _names_in(optimizer, params)
    return [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]


def _names_in(optimizer: torch.optim.Optimizer, params: Mapping[str, nn.Parameter]) -> dict[int, str]:
    """Names of an optimizer's parameters by identity; those of no registered module are named by their place."""
    known = {id(p): name for name, p in params.items()}
    return {
        id(p): known.get(id(p), f"groups.{i}.{j}")
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
    }


_ON_DEVICE = {"scale": "_scale", "_growth_tracker": "_growth_tracker"}  # numbers of a scaler -> where it has them


def _take_scaler(scaler: torch.amp.GradScaler | None, keep: Keep) -> Any:
    """`state_dict()` would wait for the device; what it would read there is kept as tensors until `settled`."""
    if scaler is None or keep is cloned or getattr(scaler, "_scale", None) is None:
        return _copied(scaler.state_dict()) if scaler else None
    fixed = {"growth_factor": scaler._growth_factor, "backoff_factor": scaler._backoff_factor}
    numbers = {name: getattr(scaler, attribute).clone() for name, attribute in _ON_DEVICE.items()}
    return {**fixed, "growth_interval": scaler._growth_interval, **numbers}


def _take_extra(path: str, holder: Any, keep: Keep) -> Any:
    return holder.get_state() if isinstance(holder, torch.Generator) else _held(holder.state_dict(), path, keep)


def _put_extra(holder: Any, state: Any) -> None:
    if isinstance(holder, torch.Generator):
        holder.set_state(state)
    else:
        holder.load_state_dict(_copied(state))


def _check_tensors(what: str, ours: Mapping[str, torch.Tensor], captured: Mapping[str, torch.Tensor]) -> None:
    if odd := sorted(ours.keys() ^ captured.keys()):
        raise BadInput(f"{what}: build gives another set than was captured ({some(odd)}); build from that config")
    for name, tensor in ours.items():
        value = captured[name]
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            given, expected = f"{tensor.dtype} {list(tensor.shape)}", f"{value.dtype} {list(value.shape)}"
            raise BadInput(f"{what}: {name} is {given}, captured was {expected}; build from the captured config")


@torch.no_grad()
def _put_tensors(ours: Mapping[str, torch.Tensor], captured: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in ours.items():
        value = captured[name]
        if tensor.stride() != value.stride():
            tensor.data = _copied(value.to(tensor.device))
        else:
            tensor.data.copy_(value)


def _copied(value: Any) -> Any:
    return _held(value, "", cloned)


def _held(value: Any, path: str, keep: Keep) -> Any:
    """A copy in which `keep` decides about tensors; those of types that have no parts here are copied."""
    if isinstance(value, torch.Tensor):
        return keep(path, value)
    if value is None or type(value) in _CONSTANT:
        return value
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _held(item, f"{path}.{key}", keep)) for key, item in value.items())
    if type(value) in (list, tuple):
        return type(value)(_held(item, f"{path}.{i}", keep) for i, item in enumerate(value))
    return copy.deepcopy(value)


_CONSTANT = frozenset({bool, int, float, str})
