"""From the words of a command to what the gates look at: the build function, its config, the first batches.

A script's entrypoint is named from the root of its repository, since that is where a replay of an incident looks.
Nothing is kept of the loader but copies of its first batches, made with all generators seeded.
"""

from __future__ import annotations

import copy
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from reprokit import _yaml
from reprokit.capture.logs import one_line
from reprokit.capture.source import find_root
from reprokit.errors import BadInput, ReprokitError
from reprokit.harness import Harness
from reprokit.smoke.gate import LAPS, Subject
from reprokit.smoke.laps import copied
from reprokit.step import rng
from reprokit.step.load import load_entrypoint

WITHIN = 180.0  # seconds for the first batches: workers start, and open videos
T = TypeVar("T")
DEFAULT = "default_config"  # a function of the module that has `build`, for whoever gives no config


def opened(
    entrypoint: str, config: Path | None = None, *, seed: int = 0, out: Path | None = None, root: Path | None = None
) -> Subject:
    """Raises BadInput where there is no such function, no config, or nothing is built from it.

    root: where scripts and packages are, by default the working directory.
    """
    build, name = _loaded(entrypoint, (root or Path()).resolve())
    values = _defaults(build, entrypoint) if config is None else read_config(config)
    subject = Subject(build=build, config=values, entrypoint=name, batches=(), seed=seed, out=out)
    return _with_batches(subject, _built(subject))


def read_config(path: Path) -> Any:
    """Plain data of a YAML or a JSON file. Raises BadInput."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise BadInput(f"--config {path}: cannot be read ({why}); give a YAML or JSON file") from error
    try:
        found = json.loads(text) if path.suffix == ".json" else _yaml.read(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"--config {path}: not plain data ({one_line(error)}); give a YAML or JSON file") from error
    if found is None:
        raise BadInput(f"--config {path}: the file is empty; write the config that build takes, {{}} for none")
    return found


def _loaded(entrypoint: str, root: Path) -> tuple[Callable[[Any], Harness], str]:
    """The function, and what an incident calls it."""
    build = load_entrypoint(entrypoint, root)
    where, _, name = entrypoint.partition(":")
    if not where.endswith(".py"):
        return build, entrypoint
    script = (root / where).resolve()
    return build, f"{script.relative_to(find_root(script)).as_posix()}:{name}"


def _defaults(build: Callable[[Any], Harness], entrypoint: str) -> Any:
    default = getattr(sys.modules.get(build.__module__), DEFAULT, None)
    if not callable(default):
        raise BadInput(f"{entrypoint}: no --config, and its module has no {DEFAULT}(); give --config FILE")
    return default()


def _built(subject: Subject) -> Harness:
    try:
        return subject.harness()
    except ReprokitError:
        raise
    except (Exception, SystemExit) as error:
        raise BadInput(f"{subject.entrypoint}: build raised {one_line(error)}; does the config fit?") from error


def _with_batches(subject: Subject, harness: Harness) -> Subject:
    rng.seed(subject.seed)
    batches, times, why = _first(harness.loader)
    return replace(subject, batches=tuple(batches), no_batches=why, times=tuple(times))


def _first(loader: Any) -> tuple[list[Any], list[Mapping[str, Any]], str]:
    """Batches, what is told of their frames, and why there are none."""
    if loader is None:
        return [], [], "the harness has no loader"
    try:
        pairs = _in_time(lambda: [(copied(batch), copy.deepcopy(told)) for batch, told in islice(_timed(loader), LAPS)])
    except ReprokitError:
        raise
    except (Exception, SystemExit) as error:
        return [], [], f"the loader raised {one_line(error)}"
    if pairs is None:
        return [], [], f"the loader gave no {LAPS} batches in {WITHIN:g} s; num_workers=0 shows where"
    batches, times = [batch for batch, _ in pairs], [told for _, told in pairs if told is not None]
    return batches, times, "" if batches else "the loader gives no batch"


def _in_time(fetch: Callable[[], T]) -> T | None:
    """None where it takes too long: a worker that is stuck never says so. Such a thread ends with the process."""
    done = Future[T]()

    def work() -> None:
        try:
            done.set_result(fetch())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=work, name="reprokit loader", daemon=True).start()
    wait([done], WITHIN)
    return done.result() if done.done() else None


def _timed(loader: Any) -> Iterator[tuple[Any, Mapping[str, Any] | None]]:
    timed = getattr(loader, "timed", None)
    if not callable(timed):
        yield from ((batch, None) for batch in loader)
        return
    for pair in timed():
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Mapping)):
            raise BadInput(
                f"the loader's timed() yields a {type(pair).__name__}; expected a batch and a mapping of indices"
            )
        yield pair
