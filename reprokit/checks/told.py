"""What checks observed, told to whoever listens: on success too, since a metric that slides is seen before it fails.

One line of JSON a check, on the logger "reprokit": at INFO where it passed, at WARNING where not. Whoever wants the
fields themselves takes `record.check`, or listens (the pytest plugin does, and JUnit then shows them).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from math import isfinite
from numbers import Integral
from pathlib import Path
from typing import Any

Fields = dict[str, Any]

log = logging.getLogger("reprokit")

_listeners: list[Callable[[Fields], None]] = []


def tell(fields: Mapping[str, object], *, passed: bool) -> None:
    """To the log and to all who listen."""
    strict: Fields = _strict(fields)
    log.log(logging.INFO if passed else logging.WARNING, "check %s", line(strict), extra={"check": strict})
    for listener in _listeners:
        listener(strict)


def line(fields: Fields) -> str:
    """Strict JSON on one line; numbers that JSON lacks are the strings "nan", "inf" and "-inf"."""
    return json.dumps(fields, allow_nan=False)


@contextmanager
def listening(listener: Callable[[Fields], None]) -> Iterator[None]:
    """Meanwhile it is given the fields of each check."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def commit() -> str:
    """The commit of the repository that holds the working directory, and whether files differ from it."""
    try:
        return _commit(Path.cwd())
    except FileNotFoundError:
        return "not known: the working directory is gone; give About(version=...)"


@cache
def _commit(folder: Path) -> str:
    from reprokit.capture.repository import GitError, Repository

    try:
        repository = Repository.find(folder)
        head = repository.commit() if repository else None
        if repository is None or head is None:
            return "not known: no commit here; give About(version=...)"
        changed = repository.run("status", "--porcelain", "--untracked-files=no").strip()
    except GitError as error:
        return f"not known: {error}"
    return f"{head[:12]}{' with changes' if changed else ''}"


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(part) for part in value]
    if value is None or isinstance(value, str | int):
        return value
    return int(value) if isinstance(value, Integral) else str(value)  # NumPy's integers; whatever else names a seed
