"""A failed gate as an incident: the step that shows it, with a line that names the gate.

Where the step fails by itself (a NaN, an exception), the recorder sees that and the incident has the failure's own
signature, so it can be replayed and reduced. Where it goes through and only a gate objects, the step is captured as
it begins, with no signature: state and batch are there to be looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from reprokit import _files
from reprokit.capture.logs import one_line
from reprokit.capture.recorder import Recorder
from reprokit.capture.writer import OnIncident
from reprokit.smoke import note
from reprokit.smoke.gate import OPENING, RAISES, Finding, Subject, Verdict
from reprokit.smoke.laps import copied
from reprokit.step.limits import Limits

_SOONER = 0.8  # of the time that a step has before it is interrupted, after which it is captured as a hang
_MEANWHILE = 30.0  # seconds more at most until it is interrupted, once it is captured: on a busy machine that is late


def write(subject: Subject, findings: Sequence[Finding]) -> tuple[list[Path], list[str]]:
    """An incident for each batch that shows a failure of this gate, and why there is none (the log may say more)."""
    failed = [one for one in findings if one.verdict is Verdict.FAILED]
    if subject.out is None or not failed:
        return [], []
    with subject.clock.watching():
        return _each(subject, failed)


def _each(subject: Subject, failed: Sequence[Finding]) -> tuple[list[Path], list[str]]:
    paths: list[Path] = []
    ended = False  # by a failure of its own: later laps begin with that step
    for batches, shown in _cases(subject, failed):
        if ended and not _made(shown[0]):
            continue
        if not batches:
            return paths, [f"no incident, because {subject.no_batches or 'there is no batch'}"]
        reason = note.text(shown, _again(subject, failed[0].gate))
        try:
            own = _failing(subject, reason, batches) or _raising(subject, reason, shown)
            path = own or _as_it_begins(subject, reason, batches, "\n".join(one.trace for one in shown if one.trace))
        except BaseException as error:  # what cannot be captured is said, and stops no other gate
            if isinstance(error, KeyboardInterrupt):
                raise
            return paths, [f"no incident: {one_line(error)}"]
        if path is None:
            return paths, ["no incident was written"]
        paths.append(_renamed(path, failed[0].gate))
        ended = ended or (own is not None and not _made(shown[0]))
    return paths, []


def _cases(subject: Subject, failed: Sequence[Finding]) -> Iterator[tuple[list[Any], list[Finding]]]:
    """Batches up to one that shows a failure, and the findings that it shows."""
    ours = [one for one in failed if not _made(one)]
    for lap in sorted({one.lap for one in ours}):
        shown = [one for one in ours if one.lap == lap]
        raised = any(one.check == RAISES for one in shown)  # in a call after all laps, it may be
        yield list(islice(cycle(subject.batches), lap if raised else min(lap, len(subject.batches)))), shown
    for finding in filter(_made, failed):
        yield [finding.batch], [finding]


def _made(finding: Finding) -> bool:
    """Whether a batch that the gate made shows it, and no other can."""
    return finding.batch is not None and finding.check != RAISES


def _again(subject: Subject, gate: str) -> list[str]:
    """The command that asks this gate alone; what comes before all gates is asked with any."""
    only = [] if gate == OPENING or not subject.command else ["--only", gate]
    return [*subject.command, *only]


def _failing(subject: Subject, reason: str, batches: Sequence[Any]) -> Path | None:
    """Of a step that fails by itself, with one of these."""
    with subject.clock.longer(_MEANWHILE) as over:
        recorder = _recorder(subject, reason, on_incident=lambda _: over())
        try:
            with recorder:
                for batch in batches:
                    recorder.step(copied(batch))
        except BaseException as error:  # the recorder has seen it
            if isinstance(error, KeyboardInterrupt):
                raise
    return recorder.incidents[-1] if recorder.incidents else None


def _raising(subject: Subject, reason: str, shown: Sequence[Finding]) -> Path | None:
    """Of a step that raised where the loader's batches do not make it: with what it was given then."""
    given = next((one.batch for one in shown if one.check == RAISES and one.batch is not None), None)
    return None if given is None else _failing(subject, reason, [given])


def _as_it_begins(subject: Subject, reason: str, batches: Sequence[Any], trace: str) -> Path | None:
    with _recorder(subject, reason) as recorder:
        for batch in batches[:-1]:
            recorder.step(copied(batch))
        with recorder.watch(copied(batches[-1])):
            return recorder.capture(reason, trace)


def _recorder(subject: Subject, reason: str, on_incident: OnIncident | None = None) -> Recorder:
    assert subject.out is not None
    return Recorder(
        subject.harness(),
        build=subject.build,
        config=subject.config,
        entrypoint=subject.entrypoint,
        out=subject.out,
        rehearse=False,
        latch=False,
        black_box=False,
        recapture=True,
        reason=reason,
        on_incident=on_incident,
        limits=None if subject.clock.seconds is None else Limits(hang_after=_SOONER * subject.clock.seconds),
    )


def _renamed(path: Path, gate: str) -> Path:
    """Its name says which gate; the name is no part of an incident."""
    name = path.name.replace("-healthy-", "-")  # which only says that the step fails by nothing of its own
    new = _files.rename_free(path, path.parent, f"{name}-smoke-{gate}")
    _files.sync(path.parent)
    return new
