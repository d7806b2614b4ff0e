"""What happens to a harness between two steps, outside of them: seen on the host, and done again on the way back.

Whoever goes back in history runs the steps again, and only the steps. What a loop does after each one (a scheduler's
step, freezing a module, `zero_grad`) would be lost, and the steps would no longer be those that were captured. So the
values that a loop changes by hand are compared from the end of a step to the start of the next, and what differs is
kept with the step. Only that: a value that changed *inside* a step must come out of running it, or healing the step's
batch could not heal the value.

Seen: hyperparameters of optimizers, small values in the state of `extra_state`, generators there, training flags,
`requires_grad`, and which parameters have a gradient; no value is read from a device. Parameters, buffers and
optimizer state, and tensors in `extra_state`, are too large to compare: that torch wrote into one shows in its version,
and history begins anew there. Not seen: writes through `.data` or NumPy, into state of which `state_dict` gives copies,
and into what the harness does not know. The rehearsal of the second step shows those that happen at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import isnan
from typing import Any

import torch

from reprokit.anatomy import Anatomy
from reprokit.harness import Harness, anatomy, named_modules, parameters

SMALL = 64  # numbers in one entry: counters, rates and lists of them, not data

Path = tuple[str, ...]
Changes = list[tuple[list[str], Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Moments:
    """What the optimizers hold of their parameters."""

    identities: list[int]  # of optimizers, their parameters and all that they hold of them
    held: list[Any]  # all that they hold: tensors, and numbers of the host

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [one for one in self.held if isinstance(one, torch.Tensor)]


def moments(harness: Harness) -> Moments:
    """As they are now."""
    identities: list[int] = []
    held: list[Any] = []
    for optimizer in harness.optimizers.values():
        identities.append(id(optimizer))
        for group in optimizer.param_groups:
            identities += map(id, group["params"])
        identities += map(id, optimizer.state)
        held += chain.from_iterable(entry.values() for entry in optimizer.state.values())
    return Moments(identities=[*identities, *map(id, held)], held=held)


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """The host's side of a harness at one moment."""

    of: Anatomy
    training: list[bool]  # by module
    requires_grad: list[bool]  # by parameter
    gradients: list[bool]  # whether it has one, by parameter
    values: Mapping[Path, Any]  # the rest, by where they are; none of them changes later
    tensors: list[int]  # how often torch wrote into parameters, then buffers
    moments: list[int]  # what optimizers hold
    written: list[int]  # how often torch wrote into that
    extra: Mapping[Path, tuple[int, int]]  # the same of large tensors in `extra_state`


def look(harness: Harness) -> Look:
    """One walk over the harness: called twice a step."""
    seen, held = anatomy(harness), moments(harness)
    params = list(seen.parameters.values())
    values: dict[Path, Any] = {}
    extra: dict[Path, tuple[int, int]] = {}
    for key, optimizer in harness.optimizers.items():
        for i, group in enumerate(optimizer.param_groups):
            small = {name: value for name, value in group.items() if name != "params" and _is_small(value)}
            values |= {("groups", key, str(i), name): _copied(value) for name, value in small.items()}
    for key, holder in harness.extra_state.items():
        _look_at_extra(key, holder, values, extra)
    return Look(
        of=seen,
        training=[module.training for _, module in seen.modules],
        requires_grad=[p.requires_grad for p in params],
        gradients=[p.grad is not None for p in params],
        values=values,
        tensors=versions([*params, *seen.buffers.values()]),
        moments=held.identities,
        written=versions(held.tensors),
        extra=extra,
    )


def _look_at_extra(
    key: str, holder: Any, values: dict[Path, Any], tensors: dict[Path, tuple[int, int]]
) -> None:
    if isinstance(holder, torch.Generator):
        if holder.device.type == "cpu":
            values["generator", key] = holder.get_state()
        return
    state = holder.state_dict()
    for name, value in state.items() if isinstance(state, Mapping) else ():
        if _is_small(value) and type(name) is str:
            values["extra", key, name] = _copied(value)
        else:
            for place, tensor in _inside(value, str(name)):
                tensors["extra", key, place] = (_address(tensor), version(tensor))


