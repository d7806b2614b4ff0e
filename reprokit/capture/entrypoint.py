"""The name by which a replay finds the user's build function again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reprokit.capture.source import find_root
from reprokit.errors import BadInput


def name_of(build: Callable[..., Any], given: str | None = None) -> tuple[str, Path]:
    """The entrypoint ("package.module:build" or "train.py:build", relative to the source root) and the file it is in.

    Raises BadInput for a function that no other process can import: a local one, a lambda, one of a notebook.
    """
    name = getattr(build, "__qualname__", "")
    if not name:
        raise BadInput(f"Recorder: build is a {type(build).__name__}; hand over a function that is defined in a module")
    if "<locals>" in name or "<lambda>" in name:
        raise BadInput(
            f"Recorder: build is {name}, which no other process can import; define it at the top of a module"
        )
    module = sys.modules.get(build.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        raise BadInput(
            f"Recorder: build is defined in {build.__module__}, which has no file (a notebook or a prompt?), so no "
            "replay can import it; move it into a module beside, and import it from there"
        )
    path = Path(file).resolve()
    if given:
        return given, path
    if build.__module__ != "__main__":
        return f"{build.__module__}:{name}", path
    spec = getattr(module, "__spec__", None)  # set by `python -m package.module`
    if spec is not None and spec.name not in ("__main__", None):
        return f"{spec.name.removesuffix('.__main__')}:{name}", path
    return f"{path.relative_to(find_root(path)).as_posix()}:{name}", path
