"""Apply what a variant changes about a harness that is already built, and take it back after the step.

What a variant says must really hold, or its outcome means nothing. So a change that cannot be made is refused, and
never left out: a harness whose step optimizes by itself has no clipping that could be switched off from here, and a
module that is called without arguments has nothing to return as it is. The case is then INVALID: it says nothing about
the failure.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from difflib import get_close_matches
from math import isfinite
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from reprokit.errors import BadInput
from reprokit.harness import Harness, named_modules, parameters
from reprokit.step import clock
from reprokit.step.between import Changes
from reprokit.step.case import Variant
from reprokit.step.precision import Precision, held_in, known, no_autocast

_LOOP = ("autocast", "clip_grad_norm", "accumulate")  # what run() does, where the step does not do it itself
FIELDS = (*_LOOP, "scaler", "lr", "loss_scale", "synchronise")


class Inapplicable(BadInput):
    """This harness cannot run as the variant says."""


@contextmanager
def applied(harness: Harness, variant: Variant) -> Iterator[Harness]:
    """The harness that runs as the variant says, while the context lasts. Raises BadInput.

    With a dtype autocast and gradient scaling are off: both exist for the precision that is replaced. The batch is cast
    by `precision.cast`.
    """
    _check(harness, variant)
    fields = dict(variant.harness)
    if variant.dtype:
        fields |= {"scaler": None}
    with ExitStack() as stack:
        if _compiled() and (variant.dtype or variant.modules):
            stack.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would not see the change
        modules = dict(named_modules(harness))
        for name, ablation in variant.modules.items():
            stack.enter_context(_ABLATIONS[ablation](modules[name]))
        if "lr" in fields:
            stack.enter_context(_learning_rate(harness, fields.pop("lr")))
        if "accumulate" in fields:
            stack.enter_context(_without_gradients(parameters(harness).values()))
        if "loss_scale" in fields:
            stack.enter_context(_loss_scale(harness.scaler, fields.pop("loss_scale")))
        if "synchronise" in fields:
            stack.enter_context(_alone(harness, fields.pop("synchronise")))
        if "scaler" in fields and harness.scaler:
            stack.enter_context(_switched_off(harness.scaler))
        if variant.dtype or ("autocast" in fields and fields["autocast"] is None):
            stack.enter_context(no_autocast())
        if variant.dtype:
            stack.enter_context(held_in(harness, variant.dtype))
            stack.enter_context(Precision(variant.dtype))
        if variant.clock is not None:
            stack.enter_context(clock.ticking(variant.clock))
        if not harness.automatic_optimization:
            fields.pop("autocast", None)
        yield replace(harness, **fields | ({"autocast": None} if variant.dtype else {}))


def config_of(captured: Any, variant: Variant) -> Any:
    """What `build` gets. Raises BadInput."""
    return changed(captured if variant.whole_config is None else variant.whole_config, variant.config)


def unaffected(variant: Variant, changes: Changes) -> Changes:
    """Of what a loop changes between two steps, that which the variant does not hold fixed."""
    frozen = tuple(f"{name}." for name, ablation in variant.modules.items() if ablation == "freeze")
    return [
        (path, value)
        for path, value in changes
        if not (path[0] == "groups" and path[-1] == "lr" and "lr" in variant.harness)
        and not (path[0] == "requires_grad" and path[1].startswith(frozen))
    ]


def changed(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with dotted keys replaced. Raises BadInput where a key leads nowhere."""
    config = copy.deepcopy(config)
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        place = config
        for key in parents:
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise BadInput(f"config has no key {dotted!r}; a variant can change what is there, not add to it")
        place[last] = value
    return config


def describe(harness: Harness) -> dict[str, Any]:
    """What variants can name, as plain data, for who has no harness: the parent of the process that built it."""
    optimizers = {
        name: {"kind": type(one).__name__, "lr": [float(group["lr"]) for group in one.param_groups if "lr" in group]}
        for name, one in harness.optimizers.items()
    }
    return {
        "knobs": {key: list(values) for key, values in harness.knobs.items()},
        "modules": [name for name, _ in named_modules(harness)],
        "parameters": {name: list(parameter.shape) for name, parameter in parameters(harness).items()},
        "optimizers": optimizers,
        "harness": {
            "automatic_optimization": harness.automatic_optimization,
            "autocast": harness.autocast,
            "clip_grad_norm": harness.clip_grad_norm,
            "accumulate": harness.accumulate,
            "scaler": harness.scaler is not None,
        },
    }


def _check(harness: Harness, variant: Variant) -> None:
    if variant.dtype is not None:
        known(variant.dtype)
    if variant.clock is not None and not (_number(variant.clock) and variant.clock > 0):
        raise BadInput(f"variant: clock={variant.clock!r}; expected the seconds that a look at it takes")
    names = [name for name, _ in named_modules(harness)]
    for name, ablation in variant.modules.items():
        if name not in names:
            raise BadInput(f"variant: there is no module {name!r}; {_near(name, names)}")
        if ablation not in _ABLATIONS:
            raise BadInput(f"variant: {name}: {ablation!r} is no ablation; expected one of {', '.join(_ABLATIONS)}")
    for field, value in variant.harness.items():
        _check_field(harness, field, value)


