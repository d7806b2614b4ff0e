"""Ask gates of a harness, one after the other, and report.

What a report must never do is flatter. A gate that breaks has failed, and so has one that yields nothing. A step that
raises is one failure, where it shows first; gates that then meet the same exception are not applicable, since they have
seen nothing. And where nothing passed because nothing could be asked, that is no pass.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reprokit.capture.logs import one_line
from reprokit.errors import BadInput
from reprokit.failure import Signature, exception_signature, place
from reprokit.progress import Progress, Silence
from reprokit.smoke import incidents
from reprokit.smoke.clock import Overdue
from reprokit.smoke.gate import HANGS, OPENING, RAISES, Finding, Gate, Subject, Verdict, call_of, hangs
from reprokit.smoke.gates.extremes import Extremes
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.leakage import Leakage
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.overfit import Overfit
from reprokit.smoke.gates.rehearsal import Rehearsal
from reprokit.smoke.gates.resources import Resources
from reprokit.smoke.gates.shapes import Shapes
from reprokit.step import rng
from reprokit.step.probe import phase_of

PROVES = "this proves plumbing, not accuracy: that what is built is what was meant, not that it will learn"
DEFAULT: tuple[type[Gate], ...] = (Rehearsal, Shapes, Numbers, Gradients, Leakage, Resources)
OTHERS: tuple[type[Gate], ...] = (Overfit, Extremes)
NAMES = tuple(gate.name for gate in (*DEFAULT, *OTHERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What all gates found."""

    findings: tuple[Finding, ...]
    incidents: tuple[tuple[str, Path], ...] = ()  # gate, and the incident of its failure
    uncaptured: tuple[str, ...] = ()  # of failed gates without one: why, a line each

    @property
    def passed(self) -> bool:
        """Something was asked and answered, and nothing failed."""
        return self.count(Verdict.PASSED) > 0 and not self.count(Verdict.FAILED)

    def count(self, verdict: Verdict) -> int:
        return sum(finding.verdict is verdict for finding in self.findings)

    @property
    def hung(self) -> str:
        """The gate that something hung in; empty where nothing did."""
        return next((one.gate for one in self.findings if one.check == HANGS), "")

    @property
    def failed_gates(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.gate for one in self.findings if one.verdict is Verdict.FAILED))

    @property
    def not_asked(self) -> dict[str, list[str]]:
        """Reason -> gates that nothing at all could be asked for it."""
        asked = {one.gate for one in self.findings if one.verdict is not Verdict.NOT_APPLICABLE}
        reasons: dict[str, list[str]] = {}
        for gate, because in {one.gate: one.because for one in reversed(self.findings)}.items():
            if gate not in asked:
                reasons.setdefault(because, []).insert(0, gate)
        return reasons

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: numbers that it lacks are text."""
        return {
            "passed": self.passed,
            "proves": PROVES,
            "counts": {str(verdict).lower(): self.count(verdict) for verdict in Verdict},
            "not_asked": [{"gate": gate, "because": why} for why, gates in self.not_asked.items() for gate in gates],
            "findings": [_plain(finding) for finding in self.findings],
            "incidents": [{"gate": gate, "path": str(path)} for gate, path in self.incidents],
            "uncaptured": list(self.uncaptured),
        }


def chosen(only: Sequence[str] = (), *, overfit: int | None = None, extremes: bool = False) -> list[Gate]:
    """The gates to ask. only: these, by name; overfit: steps of that gate. Raises BadInput for unknown names."""
    if unknown := [name for name in only if name not in NAMES]:
        raise BadInput(f"--only {unknown[0]}: unknown; one of {', '.join(NAMES)}")
    gates: list[Gate] = [gate() for gate in DEFAULT if not only or gate.name in only]
    if overfit is not None or Overfit.name in only:
        gates.append(Overfit() if overfit is None else Overfit(steps=overfit))
    if extremes or Extremes.name in only:
        gates.append(Extremes())
    return gates


def smoke(
    subject: Subject,
    gates: Sequence[Gate],
    progress: Progress | None = None,
    stuck: Callable[[Report], object] | None = None,
) -> Report:
    """Ask these gates, in this order; one that fails leaves an incident where the subject has a folder for it.

    stuck: is given the report, on another thread, where something hangs and cannot be interrupted.
    """
    asking = _Asking(subject, gates)
    if stuck is not None:
        subject.clock.stuck = lambda overdue: stuck(asking.given_up(overdue))
    before = rng.take()
    asking.ask(progress or Silence())
    rng.put(before)
    return asking.report()


class _Asking:
    """How far it has come. After something that hangs no gate is asked: it would hang there as well."""

    def __init__(self, subject: Subject, gates: Sequence[Gate]) -> None:
        self._subject, self._gates = subject, gates
        self._findings = list(subject.opening)
        self._begun = 0  # gates
        self._captured: list[tuple[str, Path]] = []
        self._uncaptured: list[str] = []
        self._raised: dict[Signature, str] = {}

    def ask(self, progress: Progress) -> None:
        self._capture(OPENING, self._findings)
        for number, gate in enumerate(self._gates):
            progress.show(f"gate {gate.name}", number, len(self._gates), gate.meanwhile)
            self._begun = number + 1
            if hung := self.report().hung:
                self._findings.append(_after(gate, hung))
                continue
            first = len(self._findings)
            with _quiet():
                _ask(gate, self._subject, self._raised, self._findings)
            self._capture(gate.name, self._findings[first:])

    def report(self) -> Report:
        return Report(
            findings=tuple(self._findings), incidents=tuple(self._captured), uncaptured=tuple(self._uncaptured)
        )

    def given_up(self, overdue: Overdue) -> Report:
        """What is known, from another thread, of what is still under way."""
        if not self.report().hung:  # else it is the capture of that which hangs
            name = self._gates[self._begun - 1].name if self._begun else OPENING
            self._findings.append(hangs(name, overdue, self._subject.roots))
            self._uncaptured.append(f"{name}: no incident, because it hangs where it cannot be interrupted")
        self._findings += [_after(gate, self.report().hung) for gate in self._gates[self._begun :]]
        return self.report()

    def _capture(self, name: str, found: Sequence[Finding]) -> None:
        with _quiet() as lines:
            paths, why = incidents.write(self._subject, found)
        self._captured += [(name, path) for path in paths]
        self._uncaptured += [f"{name}: {'; '.join(dict.fromkeys([*why, *lines]))}"] if why else []


def _ask(gate: Gate, subject: Subject, raised: dict[Signature, str], findings: list[Finding]) -> None:
    """Adds what it finds, one at least, whatever it does."""
    before = len(findings)
    try:
        with subject.clock.watching():
            for finding in gate.look(subject):
                findings.append(finding)  # each at once: what hangs later does not take it along
    except Overdue as overdue:
        findings.append(hangs(gate.name, overdue, subject.roots))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a step that exits, or is cancelled, must not take the report with it
        findings.append(_broke(gate, subject, error, raised))
    if len(findings) == before:
        nothing = gate.failed("it says something", "one finding at least", "nothing", "report this: a gate must answer")
        findings.append(nothing)


def _after(gate: Gate, hung: str) -> Finding:
    return gate.not_applicable("all of it", f"what hangs may hang here as well: see {hung}")


def _broke(gate: Gate, subject: Subject, error: BaseException, raised: dict[Signature, str]) -> Finding:
    phase = phase_of(error)
    signature = exception_signature(error, phase=phase, roots=subject.roots)
    if first := raised.get(signature):
        where = signature.function or signature.where
        return gate.not_applicable(RAISES, f"the step raises {type(error).__name__} in {where}: see {first}")
    raised[signature] = gate.name
    call, batch = call_of(error)
    observed = f"{one_line(error)} ({place(error, phase=phase, roots=subject.roots) or phase})"
    advice = "mend it first: what this gate asks after that was not asked"
    found = gate.failed(RAISES, "no exception", observed, advice)
    return replace(found, lap=call, batch=batch, trace="".join(traceback.format_exception(error)))


def _plain(finding: Finding) -> dict[str, Any]:
    names = ("gate", "check", "expected", "observed", "verdict", "advice", "lap")
    numbers = {name: value if abs(value) < float("inf") else str(value) for name, value in finding.measured.items()}
    return {name: getattr(finding, name) for name in names} | {"measured": numbers}


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Within it, what reprokit logs is in the list instead of on the screen."""
    log, lines = logging.getLogger("reprokit"), list[str]()

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    kept, propagate = Kept(logging.WARNING), log.propagate
    log.addHandler(kept)
    log.propagate = False
    try:
        yield lines
    finally:
        log.removeHandler(kept)
        log.propagate = propagate
