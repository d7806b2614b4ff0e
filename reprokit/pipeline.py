"""The verbs as functions: what the command line, and whoever else drives reprokit, calls.

Each opens an incident from wherever it is, does one thing with the rooms below, and returns a value; what is printed is
the caller's matter. News on the way goes to a `Progress`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from reprokit.errors import BadInput
from reprokit.incident import Incident, Manifest
from reprokit.reduce.isolation import NotReproduced
from reprokit.reduce.publish import publish
from reprokit.reduce.reducer import reduce as search
from reprokit.reduce.result import Progress as Step
from reprokit.reduce.result import Reduction
from reprokit.replay import attempts
from reprokit.replay.attempts import Replay
from reprokit.replay.choose import open_engine
from reprokit.replay.verdict import PRESETS, Verdict
from reprokit.report import bundle as bundles
from reprokit.report import standalone as scripts
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome
from reprokit.step.worker import Worker
from reprokit.triage.locate import Located
from reprokit.triage.locate import locate as trace


class Progress(Protocol):
    """Where news goes while a verb works."""

    def say(self, line: str) -> None:
        """A line worth reading once."""

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None:
        """How far it is; total None where nobody knows."""


class Silence:
    """For callers that want the result alone."""

    def say(self, line: str) -> None: ...

    def show(self, what: str, done: int, total: int | None, note: str = "") -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Of everything that evaluates; see `open_engine` for those of the engine."""

    n: int = PRESETS["default"]  # attempts, at most
    min_rate: float = 0.0  # rate of failure that must be supported
    estimate: bool = False  # go on after FLAKY is certain, to estimate the rate
    engine: str | None = None
    jobs: int | None = None
    timeout: float = 900.0  # seconds for one evaluation
    match: str | None = None
    image: str | None = None
    base: str | None = None
    wheelhouse: Path | None = None
    network: str = "none"
    trust: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An incident, and whether it came from elsewhere."""

    incident: Incident
    foreign: bool = False


def opened(where: str | Path) -> Subject:
    """The incident in a folder or a bundle. Raises BadInput where there is none, or not all of it."""
    incident, foreign = bundles.open_any(Path(where))
    return Subject(incident=incident, foreign=foreign)


def attempts_of(n: int | None, preset: str) -> int:
    """How many attempts: the number, or what the preset stands for. Raises BadInput for an unknown preset."""
    if preset not in PRESETS:
        raise BadInput(f"--preset {preset}: unknown; one of {', '.join(PRESETS)}")
    return n or PRESETS[preset]


def replay(subject: Subject, options: Options, progress: Progress, case: Case | None = None) -> Replay:
    """Run the incident, or a case of it, `options.n` times, and judge."""
    case = case or Case(incident=subject.incident.path)
    failed = 0

    def on_attempt(index: int, outcome: Outcome) -> None:
        nonlocal failed
        failed += outcome.status == "FAIL"
        progress.show(f"replay in {engine.name}", index + 1, options.n, f"{failed} failed")

    with _engine(subject, options, progress) as engine:
        progress.show(f"replay in {engine.name}", 0, options.n)
        return attempts.run(
            case,
            engine,
            options.n,
            min_rate=options.min_rate,
            estimate=options.estimate,
            on_attempt=on_attempt,
        )


def reduce(
    subject: Subject, out: Path, options: Options, progress: Progress, *, budget: int | None = None
) -> Reduction:
    """Find the smallest case, replay it afresh, and publish it as an incident below `out`.

    Raises NotReproduced where the incident, or in the end its smallest case, does not fail; nothing is written then.
    """
    _trusted(subject, options, "a reduction")
    show = lambda step: progress.show(f"reduce {step.axis or step.phase}", step.calls, None, _sizes(step))
    with Worker(subject.incident, match=options.match) as worker:
        evaluate = lambda case, isolation: worker.evaluate(case, isolation, timeout=options.timeout)
        found = search(subject.incident, evaluate, budget=budget, on_progress=show)
    verified = replay(subject, options, progress, replace(found.case, thorough=True))
    if verified.verdict is not Verdict.REPRODUCIBLE:
        raise NotReproduced(
            f"{subject.incident.path}: the smallest case found does not replay afresh "
            f"({attempts.sentence(verified)}), so it is not published; next: reprokit replay"
        )
    found = replace(found, verified=verified.to_json())
    return replace(found, path=publish(subject.incident, found, out).path)


def locate(subject: Subject, options: Options, *, standalone: Path | None = None) -> Located:
    """The operation that makes the first bad value. standalone: a folder for a script of plain torch that runs it."""
    _trusted(subject, options, "locating")
    with Worker(subject.incident, match=options.match) as worker:
        evaluate = lambda case: worker.evaluate(case, timeout=options.timeout)
        found = trace(subject.incident, evaluate, worker.arguments)
    if standalone is not None:
        scripts.write(found, standalone)
    return found


def image_of(subject: Subject, options: Options, progress: Progress) -> str:
    """The tag of the image in which the incident runs; built where it is missing."""
    from reprokit.replay import image  # talks to Docker: not for those who never do

    if options.image:
        return options.image
    return image.ensure(
        subject.incident.requirements(),
        base=options.base,
        wheelhouse=options.wheelhouse,
        trust=options.trust or not subject.foreign,
        progress=progress.say,
    )


def bundle(
    subject: Subject,
    out: Path,
    *,
    replayed: Mapping[str, Any] | None = None,
    reduction: Mapping[str, Any] | None = None,
    image: str | None = None,
) -> dict[str, Any]:
    """Write the bundle and check it as a stranger would; its JSON. image: the tag that its run.sh looks for first."""
    path = bundles.write(subject.incident, out, replay=replayed, reduction=reduction, image=image)
    manifest = bundles.verify(path)
    folder = bundles.folder_of(subject.incident)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "id": manifest.id,
        "folder": folder,
        "verified": True,
        "run": f"tar --zstd -xf {shlex.quote(str(path))} && ./{folder}/run.sh",
    }


def verify(where: str | Path) -> Manifest:
    """The manifest of a bundle or an incident of which every byte is right. Raises BadInput."""
    path = Path(where)
    return Incident.open(path).manifest if path.is_dir() else bundles.verify(path)


def _trusted(subject: Subject, options: Options, what: str) -> None:
    if subject.foreign and not options.trust:
        raise BadInput(
            f"{subject.incident.path.name}: a bundle holds somebody's code, and {what} runs it on this machine; "
            "add --trust if you trust whoever made it"
        )


def _engine(subject: Subject, options: Options, progress: Progress) -> Any:
    return open_engine(
        subject.incident,
        options.engine,
        foreign=subject.foreign,
        trust=options.trust,
        jobs=options.jobs,
        timeout=options.timeout,
        match=options.match,
        image=options.image,
        base=options.base,
        wheelhouse=options.wheelhouse,
        network=options.network,
        say=progress.say,
    )


def _sizes(step: Step) -> str:
    return " x ".join(f"{axis} {size}" for axis, size in step.kept.items())