def _near(name: str, names: list[str]) -> str:
    return f"the nearest are {', '.join(get_close_matches(name, names, n=3, cutoff=0.0))}"


def _check_field(harness: Harness, field: str, value: Any) -> None:
    if field not in FIELDS:
        raise BadInput(f"variant: {field!r} of a harness cannot be changed; expected one of {', '.join(FIELDS)}")
    if field in _LOOP and not harness.automatic_optimization and (field, value) != ("autocast", None):
        raise Inapplicable(f"variant: {field}: this harness's step does that itself (automatic_optimization=False)")
    if not _ALLOWED[field](value):
        raise BadInput(f"variant: {field}={value!r}; expected {_EXPECTED[field]}")
    if field == "loss_scale" and not (harness.scaler and harness.scaler.is_enabled()):
        raise Inapplicable("variant: loss_scale: this harness scales no loss (scaler=None, or switched off)")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


_ALLOWED: dict[str, Callable[[Any], bool]] = {
    "autocast": lambda value: value in ("bf16", "fp16", None),
    "clip_grad_norm": lambda value: value is None or (_number(value) and value > 0),
    "accumulate": lambda value: value == 1 and isinstance(value, int),
    "scaler": lambda value: value is None,
    "lr": lambda value: _number(value) and value >= 0,
    "loss_scale": lambda value: _number(value) and value > 0,
    "synchronise": lambda value: value is False,
}
_EXPECTED = {
    "autocast": "'bf16', 'fp16' or None",
    "clip_grad_norm": "the largest norm, or None",
    "accumulate": "1: no other batches of the same optimizer step are at hand",
    "scaler": "None",
    "lr": "a number of 0 or more, for all groups",
    "loss_scale": "a number above 0",
    "synchronise": "False: each rank keeps its own gradients",
}


def _compiled() -> bool:
    """Whether torch.compile is in use at all; looking for it by importing it would cost seconds."""
    return "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")


@contextmanager
def _forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    own = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if own is not None:
            module.__dict__["forward"] = own


def _identity(module: nn.Module) -> AbstractContextManager[None]:
    return _forward(module, _first)


def _first(*args: Any, **kwargs: Any) -> Any:
    if not args:
        given = ", ".join(kwargs) or "nothing"
        raise Inapplicable(f"variant: a module as identity returns its first positional argument, and it got {given}")
    return args[0]


def _in_float32(module: nn.Module) -> AbstractContextManager[None]:
    low = {str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point() and p.itemsize < 4}
    if low:
        raise Inapplicable(f"variant: a module in float32 has parameters of that type, and this one has {min(low)}")
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, _widened, (args, kwargs))
        with no_autocast():
            return forward(*args, **kwargs)

    return _forward(module, run)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """No gradients, and none left from before: an optimizer would still step with them."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    with _without_gradients([parameter for parameter, _ in before]):
        for parameter, _ in before:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, required in before:
                parameter.requires_grad_(required)


_ABLATIONS: dict[str, Callable[[nn.Module], AbstractContextManager[None]]] = {
    "identity": _identity,
    "freeze": _frozen,
    "float32": _in_float32,
}


@contextmanager
def _without_gradients(params: Any) -> Iterator[None]:
    before = [(parameter, parameter.grad) for parameter in params]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            parameter.grad = gradient


@contextmanager
def _learning_rate(harness: Harness, value: float) -> Iterator[None]:
    """At each step of an optimizer, whoever set another one meanwhile: the step itself, or a scheduler in it."""
    groups = [group for optimizer in harness.optimizers.values() for group in optimizer.param_groups if "lr" in group]
    if not groups:
        raise Inapplicable("variant: lr: no optimizer of this harness has one")
    before = [(group, group["lr"]) for group in groups]

    def hold(*_: Any) -> None:
        for group, old in before:
            group["lr"] = torch.full_like(old, value) if isinstance(old, torch.Tensor) else float(value)

    hold()
    hooks = [optimizer.register_step_pre_hook(hold) for optimizer in harness.optimizers.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for group, old in before:
            group["lr"] = old


@contextmanager
def _switched_off(scaler: Any) -> Iterator[None]:
    """By its own switch, for a step that uses it itself."""
    before = scaler._enabled
    scaler._enabled = False
    try:
        yield
    finally:
        scaler._enabled = before


@contextmanager
def _alone(harness: Harness, _: Any) -> Iterator[None]:
    """By DistributedDataParallel's own switch: gradients stay those of the rank."""
    wrappers: list[Any] = [module for module in harness.modules.values() if hasattr(module, "no_sync")]
    if not wrappers:
        raise Inapplicable("variant: synchronise: no module is wrapped in DistributedDataParallel")
    with ExitStack() as stack:
        for module in wrappers:
            stack.enter_context(module.no_sync())
        yield


@contextmanager
def _loss_scale(scaler: Any, value: float) -> Iterator[None]:
    """What the scaler learns meanwhile is of that scale, and forgotten."""
    before = scaler.state_dict()
    scaler.load_state_dict({**before, "scale": float(value)})
    try:
        yield
    finally:
        scaler.load_state_dict(before)
