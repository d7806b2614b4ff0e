"""Ask gates of a harness, one after the other, and report.

What a report must never do is flatter. A gate that breaks has failed, and so has one that yields nothing. A step that
raises is one failure, where it shows first; gates that then meet the same exception are not applicable, since they have
seen nothing. And where nothing passed because nothing could be asked, that is no pass.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from reprokit.capture.logs import one_line
from reprokit.capture.source import find_root
from reprokit.errors import BadInput
from reprokit.failure import Signature, exception_signature
from reprokit.smoke import incidents
from reprokit.smoke.gate import Finding, Gate, Subject, Verdict
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


class Progress(Protocol):
    """Where news goes while gates are asked."""

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None: ...


class Silence:
    """For callers that want the report alone."""

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None: ...


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
    def failed_gates(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.gate for one in self.findings if one.verdict is Verdict.FAILED))

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: numbers that it lacks are text."""
        return {
            "passed": self.passed,
            "proves": PROVES,
            "counts": {str(verdict).lower(): self.count(verdict) for verdict in Verdict},
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


def smoke(subject: Subject, gates: Sequence[Gate], progress: Progress | None = None) -> Report:
    """Ask these gates, in this order; one that fails leaves an incident where the subject has a folder for it."""
    progress = progress or Silence()
    findings: list[Finding] = []
    captured: list[tuple[str, Path]] = []
    uncaptured: list[str] = []
    raised: dict[Signature, str] = {}
    before = rng.take()
    for number, gate in enumerate(gates):
        progress.show(f"gate {gate.name}", number, len(gates))
        with _quiet() as lines:
            found = list(_asked(gate, subject, raised))
            lines.clear()
            paths, why = incidents.write(subject, found)
        captured += [(gate.name, path) for path in paths]
        uncaptured += [f"{gate.name}: {'; '.join([*why, *lines])}"] if why else []
        findings += found
    rng.put(before)
    return Report(findings=tuple(findings), incidents=tuple(captured), uncaptured=tuple(uncaptured))


def _asked(gate: Gate, subject: Subject, raised: dict[Signature, str]) -> Iterator[Finding]:
    """Its findings, one at least, whatever it does."""
    count = 0
    try:
        for finding in gate.look(subject):
            count += 1
            yield finding
    except (Exception, SystemExit) as error:  # a step that exits must not take the report with it
        yield _broke(gate, subject, error, raised)
        return
    if not count:
        yield gate.failed("it says something", "one finding at least", "nothing", "report this: a gate must answer")


def _broke(gate: Gate, subject: Subject, error: BaseException, raised: dict[Signature, str]) -> Finding:
    signature = exception_signature(error, phase=phase_of(error), roots=_roots(subject))
    check, where = "the step does not raise", signature.function or signature.where
    if first := raised.get(signature):
        return gate.not_applicable(check, f"the step raises {type(error).__name__} in {where}: see {first}")
    raised[signature] = gate.name
    observed = f"{one_line(error)} ({where})"
    return gate.failed(check, "no exception", observed, "mend it first: nothing else was seen of this gate")


def _roots(subject: Subject) -> list[Path]:
    try:
        return [find_root(Path(inspect.getfile(subject.build)))]
    except (TypeError, OSError):
        return []


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
