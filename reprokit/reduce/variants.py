"""A simpler way of running the step that still fails: lower knobs, a plainer loop, fewer modules.

Each is a search like those along the axes of a batch: it yields the case that it wants to know about, is sent the
outcome, and runs nothing. A variant that still fails means something only under the donor's rule: healthy content must
pass in its place, for a model without its blocks may fail for a reason of its own. That rule is `twin_passes`; a caller
with another one, or with no donor, hands over that.

What is *needed* is found by taking away all else: a block that can be an identity while the step still fails is not.
Where the model refuses to run without a module, the module counts as needed: for the shapes, if not for the failure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit.reduce.asking import Asking, Indices, through
from reprokit.reduce.search import minimal
from reprokit.step.case import Ablation, Case, Variant
from reprokit.step.outcome import Status

Sound = Callable[[Case], Asking[bool]]

_SQUARE = 2  # axes of a weight from which on the first two are output and input


@dataclass(frozen=True, kw_only=True, slots=True)
class Ablations:
    """Names of modules by what can be tried with them."""

    blocks: tuple[tuple[str, ...], ...]  # repeated ones, in order: sets of siblings with equal insides, outermost first
    leaves: tuple[str, ...]  # without children, as far as their shapes let an input pass through
    trained: tuple[str, ...]  # with parameters of their own


def twin_passes(case: Case) -> Asking[bool]:
    """The donor's content passes in this case's place."""
    outcome = yield replace(case, heal=({},), values={}, stack=())
    return outcome.status is Status.PASS


def unasked(case: Case) -> Asking[bool]:
    """For who has no donor, or one that fails as well: nothing can be told."""
    yield from ()
    return True


def combined(one: Variant, other: Variant) -> Variant:
    """Both changes; where they meet, the second."""
    return Variant(
        name=" + ".join(filter(None, (one.name, other.name))),
        config={**one.config, **other.config},
        whole_config=one.whole_config if other.whole_config is None else other.whole_config,
        env={**one.env, **other.env},
        flags={**one.flags, **other.flags},
        dtype=other.dtype or one.dtype,
        modules={**one.modules, **other.modules},
        harness={**one.harness, **other.harness},
        clock=one.clock if other.clock is None else other.clock,
    )


def lower(base: Case, variants: Iterable[Variant], sound: Sound = twin_passes) -> Asking[Variant]:
    """Greedily, in their order: the base's variant with all that still fail on top of each other.

    A candidate that changes nothing but what an accepted one has changed is not asked: of one knob's values the first
    that fails stands.
    """
    accepted, settled = base.variant, set[tuple[str, str]]()
    for variant in variants:
        if (changes := _changes(variant)) <= settled:
            continue
        candidate = combined(accepted, variant)
        if (yield from _fails(replace(base, variant=candidate), sound)):
            accepted, settled = candidate, settled | changes
    return accepted


def knobs(config: Any, values: Mapping[str, Sequence[Any]]) -> list[Variant]:
    """A variant for each lower value of each knob, the lowest first; the knob that can go down most comes first.

    Values that are no numbers are taken in the order in which the harness gives them. A key that the config does not
    have gives variants all the same: they are INVALID, and say why.
    """
    now = {key: _value(config, key) for key in values}
    lowered = {key: _lower(now[key], some) for key, some in values.items()}
    order = sorted((key for key in lowered if lowered[key]), key=lambda key: _share(now[key], lowered[key][0]))
    return [Variant(name=f"{key}={value}", config={key: value}) for key in order for value in lowered[key]]


def simpler_loop(harness: Mapping[str, Any]) -> list[Variant]:
    """Without what the loop does around the step, as far as it does it. `harness`: of a worker's description."""
    plain = {"autocast": None, "scaler": None, "clip_grad_norm": None, "accumulate": 1}
    used = [
        field
        for field, value in plain.items()
        if harness[field] not in (value, False) and (harness["automatic_optimization"] or field == "scaler")
    ]
    return [Variant(name=f"{field}={plain[field]}", harness={field: plain[field]}) for field in used]


