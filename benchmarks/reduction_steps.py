"""What a whole reduction costs, in steps of the reference model.

A black frame in one view of one sample is 0/0 under per-frame standardisation. The incident is captured and reduced as
a user would: the checks of isolation, shape twins, the closing pass and what is guilty are all in the price. For all
tools, a question that needs no backward pass is a third of a step.

ddmin gets the same case twice. First as a list of cells b x v x t, of which those that go are healed with the donor's
content: what can be asked about a tensor without knowing its axes. Then axis by axis, by dropping, which is cheaper and
says less: no twin shows that the shape is not to blame, and nothing is said about guilt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from reduction_peers import ddmin

from reprokit import pipeline, reducing
from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.progress import Silence
from reprokit.reduce.oracle import FORWARD
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker
from reprokit.video.train import build, default_config

PLACEMENTS = 3  # each takes two processes and tens of forward passes
AXES = ("b", "v", "t")

Place = tuple[int, ...]
Evaluate = Callable[[Case], Status]


def steps() -> Iterator[dict[str, Any]]:
    config = default_config()
    config["video"]["pad_last"] = False
    config["model"]["depth"] = 2
    healthy, batch = (batch for batch, _ in zip(build(config).loader or (), range(2)))
    random = Random("steps")
    runs = [_run(config, healthy, batch, _place(batch, random)) for _ in range(PLACEMENTS)]
    names = "whole reduction, steps", "ddmin, cells healed, steps", "ddmin, axis by axis without twins, steps"
    for name, values in zip(names, zip(*runs)):
        yield {"name": name, "value": median(values), "low": min(values), "high": max(values), "unit": "whole steps"}


def _place(batch: Mapping[str, Any], random: Random) -> Place:
    return tuple(random.randrange(size) for size in batch["local"].shape[:3])


def _run(config: dict[str, Any], healthy: Any, batch: Any, place: Place) -> tuple[float, float, float]:
    with TemporaryDirectory() as folder:
        incident = _capture(config, Path(folder), healthy, batch, place)
        found = reducing.reduce(
            pipeline.Subject(incident=incident),
            Path(folder) / "reduced",
            pipeline.Options(engine="process", n=1),
            Silence(),
        )
        assert tuple(found.axes[axis].kept for axis in AXES) == tuple((index,) for index in place)
        with Worker(incident) as worker:
            evaluate = lambda case: worker.evaluate(case, "restore").status
            return found.step_equivalents, _cells(incident, evaluate, place), _axes(incident, evaluate, place)


def _capture(config: dict[str, Any], folder: Path, healthy: Any, batch: Any, place: Place) -> Incident:
    local = batch["local"].clone()
    local[place] = 0
    try:
        with Recorder(build(config), build=build, config=config, out=folder / "incidents", rehearse=False) as recorder:
            recorder.step(healthy)
            recorder.step({**batch, "local": local})
    except IncidentCaptured as failure:
        return Incident.open(failure.path)
    raise AssertionError("a black frame did not fail")


def _cells(incident: Incident, evaluate: Evaluate, place: Place) -> float:
    """Healing keeps the shape: each question is a forward pass of the whole batch."""
    sizes = incident.batch()["local"].shape[:3]
    cells = list(product(*map(range, sizes)))
    asked: dict[tuple[int, ...], bool] = {}

    def fails(kept: Sequence[int]) -> bool:
        gone = [cells[number] for number in range(len(cells)) if number not in frozenset(kept)]
        heal = tuple({axis: (index,) for axis, index in zip(AXES, cell)} for cell in gone)
        return _once(asked, kept, len(cells), lambda: evaluate(_case(incident, heal=heal)))

    assert [cells[number] for number in ddmin(len(cells), fails)] == [place]
    return len(asked) * FORWARD


def _axes(incident: Incident, evaluate: Evaluate, place: Place) -> float:
    batch, layout = incident.batch(), Layout.parse(incident.manifest.layout)
    keep: dict[str, tuple[int, ...]] = {}
    cost = 0.0
    for axis in AXES:
        asked: dict[tuple[int, ...], bool] = {}

        def fails(kept: Sequence[int], axis: str = axis, asked: dict[tuple[int, ...], bool] = asked) -> bool:
            case = _case(incident, keep=keep | {axis: tuple(kept)})
            return _once(asked, kept, layout.sizes(batch)[axis], lambda: evaluate(case))

        found = tuple(ddmin(layout.sizes(batch)[axis], fails))
        cost += sum(_elements(layout.select(batch, keep | {axis: kept})) for kept in asked)
        keep[axis] = found
    assert tuple(keep.values()) == tuple((index,) for index in place)
    return cost / _elements(batch) * FORWARD


def _once(asked: dict[tuple[int, ...], bool], kept: Sequence[int], n: int, evaluate: Callable[[], Status]) -> bool:
    """All fail and none pass, as is known; every other question is asked once."""
    question = tuple(kept)
    if len(question) in (0, n):
        return bool(question)
    if question not in asked:
        asked[question] = evaluate() is Status.FAIL
    return asked[question]


def _case(incident: Incident, **change: Any) -> Case:
    return Case(incident=incident.path, thorough=False, **change)


def _elements(batch: Mapping[str, Any]) -> int:
    return sum(value.numel() for value in batch.values() if isinstance(value, torch.Tensor))
