"""From an entrypoint to the function that builds a harness, without starting to train again.

A script that trains under no guard would train while it is loaded. Constructing a Recorder is the sign of that: it
calls `stop_if_loading`, which leaves the script at that point, and `build` is taken from what the module holds by then.
Packages that were archived with the script are imported from there, whatever lives on this machine under their names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from reprokit.errors import BadInput
from reprokit.harness import Harness

_loading: ContextVar[bool] = ContextVar("loading", default=False)


class _Stop(BaseException):
    """Leaves a script that began to train. Not an Exception: a script's own `except Exception` must not catch it."""


def stop_if_loading() -> None:
    """For the Recorder: leave the script if reprokit is only loading it."""
    if _loading.get():
        raise _Stop


def load_entrypoint(
    entrypoint: str, root: Path, paths: list[str] | None = None, packages: Path | None = None
) -> Callable[[Any], Harness]:
    """The build function named by "package.module:build" or "train.py:build", the script relative to `root`.

    paths: entries for `sys.path`, relative to `root`. packages: a folder of packages that win over all others of their
    names. Raises BadInput where it does not import or is no function.
    """
    where, _, name = entrypoint.partition(":")
    if not name or "<" in name:
        raise BadInput(f"{entrypoint}: no entrypoint; write package.module:function or script.py:function")
    script = (root / where) if where.endswith(".py") else None
    if packages is not None and packages.is_dir():
        _prefer(str(packages.resolve()))
    for path in reversed([*(paths or []), *([str(Path(where).parent)] if script else ["."])]):
        entry = str((root / path).resolve())
        if entry not in sys.path:
            sys.path.insert(0, entry)
    module = _import(entrypoint, where, script)
    build: Any = module
    for part in name.split("."):
        build = getattr(build, part, None)
    if not callable(build):
        sys.modules.pop(module.__name__, None)
        raise BadInput(
            f"{entrypoint}: {where} was loaded but has no function {name!r} at that point; define it at the top "
            "of the module, and keep training under `if __name__ == '__main__':`"
        )
    return build  # type: ignore[no-any-return]


def build_harness(build: Callable[[Any], Harness], entrypoint: str, config: Any) -> Harness:
    """Call it, and check what comes back."""
    harness = build(config)
    if not isinstance(harness, Harness):
        raise BadInput(f"{entrypoint}: build returned a {type(harness).__name__}; expected a reprokit.Harness")
    return harness


def _prefer(folder: str) -> None:
    """In `sys.path` too: for the parts of namespace packages, and for processes that user code spawns."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
        sys.meta_path.insert(0, _Archived(folder))


class _Archived(MetaPathFinder):
    """Asked first: the finder of an editable install may stand before `sys.path`, and leads to what lives now."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        inside = f"{self._folder}{os.sep}"
        entries = [self._folder] if path is None else [entry for entry in path if str(entry).startswith(inside)]
        spec = PathFinder.find_spec(name, entries, target)
        return spec if spec is not None and spec.origin is not None else None  # a namespace has parts elsewhere


def _import(entrypoint: str, where: str, script: Path | None) -> ModuleType:
    name = script.stem if script else where
    if script is None and where in sys.modules:
        return sys.modules[where]
    if script and not script.is_file():
        raise BadInput(f"{entrypoint}: there is no file {script}; name the script relative to the source root")
    try:
        spec = spec_from_file_location(name, script) if script else find_spec(where)
    except (ImportError, ValueError) as error:
        raise BadInput(
            f"{entrypoint}: {where} does not import ({error}); is it installed, or below the source root?"
        ) from error
    if spec is None or spec.loader is None:
        raise BadInput(f"{entrypoint}: there is no module {where}; is it installed, or below the source root?")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        _execute(entrypoint, where, spec.loader, module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _execute(entrypoint: str, where: str, loader: Any, module: ModuleType) -> None:
    token = _loading.set(True)
    try:
        loader.exec_module(module)
    except _Stop:
        pass
    except SystemExit as error:
        raise BadInput(
            f"{entrypoint}: {where} exits when it is loaded ({error}); put its work under `if __name__ == '__main__':`"
        ) from error
    except Exception as error:
        raise BadInput(
            f"{entrypoint}: {where} does not import ({type(error).__name__}: {error}); training on import? "
            "put it under `if __name__ == '__main__':`"
        ) from error
    finally:
        _loading.reset(token)