def written(before: Look, now: Look) -> list[str]:
    """Tensors that torch wrote into, or that somebody replaced. `extra_state` may give copies, each elsewhere: those
    tell nothing."""
    found = []
    if before.of is not now.of or before.tensors != now.tensors:
        was = _tensors(before)
        found += [name for name, one in _tensors(now).items() if was.get(name) != one]
    if (before.moments, before.written) != (now.moments, now.written):
        found.append("the state of an optimizer")
    for path, (where, count) in now.extra.items():
        known = before.extra.get(path)
        if known != (where, count) and not (known is not None and known[0] != where):
            found.append(".".join(path))
    return found


def _tensors(seen: Look) -> dict[str, tuple[int, int]]:
    named = {**seen.of.parameters, **seen.of.buffers}
    return {name: (id(tensor), count) for (name, tensor), count in zip(named.items(), seen.tensors)}


def changes(before: Look, now: Look) -> Changes:
    """What is now and was not before, as `tree` can store it."""
    was, found = before.values, dict(now.values)
    flags = [(one.training, one.requires_grad, one.gradients) for one in (before, now)]
    if before.of is not now.of or flags[0] != flags[1]:
        was, found = {**_flags(before), **was}, {**_flags(now), **found}
    return [(list(path), value) for path, value in found.items() if path not in was or not _same(was[path], value)]


def _flags(seen: Look) -> dict[Path, Any]:
    params = list(seen.of.parameters)
    flags: dict[Path, Any] = {("training", name): on for (name, _), on in zip(seen.of.modules, seen.training)}
    flags |= {("requires_grad", name): on for name, on in zip(params, seen.requires_grad)}
    flags["gradients",] = [name for name, has in zip(params, seen.gradients) if has]
    return flags


def versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Of each its `version`."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [version(tensor) for tensor in tensors]


def version(tensor: torch.Tensor) -> int:
    """How often torch wrote into it; -1 where nobody counts, as for what was made in inference mode."""
    try:
        return tensor._version
    except RuntimeError:
        return -1


def put(harness: Harness, found: Changes) -> None:
    """Do it again. What a harness of another config does not have is left out."""
    params, modules = parameters(harness), dict(named_modules(harness))
    extra: dict[str, dict[str, Any]] = {}
    for (kind, *path), value in found:
        if kind == "training" and path[0] in modules:
            modules[path[0]].training = value
        elif kind == "requires_grad" and path[0] in params:
            params[path[0]].requires_grad_(value)
        elif kind == "gradients":
            for name in params.keys() - set(value):
                params[name].grad = None
        elif kind == "groups":
            _put_group(harness, path, value)
        elif kind == "generator" and path[0] in harness.extra_state:
            harness.extra_state[path[0]].set_state(value)
        elif kind == "extra" and path[0] in harness.extra_state:
            extra.setdefault(path[0], {})[path[1]] = value
    for key, values in extra.items():
        holder = harness.extra_state[key]
        holder.load_state_dict({**holder.state_dict(), **{name: _copied(value) for name, value in values.items()}})


def _put_group(harness: Harness, path: list[str], value: Any) -> None:
    key, i, name = path
    optimizer = harness.optimizers.get(key)
    if optimizer is not None and int(i) < len(optimizer.param_groups):
        optimizer.param_groups[int(i)][name] = _copied(value)


def _inside(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping | list | tuple):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _inside(item, f"{name}.{key}")


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Of their memory; what has none, as a sparse one or a wrapper, is named by itself."""
    try:
        return [tensor.data_ptr() for tensor in tensors]
    except RuntimeError:
        return [_address(tensor) for tensor in tensors]


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return id(tensor)


def _is_small(value: Any) -> bool:
    return _left_of(SMALL, value) >= 0


def _left_of(room: int, value: Any) -> int:
    """What is left after this value; negative once it is too large, of another type, or not on the host."""
    if isinstance(value, torch.Tensor):
        return room - 1 if value.numel() == 1 and value.device.type == "cpu" else -1
    if value is None or type(value) in (bool, int, float, str):
        return room - 1
    if type(value) is dict:
        if not all(type(key) in (str, int) for key in value):
            return -1
        value = list(value.values())
    if type(value) not in (list, tuple):
        return -1
    for item in value:
        if room < 0:
            break
        room = _left_of(room, item)
    return room


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return type(value)(_copied(item) for item in value) if type(value) in (list, tuple) else value


def _same(one: Any, other: Any) -> bool:
    """Equal type by type, and a NaN is equal to itself."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool(((one == other) | (one != one)).all())
    if type(one) is dict:
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (type(one) is float and isnan(one) and isnan(other))
