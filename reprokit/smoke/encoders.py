"""Video encoders in a harness, known by their interface: what a gate can ask of them beside what any module answers.

An encoder here is a module that has `patch_size`, `tubelet_size` and `num_patches`, takes clips [B, C, T, H, W] and
gives tokens [B, 1 + N, D], the first of which is [CLS] and the others in order of time. Attributes may be properties of
somebody's code, which raise, or hold what is no number: then a gate cannot ask, and says which attribute it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from reprokit.capture.logs import one_line
from reprokit.harness import Harness, named_modules

_ATTRIBUTES = ("patch_size", "tubelet_size", "num_patches")
_LONGEST = 100  # characters of a value that are shown


def encoders(harness: Harness) -> dict[str, Any]:
    """Those modules by name; empty where there is none."""
    return {name: module for name, module in named_modules(harness) if not list(_oddities(module))}


def no_encoder(harness: Harness) -> str:
    """Why there is none: the first module that would be one but for an attribute, else that there is no such."""
    for name, module in named_modules(harness):
        odd = list(_oddities(module))
        if odd and all(_has(module, attribute) for attribute in _ATTRIBUTES):
            return f"{name}.{odd[0]}; a whole number above 0 is expected"
    return f"no module has {', '.join(_ATTRIBUTES[:-1])} and {_ATTRIBUTES[-1]}, by which an encoder of clips is known"


def drop_rate(encoder: nn.Module) -> tuple[float, str]:
    """Of its tokens, and what is odd about it; 0 where it does not say."""
    try:
        rate = float(getattr(encoder, "token_drop_rate", None) or 0.0)
    except Exception as error:
        return 0.0, f"token_drop_rate: {one_line(error)[:_LONGEST]}"
    return (rate, "") if 0 <= rate <= 1 else (0.0, f"token_drop_rate is {rate}; a number from 0 to 1 is expected")


def read(module: nn.Module, attribute: str, default: Any = None) -> Any:
    """What it says of itself; the default where it says nothing, or raises."""
    try:
        return getattr(module, attribute, default)
    except Exception:
        return default


def _oddities(module: nn.Module) -> Iterator[str]:
    """What keeps it from being an encoder."""
    for attribute in _ATTRIBUTES:
        try:
            value = getattr(module, attribute)
        except Exception as error:
            yield f"{attribute} raises {one_line(error)[:_LONGEST]}"
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            yield f"{attribute} is {_shown(value)}"


def _shown(value: Any) -> str:
    try:
        return repr(value)[:_LONGEST]
    except Exception:
        return f"a {type(value).__name__}"


def _has(module: nn.Module, attribute: str) -> bool:
    """A property that raises AttributeError is there all the same."""
    try:
        return hasattr(type(module), attribute) or hasattr(module, attribute)
    except Exception:
        return True
