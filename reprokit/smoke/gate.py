"""What a gate is: it asks one kind of question of a harness, and says what it expected and what it saw.

A gate cannot flatter. What it could not ask is NOT_APPLICABLE, with the reason, and never a pass; a gate that yields
nothing, or that breaks, has failed (see `smoke.smoke`). Each check that can pass on a degenerate model has a
counterpart that such a model fails: a constant encoder leaks nothing.
"""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar

from reprokit.capture.source import find_root
from reprokit.failure import place
from reprokit.harness import Harness
from reprokit.smoke.clock import Clock, Overdue
from reprokit.step import rng
from reprokit.step.load import build_harness
from reprokit.step.probe import phase_of

OPENING = "opening"  # stands in the place of a gate where none could ask yet
HANGS, RAISES = "it comes to an end", "the step does not raise"
_BECAUSE = "not applicable, because "
LAPS = 2  # batches that each gate looks at: what is right once may be a state that the first step leaves


class Verdict(StrEnum):
    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_APPLICABLE = "NOT_APPLICABLE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One row of the table."""

    gate: str
    check: str  # what was asked: "every loss term is finite"
    expected: str
    observed: str  # of NOT_APPLICABLE: why it cannot be asked
    verdict: Verdict
    advice: str = ""  # what to do next; a changed experiment is called one
    measured: Mapping[str, float] = field(default_factory=dict)  # for programs, and on success too
    lap: int = 1  # the batch that shows it, which an incident of it holds
    batch: Any = field(default=None, repr=False, compare=False)  # or this one, where a gate made it
    trace: str = field(default="", repr=False, compare=False)  # of what was raised: how Python tells it

    @property
    def because(self) -> str:
        """Of NOT_APPLICABLE: the reason alone."""
        return self.observed.removeprefix(_BECAUSE)

    def on(self, lap: int) -> Finding:
        """The same, of another batch than the first."""
        return replace(self, lap=lap)


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What the gates look at. Batches lie on the host, as the loader gave them; do not write into them."""

    build: Callable[[Any], Harness]
    config: Any
    entrypoint: str
    batches: Sequence[Any]  # LAPS of them, or fewer where the loader ends; none where there is no loader
    no_batches: str = ""  # why there are none
    seed: int = 0
    out: Path | None = None  # folder for incidents
    times: Sequence[Mapping[str, Any]] = ()  # of each batch, entry -> its frames' indices, where the loader tells them
    opening: Sequence[Finding] = ()  # what failed before a gate could ask
    clock: Clock = field(default_factory=Clock, compare=False)  # of each build and each step
    command: Sequence[str] = ()  # that asks all gates of it again; empty where none does

    @property
    def roots(self) -> list[Path]:
        """Where the user's code is."""
        try:
            return [find_root(Path(inspect.getfile(self.build)))]
        except (TypeError, OSError):
            return []

    def harness(self) -> Harness:
        """Built anew from a copy of the config, with all generators seeded: no gate sees what another one left."""
        rng.seed(self.seed)
        self.clock.begins()
        harness = build_harness(self.build, self.entrypoint, copy.deepcopy(self.config))
        harness.step = _Counted(harness.step, self.clock)
        return harness


class _Counted:
    """A step that knows how often it was called since its harness was built."""

    def __init__(self, step: Callable[[Any], Any], clock: Clock) -> None:
        self._step, self._clock = step, clock
        self.calls = 0

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        self._clock.begins()
        return self._step(batch)


def call_of(error: BaseException) -> tuple[int, Any]:
    """The call of the step that raised this, from 1, and what it was given. What comes after a call, as a backward
    pass, tells neither: LAPS, or a call before that."""
    for frame, _ in walk_tb(error.__traceback__):
        if frame.f_code is _Counted.__call__.__code__:
            return frame.f_locals["self"].calls, frame.f_locals["batch"]
    return LAPS, None


def hangs(gate: str, overdue: Overdue, roots: Sequence[Path]) -> Finding:
    """What was interrupted, where it stood, and where in the user's code that is."""
    phase = phase_of(overdue)
    where = place(overdue, phase=phase, roots=roots) or phase
    return Finding(
        gate=gate,
        check=HANGS,
        expected=f"each build and each step within {overdue.seconds:g} s",
        observed=str(overdue) if str(overdue).endswith(f" {where}") else f"{overdue} ({where})",
        verdict=Verdict.FAILED,
        advice="an incident of it has the stacks of all threads; if it is only slow, --hang-after allows more",
        lap=LAPS,  # or one before that
    )


class Gate(ABC):
    """One kind of question. Its docstring says what it catches, and what it costs in steps."""

    name: ClassVar[str]
    meanwhile: ClassVar[str] = ""  # said beside its name while it is asked, where that takes long

    @abstractmethod
    def look(self, subject: Subject) -> Iterator[Finding]:
        """Its rows. What the harness raises may leave it: that is a failure of this gate."""

    def passed(self, check: str, expected: str, observed: str, **measured: float) -> Finding:
        return self._finding(check, expected, observed, Verdict.PASSED, "", measured)

    def failed(self, check: str, expected: str, observed: str, advice: str, **measured: float) -> Finding:
        return self._finding(check, expected, observed, Verdict.FAILED, advice, measured)

    def not_applicable(self, check: str, because: str) -> Finding:
        return self._finding(check, "", f"{_BECAUSE}{because}", Verdict.NOT_APPLICABLE, "", {})

    def _finding(
        self, check: str, expected: str, observed: str, verdict: Verdict, advice: str, measured: Mapping[str, float]
    ) -> Finding:
        return Finding(
            gate=self.name,
            check=check,
            expected=expected,
            observed=observed,
            verdict=verdict,
            advice=advice,
            measured=dict(measured),
        )
