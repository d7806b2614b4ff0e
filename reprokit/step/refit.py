"""A captured state for a harness of another config.

A changed config may change anything that `build` makes: how many blocks there are, how they are initialised, what is
frozen, the learning rate. Putting the captured state over it would undo the change where names and shapes agree, and
"the learning rate makes no difference" would be true of every run. What training made of the captured run must be kept
all the same, or the failure is gone for want of its weights. Three states tell the two apart: the captured one, the one
that `build` made of the captured config, and the one that it made of the other. What training has not changed since
`build` is as the new config makes it; what training has changed is put, where it fits. A learning rate that a schedule
has moved is moved by the same factor.

Pure: three states in, one out that fits the new harness, so nothing is ever put by half.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from reprokit.errors import some
from reprokit.harness import State

_MISSING = object()
_TOLD = ("parameters", "buffers", "extra")  # parts whose misfits matter to a reader
_NAMED = 3  # misfits in a line: enough to see a pattern


def refit(built: State, captured: State, original: State) -> tuple[State, list[str]]:
    """The state for the harness that `built` was taken of, and the names of what did not fit and stays as built.

    original: taken of a harness just built from the captured config.
    """
    left: list[str] = []
    state = {
        part: _merged(built[part], captured[part], original[part], part, left if part in _TOLD else [])
        for part in (*_TOLD, "requires_grad", "training", "scaler")
    }
    if not captured["scaler"]:
        state["scaler"] = built["scaler"]
    trained = captured["parameters"]
    fit = {name: one for name, one in built["parameters"].items() if name in trained and _fits(one, trained[name])}
    alike = [name for name, tensor in fit.items() if tensor.dtype is trained[name].dtype]
    gradients = {name: value for name, value in captured["gradients"].items() if name in fit}
    state["gradients"] = {name: value.to(fit[name].dtype) for name, value in gradients.items()}
    state["optimizers"] = {
        key: _optimizer(one, captured["optimizers"].get(key), original["optimizers"].get(key), alike)
        for key, one in built["optimizers"].items()
    }
    left += [f"optimizers.{key}" for key, one in built["optimizers"].items() if state["optimizers"][key] is one]
    return state, left


def told(left: list[str]) -> str:
    """A line on what stays as built."""
    return f"as built, for the captured state does not fit: {some(left, _NAMED)}" if left else ""


def _merged(built: Any, captured: Any, original: Any, path: str, left: list[str]) -> Any:
    """Entry by entry, down to tensors and plain values."""
    if isinstance(built, Mapping) and isinstance(captured, Mapping):
        original = original if isinstance(original, Mapping) else {}
        found = {
            key: _merged(value, captured.get(key, _MISSING), original.get(key, _MISSING), f"{path}.{key}", left)
            for key, value in built.items()
        }
        if path.startswith("extra"):  # what came with training: it belongs to no config
            found |= {key: value for key, value in captured.items() if key not in built and key not in original}
        return _like(built, found)
    if not _fits(built, captured):
        left.append(path)
        return built
    if same(captured, original):
        return built
    return captured.to(built.dtype) if isinstance(captured, torch.Tensor) else captured


def _like(mapping: Any, entries: dict[Any, Any]) -> Any:
    if type(mapping) is dict:
        return entries
    new = copy.copy(mapping)
    new.clear()
    new.update(entries)
    return new


def _fits(built: Any, captured: Any) -> bool:
    """Tensors need the same shape, lists the same length; a plain value stands for any other."""
    if captured is _MISSING:
        return False
    if isinstance(built, torch.Tensor) or isinstance(captured, torch.Tensor):
        both = isinstance(built, torch.Tensor) and isinstance(captured, torch.Tensor)
        return both and built.shape == captured.shape
    if isinstance(built, list | tuple) and isinstance(captured, list | tuple):
        return len(built) == len(captured) and all(map(_fits, built, captured))
    return isinstance(built, Mapping | list | tuple) == isinstance(captured, Mapping | list | tuple)


def same(one: Any, other: Any) -> bool:
    """Equal in all tensors, arrays and values, in equal nests."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, Mapping):
        return isinstance(other, Mapping) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def _optimizer(built: State, captured: State | None, original: State | None, fits: list[str]) -> State:
    """Its memory for parameters that agree, if it is of the same kind: another one could not read it."""
    if captured is None or original is None or _kind(built) != _kind(original):
        return built
    groups, ours = built["groups"], captured["groups"]
    if len(groups) == len(ours) == len(original["groups"]):
        groups = [_group(*three) for three in zip(groups, ours, original["groups"])]
    names = {name for group in built["names"] for name in group}
    state = {name: entry for name, entry in captured["state"].items() if name in names and name in fits}
    return {"groups": groups, "names": built["names"], "state": state}


def _kind(optimizer: State) -> Any:
    """Names of its hyperparameters, and its switches (amsgrad, centered): they decide what it remembers."""
    return [
        sorted((name, value if isinstance(value, bool) else None) for name, value in group.items())
        for group in optimizer["groups"][:1]
    ]


def _group(built: State, captured: State, original: State) -> State:
    """The captured hyperparameters, with those that the config decides about as it makes them."""
    decided = {name: value for name, value in built.items() if not same(value, original.get(name, _MISSING))}
    group = built | captured | decided
    if all("lr" in one for one in (built, captured, original)):
        group["lr"] = _rate(built["lr"], _start(built), captured["lr"], _start(original))
    return group


def _start(group: State) -> float:
    """Where the schedule began, if there is one: it may have moved the rate before the first step."""
    return float(group["initial_lr"] if "initial_lr" in group else group["lr"])


def _rate(built: Any, start: float, captured: Any, original: float) -> Any:
    if start == original:
        return captured
    if not original:
        return built
    value = start * float(captured) / original
    return torch.full_like(built, value) if isinstance(built, torch.Tensor) else value
