"""The verb `reduce` as a function: search, replay the result afresh, publish it.

Every evaluation is in a journal beside the result while the search goes on, so one that was interrupted, or whose
budget ended, goes on where it was: started again with the same options it comes to the identical result.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reprokit import _canvas, pipeline, resume, works
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.pipeline import Options, Subject
from reprokit.progress import Progress
from reprokit.reduce.isolation import LEVELS, NotReproduced
from reprokit.reduce.journal import Journal
from reprokit.reduce.model import NO_MODEL, Model
from reprokit.reduce.noise import MARGIN
from reprokit.reduce.oracle import UNLIMITED, Evaluate, Limits
from reprokit.reduce.publish import publish
from reprokit.reduce.reducer import reduce as search
from reprokit.reduce.result import Progress as Step
from reprokit.reduce.result import Reduction
from reprokit.reduce.synthetic import synthesise
from reprokit.replay.result import Replay
from reprokit.replay.sentence import sentence
from reprokit.replay.verdict import Verdict, percent
from reprokit.report import synthetic as scripts
from reprokit.report.figures import contact_sheet, curve
from reprokit.step import rewind
from reprokit.step.worker import Worker

_FLAKY = 14  # replays of a result that fails only sometimes: one that should fail in 3 of 10 is missed once in 150


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What is searched, and how far."""

    rewind: int = 0  # earlier steps that belong to it
    isolation: str = LEVELS[0]  # to begin with
    modules: bool = False  # try the step without its modules, and a plainer loop
    baseline: Any = None  # a config with which the step does not fail
    synthetic: bool = False  # also a twin from generated data, for who may not share the batch
    pictures: Path | None = None  # a folder for them
    workers: int = 1  # processes that evaluate; the result is the same
    limits: Limits = UNLIMITED


WHOLE = Scope()


def reduce(subject: Subject, out: Path, options: Options, progress: Progress, scope: Scope = WHOLE) -> Reduction:
    """Find the smallest case, replay it afresh, and publish it as an incident below `out`.

    Raises NotReproduced where the incident, or in the end its smallest case, does not fail, and Unfinished where its
    limits end it before that is known; nothing is published then. What an interruption leaves is said by `resume`.
    """
    works.check(subject.incident, "reduce")
    if scope.synthetic and subject.incident.manifest.world_size > 1:
        raise BadInput(f"{subject.incident.name}: --synthetic makes one batch, and each rank has its own; leave it out")
    rewind.check(subject.incident, scope.rewind)  # said now, not after an hour, and before a journal stands for it
    if scope.pictures:
        _canvas.require()
        _check_folder(scope.pictures)
    asked = {"rewind": scope.rewind, "modules": scope.modules, "baseline": scope.baseline}
    with ExitStack() as stack:
        journal = stack.enter_context(resume.journal(subject, out, options, asked))
        evaluates, worker = stack.enter_context(_evaluates(subject, options, scope, progress))
        model = _model(subject, options, scope, worker)
        found, verified = _verified(subject, options, scope, progress, journal, evaluates, model)
        found = replace(found, verified=verified.to_json())
        smaller = publish(subject.incident, found, out)
        smaller = resume.placed(journal, "reduction", smaller, complete=found.complete)
        found = replace(found, path=smaller.path)
        if scope.pictures:
            found = _with_pictures(found, subject.incident, scope.pictures)
        if scope.synthetic:
            found = _with_twin(found, smaller, out, options, progress, worker, journal)
        if found.complete:
            journal.remove()
        if journal.broken:
            progress.say(journal.broken)
    return found


def _verified(
    subject: Subject,
    options: Options,
    scope: Scope,
    progress: Progress,
    journal: Journal,
    evaluates: Sequence[Evaluate],
    model: Model,
) -> tuple[Reduction, Replay]:
    """A result that fails in fresh processes as it did in the search; where it did not, searched with less trust."""
    isolation, flaky = scope.isolation, False
    for _ in LEVELS:
        found = search(
            subject.incident,
            evaluates,
            limits=scope.limits,
            journal=journal,
            rewind=scope.rewind,
            model=model,
            lightest=isolation,
            flaky=flaky,
            on_progress=lambda step: progress.show(f"reduce {step.axis or step.phase}", step.calls, None, _note(step)),
        )
        again = replace(options, n=max(options.n, _FLAKY), estimate=True) if found.rate else options
        verified = pipeline.replay(subject, again, progress, replace(found.case, thorough=True))
        if _holds(found, verified):
            return found, verified
        if verified.fail and not flaky:
            progress.say(
                "the result fails only sometimes in fresh processes: searched again, with several trials a question"
            )
            flaky = True
        elif isolation != LEVELS[-1]:
            progress.say("the result does not fail in fresh processes: searched again with one for each evaluation")
            isolation = LEVELS[-1]
        else:
            break
    raise NotReproduced(
        f"{subject.incident.path}: the smallest case found does not replay afresh ({sentence(verified)}), "
        "so it is not published; next: reprokit replay"
    )


