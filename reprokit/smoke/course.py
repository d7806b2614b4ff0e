"""A short training on one batch, with the same random numbers in every step.

The generators are put back before each step, so that the steps see one fixed problem: the same tokens are dropped, and
a regulariser tests the same directions. A loss that moves is then one that learning moves, and a model that learns
nothing gives a flat line, not a noisy one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from reprokit.failure import Symptom
from reprokit.harness import Harness
from reprokit.smoke.bench import update
from reprokit.smoke.doors import Doors, rows
from reprokit.step import rng


@dataclass(kw_only=True, slots=True)
class Course:
    """What the steps showed, up to the first that was not finite."""

    losses: list[Mapping[str, float]] = field(default_factory=list)  # terms, a step
    grad_norms: list[float | None] = field(default_factory=list)  # before clipping; None where nobody saw it
    first: dict[str, torch.Tensor] = field(default_factory=dict)  # features of each module in the first step
    last: dict[str, torch.Tensor] = field(default_factory=dict)  # and in the last one
    spread: dict[str, list[float]] = field(default_factory=dict)  # of those features, from their mean, a step
    symptom: Symptom | None = None  # what was not finite, in the last of these steps

    @property
    def total(self) -> list[float]:
        return [terms["loss"] for terms in self.losses]


def take(harness: Harness, batch: Any, steps: int, seed: int) -> Course:
    """Train so many steps. Raises what a step does."""
    course = Course()
    generators = {key: one for key, one in harness.extra_state.items() if isinstance(one, torch.Generator)}
    own = {key: one.get_state() for key, one in generators.items()}
    for number in range(steps):
        for key, generator in generators.items():
            generator.set_state(own[key])
        rng.seed(seed)
        with Doors(harness) as doors:
            probe = update(harness, batch)
        course.losses.append(dict(probe.losses))
        course.grad_norms.append(probe.grad_norm)
        seen = {name: rows(harness, call) for name, call in doors.first().items()}
        course.last = {name: found for name, found in seen.items() if found is not None}
        course.first = course.last if number == 0 else course.first
        for name, found in course.last.items():
            course.spread.setdefault(name, []).append(spread(found))
        if probe.symptoms:
            course.symptom = probe.symptoms[0]
            break
    return course


def spread(rows: torch.Tensor) -> float:
    """How far a row is from the mean of all: the root of the mean square."""
    centred = rows.float() - rows.float().mean(0)
    return float(centred.square().sum(1).mean().sqrt())