def ablations(modules: Sequence[str], parameters: Mapping[str, Sequence[int]]) -> Ablations:
    """What can be tried with modules of these names, whose parameters have these shapes."""
    own: dict[str, dict[str, tuple[int, ...]]] = {module: {} for module in modules}
    for parameter, shape in parameters.items():
        own.setdefault(parameter.rpartition(".")[0], {})[parameter.rpartition(".")[2]] = tuple(shape)
    parents = {module.rpartition(".")[0] for module in modules}
    leaves = [module for module in modules if module not in parents]
    siblings: dict[tuple[str, Any], list[str]] = {}
    for module in modules:
        parent, _, last = module.rpartition(".")
        if last.isdigit():
            siblings.setdefault((parent, _inside(module, own)), []).append(module)
    return Ablations(
        blocks=tuple(sorted((tuple(some) for some in siblings.values() if len(some) > 1), key=_depth)),
        leaves=tuple(module for module in leaves if all(map(_lets_through, own[module].values()))),
        trained=tuple(module for module in modules if own[module]),
    )


def needed_modules(base: Case, found: Ablations, sound: Sound = twin_passes) -> Asking[Variant]:
    """The base's variant with as many modules as identities as it can have and still fail."""
    for names in (*found.blocks, found.leaves):
        base = yield from _ablated(base, names, "identity", sound)
    return base.variant


def trained_modules(base: Case, found: Ablations, sound: Sound = twin_passes) -> Asking[Variant]:
    """The same with frozen modules: what is left had to have gradients. Says nothing where a forward pass fails."""
    return (yield from _ablated(base, found.trained, "freeze", sound)).variant


def _ablated(base: Case, names: Sequence[str], ablation: Ablation, sound: Sound) -> Asking[Case]:
    gone = tuple(f"{name}." for name, how in base.variant.modules.items() if how == "identity")
    names = [name for name in names if not f"{name}.".startswith(gone)]

    def case(kept: Indices) -> Case:
        modules: dict[str, Ablation] = {name: ablation for i, name in enumerate(names) if i not in kept}
        return replace(base, variant=combined(base.variant, Variant(modules=modules)))

    if not names:
        return base
    if (yield from _fails(case(()), sound)):
        return case(())
    return case((yield from least(len(names), case, sound)))


def least(n: int, case: Callable[[Indices], Case], sound: Sound) -> Asking[Indices]:
    """A smallest set of n whose case fails, given that all do and none does not.

    Soundness is asked about the result, and about each question only where that fails.
    """
    every = tuple(range(n))
    found = yield from through(minimal(every), every, lambda kept: _fails(case(kept), unasked))
    if len(found) == n or (yield from sound(case(found))):
        return found
    return (yield from through(minimal(every), every, lambda kept: _fails(case(kept), sound)))


def _fails(case: Case, sound: Sound) -> Asking[bool]:
    outcome = yield case
    return outcome.status is Status.FAIL and (yield from sound(case))


def _changes(variant: Variant) -> set[tuple[str, str]]:
    data = variant.to_json()
    named = {(part, key) for part in ("config", "env", "flags", "modules", "harness") for key in data[part]}
    return named | {(part, "") for part in ("dtype", "whole_config", "clock") if data[part] is not None}


def _value(config: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        config = config.get(key) if isinstance(config, Mapping) else None
    return config


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _lower(value: Any, candidates: Sequence[Any]) -> list[Any]:
    if _number(value) and all(map(_number, candidates)):
        return sorted({one for one in candidates if one < value})
    return [one for one in candidates if (type(one), one) != (type(value), value)]


def _share(value: Any, lowest: Any) -> float:
    """What is left of a knob at its lowest value; knobs that are no numbers come last."""
    return lowest / value if _number(value) and _number(lowest) and value else 1.0


def _inside(module: str, own: Mapping[str, Mapping[str, tuple[int, ...]]]) -> Any:
    """What siblings must have in common to be repetitions of each other."""
    parts = [(name, shapes) for name, shapes in own.items() if name == module or name.startswith(f"{module}.")]
    return tuple((name[len(module) :], tuple(sorted(shapes.items()))) for name, shapes in parts)


def _depth(names: Sequence[str]) -> int:
    return names[0].count(".")


def _lets_through(shape: Sequence[int]) -> bool:
    """Vectors scale and shift; a matrix must be square for its input to be able to pass as its output."""
    return len(shape) < _SQUARE or shape[0] == shape[1]
