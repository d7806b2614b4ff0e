"""Features that no longer tell samples apart.

A self-supervised loss can reach its minimum by giving every sample the same features. Two numbers show it, and neither
depends on the features' scale: how far they deviate from their mean as a share of their size, and in how many
dimensions they vary (the participation ratio of the covariance's spectrum, (sum of eigenvalues)^2 / sum of their
squares, which a trace and a Frobenius norm give without any eigenvalue).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch

from reprokit.failure import Kind, Symptom
from reprokit.harness import Harness, autocasting, named_modules
from reprokit.step import rng
from reprokit.step.detectors.view import Spectrum, StepView

_ENOUGH = 8  # samples before dimensions are counted: few points lie near a line by chance

log = logging.getLogger("reprokit")


class Collapse:
    """The features of all samples are one point, or lie on one line. Costs a forward pass of the features every so many
    steps, with a copy of the buffers; they are put back like all generators, so training does not notice."""

    def __init__(self, every: int = 1, deviation: float | None = None, dimensions: float | None = None) -> None:
        self._every, self._steps = every, 0
        self._deviation, self._dimensions = deviation, dimensions

    @property
    def due(self) -> bool:
        """Whether it wants to see the features of the step that begins."""
        return (self._steps + 1) % self._every == 0

    def look(self, view: StepView) -> Symptom | None:
        self._steps += 1
        seen = view.spectrum
        if seen is None or seen.samples < 2 or not isfinite(seen.deviation):
            return None
        if self._deviation is not None and seen.deviation < self._deviation:
            return _collapse("deviation", seen.deviation, self._deviation, seen)
        if self._dimensions is not None and seen.samples >= _ENOUGH and seen.dimensions < self._dimensions:
            return _collapse("dimensions", seen.dimensions, self._dimensions, seen)
        return None


def _collapse(measure: str, value: float, threshold: float, seen: Spectrum) -> Symptom:
    evidence = {"measure": measure, "value": value, "threshold": threshold, "samples": seen.samples}
    return Symptom(kind=Kind.COLLAPSE, where="features", evidence=evidence)


@dataclass(frozen=True, slots=True)
class Moments:
    """Of features, where they are: nothing is read from the device before `spectrum` is asked for."""

    samples: int
    numbers: torch.Tensor  # trace of the Gram matrix, its squares, squares of the features: [3], float64

    def spectrum(self) -> Spectrum:
        return spectrum_of(self.samples, self.numbers.tolist())


def look_at_features(harness: Harness, batch: Any) -> Moments | None:
    """Of what the harness takes for a batch's features; None where it gives none, or they cannot be had."""
    if harness.features is None:
        return None
    try:
        with _untouched(harness), torch.no_grad(), autocasting(harness):
            return moments(harness.features(batch))
    except Exception as trouble:  # of code that training does not run: not its failure
        log.warning("no look at the features: features(batch) raised %s: %s", type(trouble).__name__, trouble)
        return None


def moments(features: torch.Tensor) -> Moments:
    """Of features whose last axis is the feature; all others count as samples."""
    points = features.detach().double().reshape(-1, features.shape[-1] if features.ndim > 1 else 1)
    centred = points - points.mean(0)
    gram = centred @ centred.T if len(points) <= points.shape[1] else centred.T @ centred
    return Moments(len(points), torch.stack([gram.trace(), gram.square().sum(), points.square().sum()]))


def spectrum_of(samples: int, numbers: Sequence[float]) -> Spectrum:
    """From the numbers of `Moments`."""
    total, squares, size = numbers
    deviation = sqrt(total / size) if size else 0.0
    return Spectrum(samples=samples, deviation=deviation, dimensions=total * total / squares if squares else 0.0)


@contextmanager
def _untouched(harness: Harness) -> Iterator[None]:
    """Within it a forward pass may draw random numbers and move buffers; both are as before afterwards."""
    generators = rng.take()
    own = {key: one.get_state() for key, one in harness.extra_state.items() if isinstance(one, torch.Generator)}
    held = [(m._buffers, name, b, b.clone()) for _, m in named_modules(harness) for name, b in _buffers(m)]
    try:
        yield
    finally:
        for holder, name, buffer, copy in held:
            buffer.data.copy_(copy)
            holder[name] = buffer
        for key, state in own.items():
            harness.extra_state[key].set_state(state)
        rng.put(generators)


def _buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]
