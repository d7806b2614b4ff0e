"""A clock that moves only when somebody looks at it, so that a step sees the same times on every attempt.

A step that reads the time has an input that no seed controls. Here every look at one of Python's clocks moves a time
of our own by the same tick, and a sleep moves it by what it sleeps: what the step reads then depends on how often it
looks, and on nothing else. Whether a failure comes with one tick and stays away with another says that the clock
decides about it. Each thread has a time of its own, from the same start: what other threads look at, how often and
when, moves nothing here.

It holds for the functions of the module `time`, also where the user's modules imported them by name. What asks the
operating system in another way (`datetime.now`, a library in C) reads the real time, and so does reprokit itself.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_SECONDS = ("time", "monotonic", "perf_counter")
_START = 1_700_000_000 * 10**9  # nanoseconds at the first look: a time that a check of dates accepts
_OURS = ("reprokit", "torch", "numpy")  # who waits for each other by real time


class _Clock(threading.local):
    now = _START


@contextmanager
def ticking(tick: float) -> Iterator[None]:
    """Within it each look takes `tick` seconds."""
    clock, step = _Clock(), round(tick * 1e9)

    def nanoseconds() -> int:
        clock.now += step
        return clock.now

    def sleep(seconds: float) -> None:
        clock.now += round(seconds * 1e9)
        really(seconds)  # others may need that time

    really = time.sleep
    replaced = {**_replacements(nanoseconds), really: sleep}
    places = [(module, name, value) for module in _modules() for name, value in _held(module, replaced)]
    for module, name, value in places:
        module.__dict__[name] = replaced[value]
    try:
        yield
    finally:
        for module, name, value in places:
            module.__dict__[name] = value


def _replacements(nanoseconds: Callable[[], int]) -> dict[Any, Callable[..., Any]]:
    """By the function that is replaced."""
    seconds = {getattr(time, name): lambda: nanoseconds() / 1e9 for name in _SECONDS}
    return seconds | {getattr(time, f"{name}_ns"): nanoseconds for name in _SECONDS}


def _modules() -> list[ModuleType]:
    """`time` itself, and modules that are nobody's machinery."""
    others = {*_OURS, *sys.stdlib_module_names} - {"__main__"}
    here = sys.modules.copy()  # at once, as a list of its items is not: another thread may import meanwhile
    named = [module for name, module in here.items() if name.partition(".")[0] not in others]
    return [time, *(module for module in named if isinstance(module, ModuleType))]


def _held(module: ModuleType, replaced: dict[Any, Any]) -> list[tuple[str, Any]]:
    """Names under which it has one of these functions."""
    builtin = type(time.time)
    return [(name, one) for name, one in vars(module).copy().items() if type(one) is builtin and one in replaced]
