"""Which differences between two configs bring the failure: the incident's, and one with which training goes well.

Started from the config that works, the fewest of the incident's values are looked for that make it fail, with the same
search as along the axes of a batch. The state is the incident's in each case, as far as it fits (`step.refit`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from math import isnan
from typing import Any

from reprokit.errors import BadInput
from reprokit.reduce.asking import Asking
from reprokit.reduce.isolation import last_line, name
from reprokit.reduce.variants import Sound, least, unasked
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.step.variants import config_of


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()  # in place of a value where a config does not have the key


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One key that two configs do not agree in. A mapping that only one of them has is one difference."""

    path: tuple[Any, ...]
    here: Any = MISSING  # in the incident's config
    baseline: Any = MISSING

    @property
    def key(self) -> str:
        return ".".join(map(str, self.path))

    def to_json(self) -> dict[str, Any]:
        """A side that lacks the key is left out."""
        sides = {"here": self.here, "baseline": self.baseline}
        return {"key": self.key} | {side: value for side, value in sides.items() if value is not MISSING}


def differences(config: Any, baseline: Any) -> list[Difference]:
    """Mappings are looked into where both have them; lists and all else are values, and equal only with equal types."""
    return list(_differences((), config, baseline))


def mixed(baseline: Any, keep: Iterable[Difference]) -> Any:
    """The baseline with these differences as in the incident's config: with all of them it is that config."""
    config = deepcopy(baseline)
    for difference in keep:
        if not difference.path:
            return deepcopy(difference.here)
        *parents, last = difference.path
        place = config
        for key in parents:
            place = place[key]
        if difference.here is MISSING:
            del place[last]
        else:
            place[last] = deepcopy(difference.here)
    return config


def works(base: Case, config: Any, baseline: Any) -> Asking[None]:
    """Raises BadInput where the baseline is the base's own config, or the step does not pass with it."""
    if not differences(config_of(config, base.variant), baseline):
        raise BadInput("baseline: it is the incident's own config; give one with which the step does not fail")
    outcome = yield _with(base, baseline)
    if outcome.status is not Status.PASS:
        raise BadInput(f"baseline: {_refusal(outcome)}")


def smallest_difference(
    base: Case, config: Any, baseline: Any, sound: Sound = unasked
) -> Asking[tuple[Difference, ...]]:
    """The fewest differences between the incident's config and one that works that bring the failure.

    What the base's variant changes in the config counts as part of it. Raises BadInput where the baseline does not
    pass.
    """
    yield from works(base, config, baseline)
    found = differences(config_of(config, base.variant), baseline)
    case = lambda kept: _with(base, mixed(baseline, [found[i] for i in kept]))
    kept = yield from least(len(found), case, sound)
    return tuple(found[i] for i in kept)


def _with(base: Case, config: Any) -> Case:
    return replace(base, variant=replace(base.variant, config={}, whole_config=config))


def _differences(path: tuple[Any, ...], here: Any, baseline: Any) -> Generator[Difference, None, None]:
    if not (isinstance(here, Mapping) and isinstance(baseline, Mapping)):
        if not _same(here, baseline):
            yield Difference(path=path, here=here, baseline=baseline)
        return
    for key in [*here, *(key for key in baseline if key not in here)]:
        yield from _differences((*path, key), here.get(key, MISSING), baseline.get(key, MISSING))


def _same(one: Any, other: Any) -> bool:
    """1, 1.0 and True are three values; a NaN is equal to itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (isinstance(one, float) and isnan(one) and isnan(other))


def _refusal(outcome: Outcome) -> str:
    again = "give a config with which the step does not fail"
    if outcome.status is Status.FAIL:
        return f"the step fails with its config as well, so it is no difference of theirs; {again}"
    if outcome.status is Status.OTHER:
        return f"with its config the step fails in another way ({name(outcome.signature)}); {again}"
    return f"the step cannot run with its config ({last_line(outcome.detail)}); {again}"
