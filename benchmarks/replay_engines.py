"""Attempts at one incident in containers and in forks, beside `docker run` in a loop and one cold attempt.

The incident is a step of the reference model at the demo's size whose loss is NaN, captured here; the image is built
from its pins. The loop is what a person would write: `docker run` of the same worker with the same mounts, one after
the other. Ours makes as many at once as cores and memory allow. Forks are timed with all that they need: from the
making of the engine, through the import of torch in its one container, to its end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from recorder_pairs import in_turn, ratio, seconds

import reprokit
from reprokit.incident import Incident
from reprokit.replay import image
from reprokit.replay.container import INCIDENT, OUT, PACKAGE, WORKER
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.docker import Docker
from reprokit.replay.engines.fork import Fork
from reprokit.replay.machine import describe
from reprokit.step.case import Case

FORKED = 20
TRAIN = """
import torch
import reprokit
from reprokit.video.train import build, default_config

torch.manual_seed(0)
config = default_config()
pixels = lambda *shape: torch.randint(256, (4, *shape), dtype=torch.uint8)
batch = lambda: {"global": pixels(8, 3, 64, 64), "local": pixels(4, 8, 3, 32, 32), "source": ["a", "b", "c", "d"]}
with reprokit.Recorder(build(config), build=build, config=config, out="incidents", rehearse=False) as recorder:
    recorder.step(batch())
    bad = batch()
    bad["global"][2, 6:] = 0  # a black frame has no deviation
    recorder.step(bad)
"""


def contained(pairs: int, attempts: int) -> Iterator[dict[str, Any]]:
    with _incident() as incident, Docker(image.ensure(incident.requirements())) as engine:
        case = Case(incident=incident.path)
        took = in_turn(
            pairs,
            {
                "loop": lambda: _loop(case, engine.image, attempts),
                "engine": lambda: _made(engine, case, attempts),
            },
        )
    yield ratio("container each / docker run loop, rate", took["loop"], took["engine"])
    yield seconds(f"{attempts} attempts, a container each, {engine.capacity} at once", took["engine"])
    yield seconds(f"{attempts} attempts, docker run in a loop", took["loop"])


def forked(pairs: int, attempts: int) -> Iterator[dict[str, Any]]:
    """attempts: not ours to choose, the row is of twenty."""
    with _incident() as incident:
        case, tag = Case(incident=incident.path), image.ensure(incident.requirements())
        steps: list[float] = []

        def cold() -> None:
            with Docker(tag, jobs=1) as engine:
                steps.append(engine.submit(case).result().seconds)

        def forks() -> None:
            with Fork(incident, image=tag) as engine:
                _made(engine, case, FORKED)

        took = in_turn(pairs, {"cold": cold, "forks": forks})
    step = median(steps)
    beside = [2 * one + FORKED * step for one in took["cold"]]
    yield ratio("20 forked / (2 cold + 20 steps), time", took["forks"], beside)
    yield seconds("20 attempts, forked in one container", took["forks"])
    yield seconds("one cold attempt in a container", took["cold"])
    yield seconds("its step", steps[1:])


@contextmanager
def _incident() -> Iterator[Incident]:
    with tempfile.TemporaryDirectory(prefix="reprokit-replay-") as scratch:
        folder = Path(scratch)
        (folder / "train.py").write_text(TRAIN)
        here = str(Path(reprokit.__file__).parents[1])
        subprocess.run([sys.executable, "train.py"], cwd=folder, env={**os.environ, "PYTHONPATH": here}, stderr=-3)
        [found] = (folder / "incidents").glob("*/incident.json")
        yield Incident.open(found.parent)


def _made(engine: Engine, case: Case, attempts: int) -> None:
    outcomes = [future.result() for future in [engine.submit(case) for _ in range(attempts)]]
    assert {outcome.status for outcome in outcomes} == {"FAIL"}, outcomes[0].detail


def _loop(case: Case, tag: str, attempts: int) -> None:
    package = str(Path(reprokit.__file__).parent)
    variables = {**describe(case).environment, "PYTHONPATH": PACKAGE.rpartition("/")[0]}
    for _ in range(attempts):
        with tempfile.TemporaryDirectory(prefix="reprokit-loop-") as out:
            request = json.dumps(replace(case, incident=Path(INCIDENT)).to_json())
            (Path(out) / "case.json").write_text(request)
            mounts = (f"{case.incident}:{INCIDENT}:ro", f"{package}:{PACKAGE}:ro", f"{out}:{OUT}")
            subprocess.run(
                ["docker", "run", "--rm", "--network", "none", "--user", f"{os.getuid()}:{os.getgid()}"]
                + [word for mount in mounts for word in ("-v", mount)]
                + [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
                + [tag, *WORKER],
                check=True,
                stderr=-3,
            )
            assert json.loads((Path(out) / "outcome.json").read_text())["status"] == "FAIL"
