"""From the words of a command to what the gates look at: the build function, its config, the first batches.

A script's entrypoint is named from the root of its repository, since that is where a replay of an incident looks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from reprokit import _yaml
from reprokit.capture.logs import one_line
from reprokit.capture.source import find_root
from reprokit.errors import BadInput, ReprokitError
from reprokit.harness import Harness
from reprokit.smoke import batches
from reprokit.smoke.clock import LIMIT, Clock, Overdue
from reprokit.smoke.gate import OPENING, Subject, hangs
from reprokit.step.load import load_entrypoint

DEFAULT = "default_config"  # a function of the module that has `build`, for whoever gives no config


def opened(
    entrypoint: str,
    config: Path | None = None,
    *,
    seed: int = 0,
    out: Path | None = None,
    root: Path | None = None,
    clock: Clock | None = None,
) -> Subject:
    """Raises BadInput where there is no such function, no config, or nothing is built from it.

    root: where scripts and packages are, by default the working directory. clock: of what is built and run; by default
    nothing is interrupted.
    """
    clock = clock or Clock()
    try:
        with clock.watching():
            build, name = _loaded(entrypoint, (root or Path()).resolve())
            values = _defaults(build, entrypoint) if config is None else read_config(config)
    except Overdue as overdue:
        raise BadInput(
            f"{entrypoint}: loading it: {overdue}; put its work under `if __name__ == '__main__':`, or allow more with "
            "--hang-after"
        ) from overdue
    subject = Subject(
        build=build,
        config=values,
        entrypoint=name,
        batches=(),
        seed=seed,
        out=out,
        clock=clock,
        command=_command(entrypoint, config, seed, clock),
    )
    try:
        with clock.watching():
            harness = _built(subject)
    except Overdue as overdue:
        return replace(subject, no_batches="build hangs", opening=(hangs(OPENING, overdue, subject.roots),))
    return batches.taken(subject, harness.loader)


def read_config(path: Path) -> Any:
    """Plain data of a YAML or a JSON file. Raises BadInput."""
    try:
        if path.exists() and not path.is_file():  # a pipe that nobody writes to would be waited for
            raise BadInput(f"--config {path}: not a regular file; give a YAML or JSON file")
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


def _command(entrypoint: str, config: Path | None, seed: int, clock: Clock) -> tuple[str, ...]:
    """As somebody may type it where this one was typed."""
    words = ["reprokit", "smoke", entrypoint]
    words += [] if config is None else ["--config", str(config)]
    words += ["--seed", str(seed)] if seed else []
    words += [] if clock.seconds in (None, LIMIT) else ["--hang-after", f"{clock.seconds:g}"]
    return tuple(words)


def _built(subject: Subject) -> Harness:
    try:
        return subject.harness()
    except (ReprokitError, KeyboardInterrupt, Overdue):
        raise
    except BaseException as error:
        raise BadInput(f"{subject.entrypoint}: build raised {one_line(error)}; does the config fit?") from error
