"""A failed gate as an incident: the step that shows it, with a line that names the gate.

Where the step fails by itself (a NaN, an exception), the recorder sees that and the incident has the failure's own
signature, so it can be replayed and reduced. Where it goes through and only a gate objects, the step is captured as
it begins, with no signature: state and batch are there to be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from reprokit import _files
from reprokit.capture.logs import one_line
from reprokit.capture.recorder import Recorder
from reprokit.smoke.gate import Finding, Subject, Verdict
from reprokit.smoke.laps import copied

PREFIX = "smoke gate"


def write(subject: Subject, findings: Sequence[Finding]) -> tuple[list[Path], list[str]]:
    """An incident for each batch that shows a failure of this gate, and why there is none (the log may say more)."""
    failed = [one for one in findings if one.verdict is Verdict.FAILED]
    if subject.out is None or not failed:
        return [], []
    if not subject.batches:
        return [], [f"no incident, because {subject.no_batches or 'there is no batch'}"]
    paths: list[Path] = []
    for lap in sorted({min(one.lap, len(subject.batches)) for one in failed}):
        reason = f"{PREFIX} {failed[0].gate}\n" + "\n".join(map(_line, failed))
        try:
            own = _failing(subject, reason, lap)
            path = own or _as_it_begins(subject, reason, lap)
        except Exception as error:  # what cannot be captured is said, and stops no other gate
            return paths, [f"no incident: {type(error).__name__}: {one_line(error)}"]
        if path is None:
            return paths, ["no incident was written"]
        paths.append(_renamed(path, failed[0].gate))
        if own:
            break  # later laps begin with this step
    return paths, []


def _failing(subject: Subject, reason: str, lap: int) -> Path | None:
    """Of a step that fails by itself, up to this lap."""
    recorder = _recorder(subject, reason)
    with suppress(Exception), recorder:
        for batch in subject.batches[:lap]:
            recorder.step(copied(batch))
    return recorder.incidents[-1] if recorder.incidents else None


def _as_it_begins(subject: Subject, reason: str, lap: int) -> Path | None:
    with _recorder(subject, reason) as recorder:
        for batch in subject.batches[: lap - 1]:
            recorder.step(copied(batch))
        with recorder.watch(copied(subject.batches[lap - 1])):
            return recorder.capture(reason)


def _recorder(subject: Subject, reason: str) -> Recorder:
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
    )


def _renamed(path: Path, gate: str) -> Path:
    """Its name says which gate; the name is no part of an incident."""
    name = path.name.replace("-healthy-", "-")  # which only says that the step fails by nothing of its own
    new = _files.rename_free(path, path.parent, f"{name}-smoke-{gate}")
    _files.sync(path.parent)
    return new


def _line(finding: Finding) -> str:
    return f"{finding.check}: expected {finding.expected}; observed {finding.observed}"
