"""A function that makes what people train, from a config; and the harness of that, which a replay runs.

A trainer's users have a function already that makes their module or trainer from a config. Decorated, it still does
that; its `harness` makes the same thing and hands over what a replay needs of it. `build.harness` is an entrypoint like
any other one: `train.py:build.harness`. What is known only while it trains (the trainer's clipping, precision,
accumulation) is kept in the config of the incident, under the key `reprokit`, and never reaches the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any

import torch

from reprokit.capture.recorder import Recorder
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.integrations.configs import as_it_was, fitted, kind_of, of_config, plain

KEY = "reprokit"  # of a config: ours
CONFIG = "config"  # in there: of which kind the rest was


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """What only the user can say of a harness that is otherwise told from the trainer."""

    layout: Mapping[str, str] | str
    knobs: Mapping[str, list[Any]] = field(default_factory=dict)
    extra_state: Callable[[Any], Mapping[str, Any]] = lambda _made: {}  # of what was made: more that outlives a step
    features: Callable[[Any, Any], torch.Tensor] | None = None  # of what was made, and a batch
    loader: Callable[[Any], Iterable[Any]] | None = None  # of what was made: batches for `reprokit smoke`

    def fields(self, made: Any) -> dict[str, Any]:
        """Of the harness."""
        features = self.features
        seen = None if features is None else lambda batch: features(made, batch)
        return {"layout": self.layout, "knobs": self.knobs, "features": seen}


class OfValidation(Exception):
    """What a recorder is told in place of an exception of validation: no step raised it, and no loader of steps."""


Make = Callable[[Any], Any]
Hand = Callable[[Any, Given, Mapping[str, Any]], Harness]  # what was made, what was given, settings -> its harness


def decorator(layout: Mapping[str, str] | str, given: Mapping[str, Any], hand: Hand) -> Callable[[Make], Replayable]:
    """`replayable(...)` of an adapter. Raises BadInput, here and for what it decorates."""
    if not isinstance(layout, str | Mapping):
        raise BadInput(f'replayable: the layout is a {type(layout).__name__}; write @replayable(layout={{"x": "b d"}})')
    options = Given(layout=layout, **given)
    return lambda make: Replayable(make, options, hand)


class Replayable:
    """The decorated function: call it as before; `harness(config)` is what a replay calls. Raises BadInput for what is
    no function of a config alone."""

    def __init__(self, make: Make, given: Given, hand: Hand) -> None:
        of_config(make, "replayable")
        self._make, self.given = make, given
        self.__name__, self.__module__, self.__doc__ = make.__name__, make.__module__, make.__doc__

        def harness(config: Any) -> Harness:
            config = dict(config) if isinstance(config, Mapping) else config
            settings = config.pop(KEY, {}) if isinstance(config, dict) else {}
            made = self(as_it_was(config, settings.get(CONFIG)))
            found = hand(made, given, settings)
            found.loader = given.loader(made) if given.loader else None  # not where it trains: its loader is another
            return found

        harness.__module__, harness.__qualname__ = make.__module__, f"{make.__qualname__}.harness"
        self.harness = harness

    def __call__(self, config: Any) -> Any:
        return self._make(fitted(self._make, config))

    def __reduce__(self) -> str:
        return self._make.__qualname__  # as a function: by its name, and a copy is itself


def recorded(config: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The config of an incident: plain data, with our settings. Raises BadInput where there is no place for them."""
    data = plain(config)
    if not isinstance(data, dict):
        raise BadInput(f"config is a {type(config).__name__}; a config is a mapping, a DictConfig or a dataclass")
    if KEY in data:
        raise BadInput(f"config has a key {KEY!r} of its own, where the settings of the trainer are kept; rename it")
    return {**data, KEY: {**settings, CONFIG: kind_of(config)}}


def checked(who: str, build: Any, config: Any, options: Mapping[str, Any]) -> Replayable:
    """The function. Raises BadInput where one of them cannot be: at once, and not when training begins."""
    if not isinstance(build, Replayable):
        given = getattr(build, "__name__", type(build).__name__)
        raise BadInput(f"{who}: {given} is not decorated; write @replayable(layout=...) above the function itself")
    recorded(config, {})
    try:
        signature(Recorder).bind(None, build=build, config=config, **options)
    except TypeError as error:
        raise BadInput(f"{who}: {error}; its options are the Recorder's (docs/recorder.md)") from error
    return build


def told(value: Any) -> str:
    """What it is, and of which library: a Trainer may be of several."""
    kind = type(value)
    of = kind.__module__.partition(".")[0]
    return f"a {kind.__name__}" if of == "builtins" else f"a {kind.__name__} of {of}"


def library(name: str, extra: str) -> Any:
    """A library that an adapter needs. Raises BadInput with what to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise BadInput(f"{name} does not import ({error}); install it: pip install 'reprokit[{extra}]'") from error


def parts(module: torch.nn.Module, name: str) -> dict[str, torch.nn.Module]:
    """A module's children, so that what is told of a step names them; the module itself where it has more than them."""
    own: list[torch.Tensor] = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    children = dict(module.named_children())
    return children if children and not own else {name: module}


def terms_of(output: Any) -> dict[str, Any]:
    """The loss terms in what a step returned: tensors of one element, and numbers; empty where there is no loss."""
    found = dict(output) if isinstance(output, Mapping) else {"loss": output}
    return {str(name): value for name, value in found.items() if _is_term(value)}


def _is_term(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.numel() == 1 and not value.is_complex()
    return isinstance(value, int | float) and not isinstance(value, bool)


def named(optimizers: Iterable[torch.optim.Optimizer]) -> torch.optim.Optimizer | dict[str, torch.optim.Optimizer]:
    """One, or each by its place."""
    found = list(optimizers)
    return found[0] if len(found) == 1 else {f"optimizer_{i}": one for i, one in enumerate(found)}
