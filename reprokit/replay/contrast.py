"""What failing attempts did otherwise than passing ones, from the evidence of both.

Modules come first (`parting`); where they agree, what a step makes outside of them is looked at by its fingerprint; and
beside, counters of the step and of the machine, whose ranges must not overlap. What chance explains is not named.
Evidence may have been written by anybody's code, so what is no evidence is not looked at. Pure: nothing here runs a
case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reprokit.errors import some
from reprokit.replay.parting import Part, Span, is_apart, is_number, least_chance, outputs, parted, said, span_of
from reprokit.replay.verdict import ALPHA

_NAMED = 4  # counters in a sentence


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One attempt: its evidence, and its fingerprint."""

    failed: bool
    evidence: Mapping[str, Any]
    fingerprint: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """A number whose ranges do not overlap."""

    name: str
    failing: Span
    passing: Span
    chance: float  # that this is so by chance, of all that were looked at

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "failing": list(self.failing),
            "passing": list(self.passing),
            "chance": self.chance,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Between two groups of attempts."""

    failing: int  # with evidence of their modules
    passing: int
    silent: int  # failing ones that ended without any: they hung or died
    outputs: int  # of modules, that were compared
    module: Part | None
    varies: str | None  # the first module whose output is not the same in all attempts
    after: str | None  # where modules do not tell them apart: the part of a fingerprint that does
    counters: tuple[Counter, ...]
    looked_at: int  # counters

    def to_json(self) -> dict[str, Any]:
        return {
            "failing": self.failing,
            "passing": self.passing,
            "silent": self.silent,
            "outputs": self.outputs,
            "module": self.module.to_json() if self.module else None,
            "varies": self.varies,
            "after": self.after,
            "counters": [one.to_json() for one in self.counters],
            "sentences": self.sentences(),
        }

    def sentences(self) -> list[str]:
        """The nearest to the cause first."""
        silent = f"{self.silent} failing attempts ended without a word of their modules" if self.silent else ""
        if not self.failing + self.silent or not self.passing:
            who = "no attempt failed" if not self.failing + self.silent else "no attempt passed"
            return [f"{who}, so there is nothing to tell apart; what all of them did is kept"]
        return [one for one in (silent, self._modules(), self._counters()) if one]

    def _modules(self) -> str:
        if self.module:
            return self.module.sentence()
        if not self.failing:
            return ""
        after = f"; what tells them apart is {self.after}: made after modules, or outside of them" if self.after else ""
        those = f"output{'s' * (self.outputs != 1)}"
        if self.varies is not None:
            varies = f"values vary in all attempts from `{self.varies}` on"
            return f"{self.outputs} {those} of modules do not tell failing from passing attempts; {varies}{after}"
        if not self.outputs:
            return f"no module ran{after}"
        return f"all {self.outputs} {those} of modules are the same in failing and passing attempts{after}"

    def _counters(self) -> str:
        if not self.counters:
            few = least_chance(self.failing + self.silent, self.passing, self.looked_at) > ALPHA
            return f"too few attempts for {self.looked_at} counters to tell" if few and self.looked_at else ""
        told = [f"{one.name} {said(one.failing)} against {said(one.passing)}" for one in self.counters]
        early = ", as of a step that ends early" if self.module and self.module.how == "stops" else ""
        return f"counters that tell them apart{early}: {some(told, _NAMED)}"


def contrast(attempts: Iterable[Seen]) -> Contrast:
    """Of attempts that count."""
    everything = list(attempts)
    told = [(one, outputs(one.evidence)) for one in everything]
    failing = [found for one, found in told if one.failed and found is not None]
    passing = [found for one, found in told if not one.failed and found is not None]
    silent = sum(one.failed and found is None for one, found in told)
    part, varies, compared = parted(failing, passing)
    counters, looked_at = _counted(everything)
    return Contrast(
        failing=len(failing),
        passing=len(passing),
        silent=silent,
        outputs=compared,
        module=part,
        varies=varies,
        after=None if part else _after(everything),
        counters=counters,
        looked_at=looked_at,
    )


def _after(attempts: Sequence[Seen]) -> str | None:
    """The first part of a fingerprint that no failing attempt shares with a passing one."""
    fails, passes = ([one for one in attempts if one.failed is failed] for failed in (True, False))
    if not fails or not passes:
        return None
    for part in passes[0].fingerprint:
        sides = [{one.fingerprint.get(part) for one in group} for group in (fails, passes)]
        if None not in sides[0] | sides[1] and not sides[0] & sides[1]:
            return f"the {part}"
    return None


def _counted(attempts: Sequence[Seen]) -> tuple[tuple[Counter, ...], int]:
    """Those that tell the groups apart, the surest first, and how many were looked at: those that all attempts have."""
    groups = [[_numbers(one) for one in attempts if one.failed is failed] for failed in (True, False)]
    if not all(groups):
        return (), 0
    first, *rest = [one for group in groups for one in group]
    names = [name for name in first if all(name in one for one in rest)]
    names = [name for name in names if len({one[name] for group in groups for one in group}) > 1]
    chance = least_chance(len(groups[0]), len(groups[1]), len(names))
    found = []
    for name in names:
        spans = [span_of([one[name] for one in group]) for group in groups]
        if chance <= ALPHA and is_apart(spans[0], spans[1]):
            found.append(Counter(name=name, failing=spans[0], passing=spans[1], chance=chance))
    return tuple(found), len(names)


def _numbers(seen: Seen) -> dict[str, float]:
    """Of the step, and of the machine meanwhile."""
    found = {}
    for group in ("counters", "host"):
        values = seen.evidence.get(group)
        for name, value in values.items() if isinstance(values, dict) else ():
            if is_number(value):
                found[f"{group}.{name}" if group == "host" else str(name)] = float(value)
    return found
