"""Hydra's configs and dataclasses to plain data, and back.

An incident holds plain data. A function that takes a `DictConfig` or a dataclass says so in its signature, and is given
that again: `def build(config: DictConfig)`, `def build(config: Training | None)`. What a config only refers to (an
interpolation) is resolved before it is stored, since a replay has neither the environment nor Hydra's own config.

    @configured
    def build(config: DictConfig) -> reprokit.Harness: ...

    reprokit.Recorder(build(config), build=build, config=plain(config))
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import wraps
from inspect import isroutine, signature
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from reprokit.errors import BadInput

OMEGACONF = ("DictConfig", "ListConfig")

T = TypeVar("T")


def plain(config: Any) -> Any:
    """Dicts, lists, numbers, strings, booleans and None. Raises BadInput for what is missing, refers to nothing or
    contains itself."""
    try:
        return _told(config, "config")
    except RecursionError as error:
        raise BadInput("config: nested too deeply; a config is a tree of plain data") from error


def configured(build: Callable[[Any], T]) -> Callable[[Any], T]:
    """A build function that is given what its signature says, whether it is called with that or with plain data.
    Raises BadInput for what is no function of a config alone."""
    of_config(build, "configured")

    @wraps(build)
    def wrapped(config: Any) -> T:
        return build(fitted(build, config))

    return wrapped


def of_config(build: Any, who: str) -> None:
    """Raises BadInput for what cannot be called with a config alone, as a replay does: a method, or no function."""
    instead = "write `def build(config)` at the top of a module"
    if (name := getattr(build, "__qualname__", None)) is None:
        raise BadInput(f"{who}: a {type(build).__name__} is no function; {instead}")
    try:
        signature(build).bind(None)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{who}: {name} cannot be called with a config alone ({error}); {instead}") from error


def fitted(function: Callable[..., Any], config: Any) -> Any:
    """The config as the first parameter of this function is annotated; as it came where it is not."""
    wanted = [one for one in _options(_annotated(function)) if isinstance(one, type)]
    if _is_omegaconf(config) or _is_instance_of_dataclass(config) or (config is None and NoneType in wanted):
        return config
    for one in wanted:
        if is_dataclass(one):
            return _as_dataclass(one, config, one.__name__)
        if one.__name__ in OMEGACONF:
            return as_it_was(config, one.__name__)
    return config


def kind_of(config: Any) -> str:
    """The name of its type, by which `as_it_was` makes it again."""
    return type(config).__name__


def as_it_was(config: Any, kind: str | None) -> Any:
    """Plain data as the config of OmegaConf that it was; left alone where it was another."""
    if kind not in OMEGACONF:
        return config
    from omegaconf import OmegaConf

    return OmegaConf.create(config)


def _annotated(function: Callable[..., Any]) -> Any:
    """The type of its first parameter, None where it says none."""
    if not isroutine(function):
        return None
    try:
        return get_type_hints(function).get(next(iter(signature(function).parameters)))
    except NameError as error:
        raise BadInput(f"{function.__name__}: the type of its config cannot be found ({error}); import it") from error


def _hints(wanted: Any) -> dict[str, Any]:
    """The types of a dataclass's fields."""
    try:
        return get_type_hints(wanted)
    except NameError as error:
        raise BadInput(f"{wanted.__name__}: the type of a field cannot be found ({error}); import it") from error


def _options(hint: Any) -> list[Any]:
    """The type itself, and of a union all that it may be."""
    return [hint, *(get_args(hint) if get_origin(hint) in (Union, UnionType) else ())]


def _is_instance_of_dataclass(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _is_omegaconf(config: Any) -> bool:
    omegaconf = sys.modules.get("omegaconf")
    return omegaconf is not None and omegaconf.OmegaConf.is_config(config)


def _resolved(config: Any, where: str) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        if missing := sorted(OmegaConf.missing_keys(config)):
            line = f"{where}: {', '.join(missing)} missing (???)"
            raise BadInput(f"{line}; give a value on the command line or in the file")
        return _told(OmegaConf.to_container(config, resolve=True, enum_to_str=True), where)
    except OmegaConfBaseException as error:
        what, _, _ = str(error).partition("\n")
        key = f"{error.full_key}: " if error.full_key else ""
        raise BadInput(f"{where}: {key}{what}; give what it refers to, or a value") from error


def _told(value: Any, where: str, around: tuple[Any, ...] = ()) -> Any:
    """In types that YAML has: an enumeration by its name, a path as text, a tuple as a list. around: what it is in."""
    if _is_omegaconf(value):
        return _resolved(value, where)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, PurePath):
        return str(value)
    if any(value is one for one in around):
        raise BadInput(f"{where}: contains itself; a config is a tree of plain data")
    around = (*around, value)
    if _is_instance_of_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, Mapping):
        return {key: _told(item, f"{where}.{key}", around) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_told(item, f"{where}[{i}]", around) for i, item in enumerate(value)]
    return value


def _as_dataclass(wanted: Any, data: Any, where: str) -> Any:
    """Raises BadInput where they do not fit."""
    if not isinstance(data, Mapping):
        raise BadInput(f"{where}: expected a mapping of its fields, found a {type(data).__name__}")
    hints, known = _hints(wanted), {one.name: one for one in fields(wanted) if one.init}
    derived = {one.name for one in fields(wanted) if not one.init}  # which it makes itself
    if unknown := sorted(map(str, data.keys() - known.keys() - derived)):
        raise BadInput(f"{where}: no field {', '.join(unknown)}; it has {', '.join(known)}")
    needed = [n for n, one in known.items() if one.default is MISSING and one.default_factory is MISSING]
    if lacking := [name for name in needed if name not in data]:
        raise BadInput(f"{where}: {', '.join(lacking)} missing; give a value")
    given = {name: value for name, value in data.items() if name in known}
    return wanted(**{name: _as_hinted(hints[name], value, f"{where}.{name}") for name, value in given.items()})


def _as_hinted(hint: Any, value: Any, where: str) -> Any:
    """What a field of this type is given: a nested dataclass, an enumeration, a path or a tuple is made again."""
    options = _options(hint)
    for wanted in (one for one in options if isinstance(one, type)):
        if is_dataclass(wanted) and isinstance(value, Mapping):
            return _as_dataclass(wanted, value, where)
        if issubclass(wanted, Enum) and isinstance(value, str):
            if value not in wanted.__members__:
                raise BadInput(f"{where}: {value!r} is none of {', '.join(wanted.__members__)}")
            return wanted[value]
        if issubclass(wanted, PurePath) and isinstance(value, str):
            return wanted(value)
    for wanted in options:
        if isinstance(value, list) and get_origin(wanted) in (list, tuple):
            return _as_sequence(wanted, value, where)
        if isinstance(value, Mapping) and get_origin(wanted) is dict:
            inner = (get_args(wanted) or (Any, Any))[1]  # typing's Dict says nothing of what it holds
            return {key: _as_hinted(inner, item, f"{where}.{key}") for key, item in value.items()}
    return tuple(value) if tuple in options and isinstance(value, list) else value


def _as_sequence(wanted: Any, value: list[Any], where: str) -> Any:
    """`tuple[Path, int]` has a type for each place, `list[Path]` and `tuple[Path, ...]` one for all."""
    origin, inner = get_origin(wanted), get_args(wanted)
    each = len(inner) == len(value) and origin is tuple and Ellipsis not in inner
    hints = inner if each else (inner or (Any,))[:1] * len(value)
    return origin(_as_hinted(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(hints, value)))
