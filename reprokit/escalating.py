"""A further round of attempts where a replay was flaky or did not reproduce: fewer questions, and much more asked.

The attempts are those of the replay, with what they can tell beside: the output of every module, counters, a profiler's
trace; and on the machine meanwhile, telemetry. All that costs time and may move a race, so they are not counted with
the others: the verdict is that of the first round. What failing attempts did otherwise is summarised (`contrast`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reprokit import pipeline
from reprokit._files import shown
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.pipeline import Options, Subject, asking_of, case_of
from reprokit.progress import Progress
from reprokit.replay import escalated
from reprokit.replay.contrast import Contrast, Seen, contrast
from reprokit.replay.replay import device
from reprokit.replay.replay import replay as run_again
from reprokit.replay.result import Replay
from reprokit.replay.verdict import Verdict
from reprokit.step.case import Case
from reprokit.step.outcome import Status

WORTH = (Verdict.FLAKY, Verdict.NOT_REPRODUCED)
_CUDA = {  # logs of what runs on a GPU; the first makes an error show at the call that made it
    "CUDA_LAUNCH_BLOCKING": "1",
    "CUDA_LOG_FILE": "stderr",
    "TORCH_SHOW_CPP_STACKTRACES": "1",
    "TORCH_LOGS": "recompiles,graph_breaks",
    "NCCL_DEBUG": "WARN",
}
_LINES = 10  # of the captured telemetry: the last seconds before the failure
_FACTOR = 2.0  # between a number at capture and here, from which on it is named


@dataclass(frozen=True, kw_only=True, slots=True)
class Escalation:
    """What the further round came to."""

    incident: Incident  # with all of it
    replay: Replay
    contrast: Contrast
    captured: Mapping[str, tuple[float, float]]  # number -> at capture, and here: where those are far apart
    notes: tuple[str, ...]  # what could not be collected

    def to_json(self) -> dict[str, Any]:
        return {"path": str(self.incident.path), "id": self.incident.manifest.id, **self.summary()}

    def summary(self) -> dict[str, Any]:
        return summary(self.replay, self.contrast, self.captured, self.notes)

    def sentences(self) -> list[str]:
        return sentences(self.contrast, self.captured)


def check(options: Options) -> None:
    """Raises BadInput for what can be refused before the first round."""
    if (options.inner or options.engine) == "inline":  # which builds once in a process
        raise BadInput("--escalate: takes fresh processes; use --engine process, fork or docker")


def escalate(subject: Subject, options: Options, progress: Progress) -> Escalation:
    """As many attempts as the replay may have made, and an incident with what they tell below `options.out`, or beside
    the first one (of a bundle or a store: in the current folder). Raises as `pipeline.replay`."""
    from reprokit.replay.gauges import Observed  # asks for psutil and, through it, the driver

    incident = subject.incident
    case = _case(incident, replace(case_of(subject, options), evidence=True))
    asking = asking_of(replace(options, out=None, resume=None, estimate=True), keep=False)
    with pipeline.engine_of(subject, options, progress) as engine, Observed(engine) as observed:
        show = lambda what, done, total, note: progress.show(f"escalated {what}", done, total, note)
        found = run_again(incident, case, observed, asking, say=progress.say, show=show)
    seen = [
        Seen(
            failed=one.status is Status.FAIL,
            evidence=one.evidence or {},
            fingerprint=one.fingerprint,
        )
        for one in found.usable
        if one.status in (Status.FAIL, Status.PASS)
    ]
    compared, far = contrast(seen), _captured(incident, found)
    notes = tuple(dict.fromkeys([*observed.notes(), *_notes(found)]))
    told = summary(found, compared, far, notes)
    out = options.out or (Path.cwd() if subject.foreign else incident.path.resolve().parent)
    kept = escalated.publish(incident, out, found, told, observed.lines())
    return Escalation(incident=kept, replay=found, contrast=compared, captured=far, notes=notes)


def summary(
    found: Replay, compared: Contrast, captured: Mapping[str, tuple[float, float]], notes: tuple[str, ...]
) -> dict[str, Any]:
    """What is in the incident, too."""
    return {
        "n": found.n,
        "fail": found.fail,
        "pass": found.passed,
        "other": found.other,
        "infra": found.infra,
        "engine": found.engine,
        **compared.to_json(),
        "sentences": sentences(compared, captured),
        "captured": {name: list(pair) for name, pair in captured.items()},
        "notes": list(notes),
    }


def sentences(compared: Contrast, captured: Mapping[str, tuple[float, float]]) -> list[str]:
    """The nearest to the cause first."""
    told = [f"{name} {then:.4g} at capture, {now:.4g} here" for name, (then, now) in captured.items()]
    return [*compared.sentences(), *([", ".join(told)] if told else [])]


def _case(incident: Incident, case: Case) -> Case:
    """Logs of a GPU where there is one."""
    if not device(incident).startswith("cuda"):
        return case
    return replace(case, variant=replace(case.variant, env={**case.variant.env, **_CUDA}))


def _notes(found: Replay) -> list[str]:
    """Of evidence of anybody's code."""
    lists = [(one.evidence or {}).get("notes") for one in found.usable]
    return [shown(note)[:300] for notes in lists if isinstance(notes, list) for note in notes[:5]]


def _captured(incident: Incident, found: Replay) -> dict[str, tuple[float, float]]:
    """Of the machine: what was far from what it is here. Only where nothing failed here, so that it may be why."""
    from reprokit.replay.gauges import means

    if found.fail or "telemetry.jsonl" not in incident.manifest.files:
        return {}
    then = means(_lines(incident.path / "telemetry.jsonl")[-_LINES:])
    hosts = [host for one in found.usable if isinstance(host := (one.evidence or {}).get("host"), dict)]
    now = means(hosts)
    shared = {name: (then[name], now[name]) for name in then if name in now and not name.endswith("_total")}
    return {name: pair for name, pair in shared.items() if _is_far(*pair)}


def _is_far(then: float, now: float) -> bool:
    low, high = sorted((abs(then), abs(now)))
    return high > _FACTOR * low and high > 1.0  # a load of 0.02 is not far from one of 0.1


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text("utf-8", errors="replace").splitlines():
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(data, dict):
            found.append(data)
    return found
