"""The failing step once more, as variants, until one passes.

Each starts from where the step began, with its batch and its random numbers, and is judged by the bounds that the step
was judged by. First the step as it was: one that passes then is a failure that comes and goes, and nothing else has
helped. Then what costs training least: one module in float32, the first whose output went bad; with it the one that
goes bad then, and a third; all of them; gradients that are clipped; a smaller loss scale. What passes is kept: its
update stands, for this step alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reprokit import failure, tree
from reprokit.capture.begun import Begun
from reprokit.capture.logs import one_line
from reprokit.failure import Kind, Symptom
from reprokit.harness import Harness
from reprokit.step import detectors, flags
from reprokit.step.case import Ablation, Variant
from reprokit.step.detectors.view import Bound, Scaling
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.step.variants import Inapplicable, applied

CLIP = 1.0  # where nothing was clipped: what most training clips to
MODULES = 3  # in float32, before all are
SMALLER = 2.0**-8  # of the loss scale: what GradScaler does in 8 skips


@dataclass(frozen=True, kw_only=True, slots=True)
class Fallback:
    """What was tried at one step."""

    step: int
    tried: tuple[tuple[str, str], ...]  # variant, and what came of it: "passed", a failure, or why it cannot be
    helped: str | None  # the last of them, where it passed

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "tried": [list(pair) for pair in self.tried], "helped": self.helped}


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """What a variant that passed left."""

    result: Any  # what the step returned
    losses: Mapping[str, float]
    scaling: Scaling | None


def fall_back(
    harness: Harness,
    begun: Begun,
    symptoms: Sequence[Symptom],
    bounds: Mapping[Kind, Bound],
    restore: Callable[[], object],
) -> tuple[Fallback, Kept | None]:
    """Try until one passes; the harness is then as that has left it, and else in disorder. restore: the harness as it
    was when the step began, and the generators. Never raises what the step does."""
    tried: list[tuple[str, str]] = []
    blamed: list[str] = []
    for variant in _ladder(harness, blamed):
        restore()
        outcome, kept = _attempt(harness, begun, variant, symptoms, bounds, blamed)
        tried.append((variant.name, outcome))
        if kept is not None:
            return Fallback(step=begun.step, tried=tuple(tried), helped=variant.name), kept
    return Fallback(step=begun.step, tried=tuple(tried), helped=None), None


def _ladder(harness: Harness, blamed: Sequence[str]) -> Iterator[Variant]:
    """blamed: modules whose output was bad in the one before, in the order in which they ran."""
    yield Variant(name="the same once more")
    modules: dict[str, Ablation] = {}
    while blamed and blamed[0] not in modules and len(modules) < MODULES:
        modules = {**modules, blamed[0]: "float32"}
        yield Variant(name=f"float32 for {', '.join(modules)}", modules=modules)
    yield Variant(name="float32 for all", harness={"autocast": None})
    clip = CLIP if harness.clip_grad_norm is None else harness.clip_grad_norm / 10
    yield Variant(name=f"clip_grad_norm={clip:g}", harness={"clip_grad_norm": clip})
    if harness.scaler and harness.scaler.is_enabled():
        scale = harness.scaler.get_scale()
        for smaller in sorted({scale * SMALLER, min(1.0, scale)}, reverse=True):
            yield Variant(name=f"loss scale {smaller:g}", harness={"loss_scale": smaller})


def _attempt(
    harness: Harness,
    begun: Begun,
    variant: Variant,
    symptoms: Sequence[Symptom],
    bounds: Mapping[Kind, Bound],
    blamed: list[str],
) -> tuple[str, Kept | None]:
    if "clip_grad_norm" in variant.harness:  # a large gradient is what it is for
        bounds = {**bounds, Kind.GRAD_SPIKE: (None, None)}
        symptoms = [one for one in symptoms if one.kind is not Kind.GRAD_SPIKE]
    watching = detectors.of_one_step(symptoms, bounds, begun.loop.get("skips", 0), activations=not variant.harness)
    batch = tree.unpack(begun.kept.packed)
    try:
        with (
            flags.entered(begun.flags),
            applied(harness, variant) as changed,
            Probe(changed, watching, batch) as probe,
        ):
            result = run(changed, batch, probe, micro=begun.loop["micro"])
    except Inapplicable as reason:
        return str(reason), None
    except Exception as error:
        return one_line(error), None
    if signature := failure.first(probe.symptoms):
        blamed[:] = probe.symptoms[0].evidence.get("activations", {}).get("first", [])
        return f"{signature.kind} at {signature.where}", None
    return "passed", Kept(result=result, losses=probe.losses, scaling=probe.scaling)
