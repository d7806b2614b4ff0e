"""A whole replay: attempts as they were asked for, kept as they end, told of while they run, and judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reprokit.incident import Incident
from reprokit.replay import attempts, draws, journal, predicate, share, versions
from reprokit.replay.engines.base import Engine
from reprokit.replay.live import Live
from reprokit.replay.result import Replay
from reprokit.replay.verdict import ALPHA
from reprokit.step.case import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class Asking:
    """What is asked for."""

    n: int  # attempts that count, at most
    min_rate: float = 0.0
    alpha: float = ALPHA  # 1 - confidence
    estimate: bool = False
    jobs: int | None = None
    rng: Literal["captured", "fresh"] = "captured"
    vary: tuple[str, ...] = ()
    deterministic: bool = False
    predicate: predicate.Predicate | None = None
    out: Path | None = None  # for attempts and their logs
    resume: Path | None = None
    keep: bool = False  # also without `out`, while it goes on
    circumstances: Mapping[str, Any] = field(default_factory=dict)  # what else must be the same where it goes on

    @property
    def drawn(self) -> tuple[str, ...]:
        return (*((draws.RNG,) if self.rng == "fresh" else ()), *dict.fromkeys(self.vary))


def device(incident: Incident) -> str:
    return str(incident.flags().get("device", "cpu"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a case is of, as far as attempts at it need to know."""

    id: str
    flags: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # that it was captured with
    ranks: int = 1

    @classmethod
    def of(cls, incident: Incident) -> Origin:
        return cls(
            id=incident.manifest.id,
            flags=incident.flags(),
            versions=versions.of(incident.environment()),
            ranks=incident.manifest.world_size,
        )

    @property
    def gpus(self) -> int:
        """That one attempt holds."""
        return self.ranks if str(self.flags.get("device", "cpu")).startswith("cuda") else 0


def replay(
    origin: Incident | Origin,
    case: Case,
    engine: Engine,
    asking: Asking,
    *,
    say: Callable[[str], object] = lambda line: None,
    show: Callable[[str, int, int, str], object] = lambda what, done, total, note: None,
) -> Replay:
    """Attempts at a case of this incident, or of what else it is of. say, show: get news, as of a `Progress`. Raises as
    `attempts.run`."""
    origin = Origin.of(origin) if isinstance(origin, Incident) else origin
    case = draws.deterministic(case) if asking.deterministic else case
    same = _same(origin, case, engine, asking)
    with journal.opened(asking.out, asking.resume, same, keep=asking.keep, say=say) as kept:
        live = Live(
            engine.name,
            room=min(engine.capacity, asking.jobs or engine.capacity),
            gpus=origin.gpus,
            kept=kept.attempts,
            say=say,
            show=show,
        )
        live.begin(asking.n)
        found = kept.ended(
            lambda: attempts.run(
                case,
                engine,
                _rules(origin, asking, kept.base),
                jobs=asking.jobs,
                kept=kept.attempts,
                judged=asking.predicate.judged if asking.predicate else None,
                keep=kept.keep,
                watch=live,
            )
        )
        if kept.broken:
            say(kept.broken)
        return found


def _rules(origin: Origin, asking: Asking, base: int) -> attempts.Rules:
    return attempts.Rules(
        n=asking.n,
        min_rate=asking.min_rate,
        alpha=asking.alpha,
        estimate=asking.estimate,
        draws=draws.Draws(names=asking.drawn, base=base, cores=share.cores(), captured=origin.flags),
        captured=origin.versions,
    )


def _same(origin: Origin, case: Case, engine: Engine, asking: Asking) -> dict[str, Any]:
    """What makes an attempt what it is: to be the same where a replay goes on."""
    return {
        "incident": origin.id,
        "case": {name: value for name, value in case.to_json().items() if name != "incident"},
        "engine": engine.name,
        "rng": asking.rng,
        "vary": list(asking.vary),
        "cores": share.cores() if "threads" in asking.vary else None,
        "predicate": [asking.predicate.name, asking.predicate.digest] if asking.predicate else None,
        **asking.circumstances,
    }
