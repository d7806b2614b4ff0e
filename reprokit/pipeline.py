"""The verbs as functions: what the command line, and whoever else drives reprokit, calls.

Each opens an incident from wherever it is, does one thing with the rooms below, and returns a value; what is printed is
the caller's matter. News on the way goes to a `Progress`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from reprokit import works
from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import matching
from reprokit.incident import Incident, Manifest
from reprokit.progress import Progress
from reprokit.replay import draws
from reprokit.replay.choose import image_of as image_for
from reprokit.replay.choose import open_engine
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.fetch import fetched, is_id
from reprokit.replay.predicate import load as load_predicate
from reprokit.replay.replay import Asking
from reprokit.replay.replay import device as device_of
from reprokit.replay.replay import replay as run_again
from reprokit.replay.result import Replay
from reprokit.replay.verdict import ALPHA, PRESETS, attempts_for
from reprokit.report import bundle as bundles
from reprokit.report import standalone as scripts
from reprokit.step import rewind
from reprokit.step.case import Case
from reprokit.step.worker import Worker
from reprokit.triage.kept import opened as keeping
from reprokit.triage.locate import Located
from reprokit.triage.locate import locate as trace
from reprokit.triage.triage import Part, Triage
from reprokit.triage.triage import check as check_triage
from reprokit.triage.triage import triage as find_what_decides


@dataclass(frozen=True, kw_only=True, slots=True)
class Options(EngineOptions):
    """Of everything that evaluates: where attempts run, and how many of what kind."""

    n: int = PRESETS["default"]  # attempts, at most
    min_rate: float = 0.0  # rate of failure that must be supported
    confidence: float = 0.95  # of what is said about rates
    estimate: bool = False  # go on after FLAKY is certain, to estimate the rate
    rng: Literal["captured", "fresh"] = "captured"  # fresh: a seed for each attempt
    vary: tuple[str, ...] = ()  # what each attempt draws a value of
    deterministic: bool = False  # torch's deterministic algorithms, whatever was captured
    predicate: str | None = None  # module:function or file.py:function: whether an outcome is the failure
    out: Path | None = None  # folder for the journal and the logs of attempts
    resume: Path | None = None  # such a folder of a run that was interrupted
    rewind: int = 0  # history steps that run before the failing one

    def __post_init__(self) -> None:
        if self.match is not None:
            matching(self.match)  # said now, and not by every evaluation


_SAME = ("match", "timeout", "image", "base", "inner")  # options that make an attempt what it is


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """An incident, and whether it came from elsewhere."""

    incident: Incident
    foreign: bool = False


def opened(where: str | Path, store: str | None = None) -> Subject:
    """The incident in a folder or a bundle, or that the store has under this id: who put it there may be anybody, so
    that is from elsewhere, too. Raises BadInput where there is none, or not all of it."""
    if is_id(str(where)) and not Path(where).exists():
        return Subject(incident=fetched(str(where), store), foreign=True)
    incident, foreign = bundles.open_any(Path(where))
    return Subject(incident=incident, foreign=foreign)


def attempts_of(n: int | None, preset: str, min_rate: float = 0.0, confidence: float = 1 - ALPHA) -> int:
    """How many attempts: the number, or what the preset stands for, or more where the rate to support takes more.
    Raises BadInput for an unknown preset."""
    if preset not in PRESETS:
        raise BadInput(f"--preset {preset}: unknown; one of {', '.join(PRESETS)}")
    least = attempts_for(min_rate, 1 - confidence) if 0 < min_rate < 1 else 1
    return n or max(PRESETS[preset], least)


def replay(
    subject: Subject, options: Options, progress: Progress, case: Case | None = None, *, keep: bool = False
) -> Replay:
    """Run the incident, or a case of it, `options.n` times, and judge. A reduction that went back in history does so
    again.

    keep: also without `options.out` attempts are kept while it goes on, so that it can be resumed. Raises
    `attempts.Halted`, with what is known by then, where it is interrupted.
    """
    case = case or case_of(subject, options)
    works.check(subject.incident, "replay")
    rewind.check(subject.incident, case.rewind)
    asking = _asking(subject, options, keep)
    with engine_of(subject, options, progress) as engine:
        return run_again(subject.incident, case, engine, asking, say=progress.say, show=progress.show)


def case_of(subject: Subject, options: Options) -> Case:
    """The incident as it was captured, or reduced."""
    return Case(incident=subject.incident.path, rewind=options.rewind or rewind.needed(subject.incident))


def _asking(subject: Subject, options: Options, keep: bool) -> Asking:
    """Raises BadInput for what can be refused before an image is built."""
    where, device = options.inner or options.engine or "docker", device_of(subject.incident)
    draws.check(options.vary, engine=where, device=device, deterministic=options.deterministic)
    return asking_of(options, keep)


def asking_of(options: Options, keep: bool, more: Mapping[str, Any] | None = None) -> Asking:
    """more: what else makes an attempt what it is."""
    same = {name: getattr(options, name) for name in _SAME}
    return Asking(
        n=options.n,
        min_rate=options.min_rate,
        alpha=round(1 - options.confidence, 9),
        estimate=options.estimate,
        jobs=options.jobs,
        rng=options.rng,
        vary=options.vary,
        deterministic=options.deterministic,
        predicate=load_predicate(options.predicate) if options.predicate else None,
        out=options.out,
        resume=options.resume,
        keep=keep,
        circumstances={**same, **(more or {})},
    )


def locate(subject: Subject, options: Options) -> Located:
    """The operation that makes the first bad value."""
    works.check(subject.incident, "locate")
    _trusted(subject, options, "locating")
    with Worker(subject.incident, match=options.match) as worker:
        evaluate = lambda case: worker.evaluate(case, timeout=options.timeout)
        return trace(subject.incident, evaluate, worker.arguments)


def triage(
    subject: Subject,
    options: Options,
    progress: Progress,
    *,
    part: Part | None = None,
    only: Collection[str] = (),
    keep: bool = False,
) -> Triage:
    """What decides whether it fails: factors where it comes and goes, changed experiments where it comes each time.
    `options.n` attempts at each value that decides. keep: as of `replay`."""
    works.check(subject.incident, "triage")
    check_triage(only, options.n, part)  # said now, and not after an image was built
    base = case_of(subject, options)
    rewind.check(subject.incident, base.rewind)
    with ExitStack() as stack:
        engine = stack.enter_context(engine_of(subject, options, progress))
        forked, forks = _forked(subject, options, progress, engine, stack)
        same = _same(subject, base, options)
        kept = stack.enter_context(keeping(options.out, options.resume, same, keep=keep, say=progress.say))
        return find_what_decides(
            subject.incident,
            base,
            kept.around(engine),
            n=options.n,
            part=part,
            only=only,
            forked=kept.around(forked) if forked else None,
            forks=forks,
            on_attempt=lambda count, what: progress.show(f"triage in {engine.name}", count, None, what),
        )


def _same(subject: Subject, base: Case, options: Options) -> dict[str, Any]:
    """What makes an attempt of a triage what it is."""
    return {
        "incident": subject.incident.manifest.id,
        "rewind": base.rewind,
        **{name: getattr(options, name) for name in _SAME},
    }


def _forked(
    subject: Subject, options: Options, progress: Progress, engine: Engine, stack: ExitStack
) -> tuple[Engine | None, str]:
    """An engine that forks where the other one starts afresh; or why there is none."""
    if engine.name not in ("docker", "process"):
        return None, f"engine {engine.name} has no fresh processes to compare with; use process or docker"
    try:
        around = replace(options, engine="fork", inner=engine.name)
        return stack.enter_context(engine_of(subject, around, progress)), ""
    except (BadInput, Infrastructure) as error:
        return None, str(error)


def check_script(folder: Path) -> None:
    """Raises BadInput where the script of an operation could not be written."""
    scripts.check(folder)


def write_script(found: Located, folder: Path) -> Path:
    """A script of plain torch that runs the operation, and its inputs; into a folder that does not exist yet."""
    return scripts.write(found, folder)


def image_of(subject: Subject, options: Options, progress: Progress) -> str:
    """The tag of the image in which the incident runs; built where it is missing."""
    return image_for(subject.incident, options, foreign=subject.foreign, say=progress.say)


def verify(where: str | Path) -> Manifest:
    """The manifest of a bundle or an incident of which every byte is right. Raises BadInput."""
    path = Path(where)
    return Incident.open(path).manifest if path.is_dir() else bundles.verify(path)


def _trusted(subject: Subject, options: Options, what: str) -> None:
    if subject.foreign and not options.trust:
        raise BadInput(
            f"{subject.incident.name}: a bundle holds somebody's code, and {what} runs it on this machine; "
            "add --trust if you trust whoever made it"
        )


def engine_of(subject: Subject, options: Options, progress: Progress) -> Engine:
    """Where its cases run; a context manager."""
    return open_engine(subject.incident, options, foreign=subject.foreign, say=progress.say)
