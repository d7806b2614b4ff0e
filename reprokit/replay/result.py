"""Attempts at one case, and what they support."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reprokit.replay import versions
from reprokit.replay.strata import Attempt, Stratum, depends_on, strata
from reprokit.replay.verdict import ALPHA, Tally, Verdict, interval, judge, rate_at_least
from reprokit.step.outcome import Outcome, Status

Stopped = Literal["asked", "flaky", "depends", "infrastructure", "interrupted"]
Bits = tuple[tuple[str, str], ...]
"""A fingerprint, to compare and count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Attempts, in the order in which they ended."""

    engine: str
    asked: int  # attempts asked for
    min_rate: float  # rate of failure that must be supported before it is called reproducible
    stopped: Stopped
    """All that was asked for; flaky, or shown to depend on inputs, which settles it; an engine that kept breaking; or
    somebody who wanted no more."""
    attempts: tuple[Attempt, ...]
    alpha: float = ALPHA  # 1 - confidence
    drawn: tuple[str, ...] = ()  # factors whose values were drawn for each attempt
    captured: Mapping[str, str] = field(default_factory=dict)  # versions that the step was captured with
    folder: Path | None = None  # with all attempts and their logs, where they are kept

    @property
    def counted(self) -> list[Attempt]:
        return [attempt for attempt in self.attempts if attempt.counts]

    @property
    def usable(self) -> list[Outcome]:
        return [attempt.outcome for attempt in self.counted]

    @property
    def n(self) -> int:
        return len(self.counted)

    @property
    def fail(self) -> int:
        return self._count(Status.FAIL)

    @property
    def passed(self) -> int:
        return self._count(Status.PASS)

    @property
    def other(self) -> int:
        return self._count(Status.OTHER)

    @property
    def infra(self) -> int:
        return len(self.attempts) - self.n

    @property
    def verdict(self) -> Verdict:
        """FLAKY also where only unlike inputs differ: as they were drawn it fails sometimes; see `depends_on`."""
        return judge(
            Tally(
                fail=self.fail,
                other=self.n - self.fail,
                asked=self.asked,
                min_rate=self.min_rate,
                alpha=self.alpha,
            )
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Of the rate over inputs as they are drawn. What was made again was chosen by its answer, and is left out."""
        draws = [attempt.failed for attempt in self.counted if not attempt.repeat]
        return interval(sum(draws), len(draws), self.alpha)

    @property
    def rate_at_least(self) -> float:
        """Where all failed the bound for that; else the lower end of the interval."""
        return rate_at_least(self.n, self.alpha) if self.fail == self.n else self.interval[0]

    @property
    def strata(self) -> list[Stratum]:
        """Empty where all inputs are identical."""
        return [one for one in strata(self.attempts) if one.inputs]

    @property
    def depends_on(self) -> tuple[str, ...]:
        return depends_on(self.strata, self.alpha)

    @property
    def fingerprints(self) -> Counter[Bits]:
        """How many usable attempts have each fingerprint, of those that came far enough to have one."""
        return Counter(bits(outcome) for outcome in self.usable if outcome.fingerprint)

    @property
    def changes(self) -> tuple[versions.Change, ...]:
        """Versions that are not the captured ones."""
        return versions.changes(self.captured, self.usable)

    @property
    def gone_after_upgrade(self) -> bool | None:
        """None: perhaps; nothing ran with the captured versions."""
        return versions.gone(self.captured, self.usable)

    def to_json(self) -> dict[str, Any]:
        prints = self.fingerprints
        return {
            "verdict": str(self.verdict),
            "n": self.n,
            "fail": self.fail,
            "pass": self.passed,
            "other": self.other,
            "infra": self.infra,
            "rate_at_least": self.rate_at_least,
            "interval": list(self.interval),
            "confidence": round(1 - self.alpha, 9),
            "stopped": self.stopped,
            "engine": self.engine,
            "strata": [one.to_json(self.alpha) for one in self.strata],
            "fingerprints": {"distinct": len(prints), "stable": max(prints.values(), default=0)},
            "attempts": [attempt.to_json() for attempt in self.attempts],
            "asked": self.asked,
            "min_rate": self.min_rate,
            "depends_on": list(self.depends_on),
            "versions": [
                {"name": one.name, "captured": one.captured, "here": one.here, "newer": one.newer}
                for one in self.changes
            ],
            "gone_after_upgrade": self.gone_after_upgrade,
            "folder": str(self.folder) if self.folder else None,
        }

    def _count(self, status: Status) -> int:
        return sum(attempt.outcome.status is status for attempt in self.attempts)


def bits(outcome: Outcome) -> Bits:
    return tuple(sorted(outcome.fingerprint.items()))