def _holds(found: Reduction, verified: Replay) -> bool:
    """It fails afresh, and no more seldom than the margin allows."""
    if not found.rate or found.depends_on_rng:
        return verified.verdict is Verdict.REPRODUCIBLE
    return verified.fail > 0 and verified.interval[1] >= MARGIN * float(found.rate["case"]["low"])


@contextmanager
def _evaluates(
    subject: Subject, options: Options, scope: Scope, progress: Progress
) -> Iterator[tuple[list[Evaluate], Worker | None]]:
    """Processes that live from one evaluation to the next; for a bundle from elsewhere, a container for each."""
    with ExitStack() as stack:
        if subject.foreign and not options.trust:
            engine = stack.enter_context(pipeline.engine_of(subject, options, progress))
            evaluate = lambda case, isolation: engine.submit(case).result()
            yield [evaluate] * max(1, min(scope.workers, engine.capacity)), None
            return
        workers = [
            stack.enter_context(Worker(subject.incident, match=options.match)) for _ in range(max(1, scope.workers))
        ]
        yield [_evaluate(worker, options.timeout) for worker in workers], workers[0]


def _model(subject: Subject, options: Options, scope: Scope, worker: Worker | None) -> Model:
    """What can be tried beside the batch. Raises BadInput where the harness cannot be built."""
    if worker is None:
        return NO_MODEL  # nothing of a bundle from elsewhere is built on this machine
    described = worker.describe(timeout=options.timeout)
    return Model.of(described, subject.incident.config(), modules=scope.modules, baseline=scope.baseline)


def _evaluate(worker: Worker, timeout: float) -> Callable[[Any, Any], Any]:
    return lambda case, isolation: worker.evaluate(case, isolation, timeout=timeout)


def _with_twin(
    found: Reduction,
    smaller: Incident,
    out: Path,
    options: Options,
    progress: Progress,
    worker: Worker | None,
    journal: Journal,
) -> Reduction:
    """With a twin from generated data and its script, below `out`; or with a note that says why there is none: that
    must not cost the reduction."""
    if worker is None:
        return replace(found, notes=(*found.notes, "no synthetic twin: it runs the incident's code here; add --trust"))
    progress.show("synthetic twin", 0, None)
    try:
        twin = synthesise(smaller, out, lambda _, case: worker.evaluate(case, timeout=options.timeout))
        twin = replace(twin, incident=resume.placed(journal, "twin", twin.incident, complete=found.complete))
        script = scripts.write(twin.incident, out / f"{twin.incident.path.name}.py")
    except (NotReproduced, BadInput) as error:
        return replace(found, notes=(*found.notes, f"no synthetic twin: {error}"))
    return replace(found, synthetic={**twin.to_json(), "script": str(script)})


def _check_folder(folder: Path) -> None:
    """Raises BadInput where no folder can be made or written to."""
    place = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
    if not place.is_dir():
        raise BadInput(f"--pictures {folder}: {place} is no folder; give another one")
    if not os.access(place, os.W_OK | os.X_OK):
        raise BadInput(f"--pictures {folder}: {place} cannot be written to; give another folder")


def _with_pictures(found: Reduction, incident: Incident, folder: Path) -> Reduction:
    """The batch with its guilty parts marked, and how it became smaller; or a note that says why there are none."""
    layout, name = Layout.parse(incident.manifest.layout), incident.name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sheet = contact_sheet(_shown(incident, layout, found), layout, found.to_json(), folder / f"{name}-batch.png")
        return replace(found, pictures=(sheet, curve(found.trail, folder / f"{name}-curve.png")))
    except (OSError, BadInput) as error:
        return replace(found, notes=(*found.notes, f"no pictures: {error}"))


def _shown(incident: Incident, layout: Layout, found: Reduction) -> Any:
    """The batch of the step that is guilty; of the failing one where that is it."""
    back = found.case.rewind
    if not back:
        return incident.batch()
    steps = found.axes[rewind.axis(layout)]
    step = (steps.guilty or steps.kept)[0]
    return incident.batch() if step == back else incident.history()[step - back]["batch"]


def _note(step: Step) -> str:
    """For the line of progress: sizes, how often it fails, time left."""
    parts = [" x ".join(f"{axis} {size}" for axis, size in step.kept.items())]
    if step.rate is not None:
        parts.append(f"fails in {percent(step.rate)}")
    if step.left is not None:
        parts.append(f"about {step.left:.0f} s left")
    return ", ".join(parts)
