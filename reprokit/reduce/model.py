"""What can be tried with the model, the loop and the config, beside the batch: plain data, known before the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit.reduce.asking import Asking
from reprokit.reduce.configs import Difference, differences, smallest_difference, works
from reprokit.reduce.variants import (
    Ablations,
    Sound,
    ablations,
    knobs,
    lower,
    needed_modules,
    simpler_loop,
    trained_modules,
)
from reprokit.step.case import Case, Variant

_PRECISE = Variant(name="dtype=float64", dtype="float64")  # a failure that stays has nothing to do with precision


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """`knobs`: lower values, one variant each. The rest is empty where nobody asked for it."""

    knobs: tuple[Variant, ...] = ()
    loop: tuple[Variant, ...] = ()
    modules: Ablations | None = None
    config: Any = None
    baseline: Any = None  # a config with which the step does not fail

    @classmethod
    def of(cls, description: Mapping[str, Any], config: Any, *, modules: bool, baseline: Any = None) -> Model:
        """description: what a worker tells of the harness."""
        return cls(
            knobs=tuple(knobs(config, description["knobs"])),
            loop=(*simpler_loop(description["harness"]), _PRECISE) if modules else (),
            modules=ablations(description["modules"], description["parameters"]) if modules else None,
            config=config,
            baseline=baseline,
        )

    def simplest(self, base: Case, sound: Sound) -> Asking[Variant]:
        """The base's variant with all changes that still fail."""
        variant = yield from lower(base, (*self.knobs, *self.loop), sound)
        if self.modules and not variant.config:  # another config may have other modules
            base = replace(base, variant=variant)
            base = replace(base, variant=(yield from needed_modules(base, self.modules, sound)))
            variant = yield from trained_modules(base, self.modules, sound)
            outcome = yield replace(base, variant=variant)  # known: it fails
            used = {name: how for name, how in variant.modules.items() if name not in outcome.unused}
            variant = replace(variant, modules=used)  # what never runs is no finding
        return variant

    def checked(self, base: Case) -> Asking[None]:
        """Raises BadInput where the step does not pass with the baseline: to be known before a search, not after it."""
        if self.baseline is not None:
            yield from works(base, self.config, self.baseline)

    def needed(self, base: Case) -> Asking[tuple[Difference, ...]]:
        """Of the differences to the baseline, those that bring the failure. Raises BadInput."""
        return (yield from smallest_difference(base, self.config, self.baseline))

    def told(self, kept: Sequence[Difference]) -> dict[str, Any]:
        """In JSON."""
        every = differences(self.config, self.baseline)
        return {"differences": [one.to_json() for one in every], "kept": [one.key for one in kept]}


NO_MODEL = Model()
