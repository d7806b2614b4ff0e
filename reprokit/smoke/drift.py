"""What the configured precision does to each module's output, beside the same step in float32.

Both runs begin in one state and draw the same random numbers, so what differs is rounding. Single values differ by some
units in the last place and mean nothing; mean and variance of an output are averages, in which honest rounding cancels
and a systematic error stays: an offset that eats the variance, a sum that is kept in too few bits, an overflow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import Any

import torch

from reprokit.failure import Kind
from reprokit.harness import Harness, named_modules
from reprokit.smoke.bench import Bench, eager, one_step
from reprokit.step import precision
from reprokit.step.case import Variant
from reprokit.step.variants import applied

TOLERANCE = 4  # in units of the type's epsilon: the healthy reference model drifts by 0.3 of one, its loss by 0.6
BASELINE = "float32"
CONSTANT = 1e-6  # of its size: what deviates by less has no variance to compare
_NARROW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """One call of a module, in numbers."""

    module: str
    dtype: torch.dtype
    mean: float
    variance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Drift:
    """How far the configured precision is from the baseline, at worst."""

    dtype: torch.dtype  # the configured one
    outputs: int  # that were compared
    mean: tuple[float, str]  # difference of means as a share of the output's size, and the module
    variance: tuple[float, str]  # difference of variances as a share of the baseline's
    loss: tuple[float, str]  # of a term, as a share of it
    first: str  # the first output, in order of time, that is beyond the tolerance; "" where none is

    @property
    def tolerance(self) -> float:
        return tolerance(self.dtype)

    @property
    def within(self) -> bool:
        return all(share <= self.tolerance for share, _ in (self.mean, self.variance, self.loss))


def tolerance(dtype: torch.dtype) -> float:
    """A share of what is compared."""
    return TOLERANCE * torch.finfo(dtype).eps


def measure(bench: Bench, batch: Any) -> Drift | None:
    """None where nothing in the step is narrower than float32. Raises what the step does."""
    until = Kind.NONFINITE_LOSS
    with _recorded(bench.harness) as narrow:
        losses = bench.step(batch, until=until).losses
    dtypes = {output.dtype for output in narrow} & set(_NARROW)
    if not dtypes:
        return None
    bench.rewind()
    with applied(bench.harness, Variant(dtype=BASELINE)) as wide, _recorded(wide) as full:
        baseline = one_step(wide, precision.cast(batch, BASELINE), until=until).losses
    return compare(max(dtypes, key=lambda dtype: torch.finfo(dtype).eps), (narrow, losses), (full, baseline))


Seen = tuple[list[Output], Mapping[str, float]]


def compare(dtype: torch.dtype, narrow: Seen, full: Seen) -> Drift:
    """The worst of each kind. Modules are matched by name and by the order of their calls."""
    pairs = [(ours, theirs) for ours, theirs in zip(narrow[0], full[0]) if ours.module == theirs.module]
    means = [(_share(ours.mean, theirs.mean, _size(theirs)), ours.module) for ours, theirs in pairs]
    variances = [(_of_variance(ours, theirs), ours.module) for ours, theirs in pairs]
    terms = [(_share(narrow[1][term], value, abs(value)), term) for term, value in full[1].items() if term in narrow[1]]
    mean, variance, loss = (max(found, default=(0.0, "")) for found in (means, variances, terms))
    beyond = (name for (share, name), (other, _) in zip(means, variances) if max(share, other) > tolerance(dtype))
    first = next(beyond, "")
    return Drift(dtype=dtype, outputs=len(pairs), mean=mean, variance=variance, loss=loss, first=first)


@contextmanager
def _recorded(harness: Harness) -> Iterator[list[Output]]:
    """Every floating output of every module within it, in order."""
    found: list[Output] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point() and output.numel():
            values = output.detach().float()
            variance = values.var(correction=0)
            found.append(Output(module=name, dtype=output.dtype, mean=float(values.mean()), variance=float(variance)))

    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, name=name: look(name, output))
        for name, module in named_modules(harness)
    ]
    try:
        with eager():
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def _size(output: Output) -> float:
    return sqrt(output.mean**2 + output.variance)


def _of_variance(ours: Output, theirs: Output) -> float:
    constant = sqrt(abs(theirs.variance)) <= CONSTANT * _size(theirs)
    return 0.0 if constant else _share(ours.variance, theirs.variance, theirs.variance)


def _share(ours: float, theirs: float, size: float) -> float:
    """Not finite in both is no drift: that has other names."""
    if not isfinite(theirs):
        return 0.0
    if not isfinite(ours):
        return float("inf")
    return abs(ours - theirs) / size if size else float(ours != theirs)
