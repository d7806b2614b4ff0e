"""Which factor decides whether a step fails.

Two rounds, since many factors have many values and attempts are dear. The first has a few attempts at each value of
each factor, and proposes: a factor whose values differ as far as they can is a suspect, with the value at which it
fails most and the one at which it fails least. The second has fresh attempts at these two, and decides by Fisher's
exact test over all suspects (`exact`). What the first round saw is no part of the test, so picking the extremes costs
no honesty. A suspect whose lead is gone half way is let go: that can only lose a finding, never make one up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit.triage.exact import ALPHA, fisher, holm
from reprokit.triage.factors import Factor
from reprokit.triage.trials import Setting, Tally, Trials

LEAD = 0.6  # between two values in the first round: two of three attempts, or all of one or two


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Fresh attempts at the value at which it fails most, and at the one at which it fails least."""

    most: Setting
    least: Setting
    fails: Tally  # at `most`
    stays_away: Tally  # at `least`
    p: float  # Fisher's, two-sided
    adjusted: float  # for all factors that came so far

    @property
    def decides(self) -> bool:
        return self.adjusted < ALPHA and self.fails.rate > self.stays_away.rate

    @property
    def controls(self) -> bool:
        """Always at the one, never at the other."""
        return self.decides and self.fails.rate == 1.0 and self.stays_away.rate == 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "most": {"label": self.most.label, **self.fails.to_json()},
            "least": {"label": self.least.label, **self.stays_away.to_json()},
            "p": self.p,
            "adjusted": self.adjusted,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What is known of one factor."""

    factor: Factor
    tallies: tuple[Tally, ...] = ()  # of the first round, for each of its settings
    contrast: Contrast | None = None  # None: its values did not differ, or it could not be asked
    why_not: str = ""

    @property
    def decides(self) -> bool:
        return self.contrast is not None and self.contrast.decides

    def to_json(self) -> dict[str, Any]:
        counted = zip(self.factor.settings, self.tallies) if self.tallies else ()
        return {
            "name": self.factor.name,
            "what": self.factor.what,
            "why_not": self.why_not,
            "settings": [{"label": setting.label, **tally.to_json()} for setting, tally in counted],
            "contrast": self.contrast.to_json() if self.contrast else None,
            "decides": self.decides,
            "controls": self.contrast is not None and self.contrast.controls,
            "follows": self.factor.follows if self.decides else "",
        }


def decide(
    trials: Trials,
    factors: Sequence[Factor],
    n: int,
    *,
    steady: bool,
    on_factor: Callable[[str], None] = lambda what: None,
) -> list[Finding]:
    """All factors with what was found. n: attempts at each value in the round that decides. steady: all attempts agreed
    so far, so that one at each value is enough to make a suspect."""
    first = 1 if steady else max(2, n // 2)
    findings = []
    for factor in factors:
        on_factor(factor.what)
        findings.append(_screened(trials, factor, first))
    for i, finding in enumerate(findings):
        if (pair := _suspects(finding)) is not None:
            on_factor(finding.factor.what)
            findings[i] = replace(finding, contrast=_contrast(trials, *pair, n))
    return _corrected(findings)


def _screened(trials: Trials, factor: Factor, n: int) -> Finding:
    if factor.why_not:
        return Finding(factor=factor, why_not=factor.why_not)
    tallies = trials.ask(factor.settings, n)
    finding = Finding(factor=factor, tallies=tuple(tallies))
    if sum(tally.n > 0 for tally in tallies) < 2:
        why = next((tally.why_not for tally in tallies if tally.why_not), "the machinery broke at each attempt")
        return replace(finding, why_not=why)
    return finding


def _suspects(finding: Finding) -> tuple[Setting, Setting] | None:
    """Where it fails most and least, where these are far apart."""
    counted = [i for i, tally in enumerate(finding.tallies) if tally.n]
    if len(counted) < 2:
        return None
    rates = {i: finding.tallies[i].rate for i in counted}
    most, least = max(counted, key=rates.__getitem__), min(counted, key=rates.__getitem__)
    settings = finding.factor.settings
    return (settings[most], settings[least]) if rates[most] - rates[least] >= LEAD else None


def _contrast(trials: Trials, most: Setting, least: Setting, n: int) -> Contrast:
    fails, stays_away = trials.ask((most, least), n - n // 2)
    if fails.rate - stays_away.rate >= LEAD:
        for tally, more in zip((fails, stays_away), trials.ask((most, least), n // 2) if n > 1 else ()):
            tally.outcomes += more.outcomes
            tally.spoiled += more.spoiled
    p = fisher(fails.fail, fails.n, stays_away.fail, stays_away.n) if fails.n and stays_away.n else 1.0
    return Contrast(most=most, least=least, fails=fails, stays_away=stays_away, p=p, adjusted=p)


def _corrected(findings: Sequence[Finding]) -> list[Finding]:
    """With the p-values corrected for all that were tested."""
    tested = [i for i, finding in enumerate(findings) if finding.contrast]
    adjusted = dict(zip(tested, holm([one.contrast.p for one in findings if one.contrast])))
    return [
        replace(finding, contrast=replace(finding.contrast, adjusted=adjusted[i])) if finding.contrast else finding
        for i, finding in enumerate(findings)
    ]
