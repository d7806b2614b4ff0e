"""Watch training, and write an incident when a step fails.

At the start of each step the recorder takes hold of what a replay needs: state, generators, the batch, most of it by
reference (`Start` says why that is enough). If the step is healthy its batch becomes the donor of the next one; if not,
all of that is copied before anything is updated, and written. Nothing that goes wrong while an incident is written may
reach training: it goes on, or stops with its own error, never with ours.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml

from reprokit import _yaml, tree
from reprokit.capture import black_box as box
from reprokit.capture import loaders
from reprokit.capture.begun import Begun
from reprokit.capture.brief import Brief
from reprokit.capture.built import difference, parts_of
from reprokit.capture.disk import Disk
from reprokit.capture.entrypoint import name_of
from reprokit.capture.flights import Flight, Flights, latch_of
from reprokit.capture.history import BYTES, STEPS, History
from reprokit.capture.logs import note, one_line, stacks
from reprokit.capture.ranks import Ranks, Told
from reprokit.capture.recovery import AT_MOST, IncidentCaptured, OnFailure, Recovery
from reprokit.capture.rehearsal import Rehearsals
from reprokit.capture.seen import Seen
from reprokit.capture.signals import Signals
from reprokit.capture.snapshot import Saw, Snapshot
from reprokit.capture.source import find_root
from reprokit.capture.watchdog import Watchdog
from reprokit.capture.writer import BatchMode, OnIncident, StateMode, Writer
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.layout import Layout
from reprokit.step import detectors
from reprokit.step.limits import Limits
from reprokit.step.load import stop_if_loading
from reprokit.step.probe import Probe
from reprokit.step.run import run

__all__ = ["IncidentCaptured", "Recorder", "Watch"]

log = logging.getLogger("reprokit")


class Recorder:
    """The flight recorder around a training loop: `recorder.step(batch)`, or `with recorder.watch(batch)`.

    harness, build, config: what `build(config)` returned, and both of its sides. out: the folder of the incidents.
    entrypoint: "package.module:build" where it cannot be told from `build` itself. on_failure: "raise"
    IncidentCaptured; "skip" what failed, skip_at_most steps in a row; or "fallback" to another precision, clipping or
    loss scale for that step (docs/recorder.md): `skipped` and `fallbacks` tell where. rehearse: replay the first two
    healthy steps in a fresh process; "auto" does while the state is under 1 GB. history: how many steps before the
    failing one an incident holds, for `replay --rewind`; their batches are not copied. history_bytes: the most that
    those batches, and the states from which they can be run again, may take where they are. limits: from where on a
    finite value is a failure (docs/detectors.md). latch: read a step's numbers late and hold the parameters until then
    (docs/recorder.md); "auto" does where all optimizers are fused. black_box: keep what a step begins with in shared
    memory, so that a process that dies in it leaves an incident; only under `reprokit run`, which asks for it by
    default. It costs a copy of each batch, one of the state every few steps, and their memory. state: "checkpoint"
    points to what the last checkpoint holds (see `checkpoint`), "none" keeps none; batch: "pointers" keeps the names of
    samples alone; disk: what incidents may take; recapture: write a failure each time, not once (docs/incidents.md).
    reason: why this run is recorded, a line for each of its incidents. on_incident: called with each that was written,
    for a tracker (docs/integrations.md). steps_before: that a run which is resumed has had; its own are numbered on.
    Raises BadInput where a replay could not find `build` again, or the config is no plain data.
    """

    def __init__(
        self,
        harness: Harness,
        *,
        build: Callable[[Any], Harness],
        config: Any,
        out: str | Path = "incidents",
        entrypoint: str | None = None,
        on_failure: OnFailure = "raise",
        skip_at_most: int = AT_MOST,
        rehearse: bool | Literal["auto"] = "auto",
        history: int = STEPS,
        history_bytes: int = BYTES,
        limits: Limits | None = None,
        latch: bool | Literal["auto"] = "auto",
        black_box: bool | None = None,
        state: StateMode = "full",
        batch: BatchMode = "full",
        disk: Disk | None = None,
        recapture: bool = False,
        reason: str = "",
        on_incident: OnIncident | None = None,
        steps_before: int = 0,
    ) -> None:
        stop_if_loading()
        if not isinstance(harness, Harness):
            raise BadInput(
                f"Recorder: the first argument is a {type(harness).__name__}; hand over what build(config) returns"
            )
        if type(steps_before) is not int or steps_before < 0:
            raise BadInput(
                f"Recorder: steps_before={steps_before!r}; expected how many steps the run has had, 0 or more"
            )
        self._history, limits = History(history, history_bytes), limits or Limits()
        self._watchdog = Watchdog(limits.hang_after)
        self.findings: list[str] = []  # of the rehearsal: what will not replay, a line each
        self.steps = self._before = steps_before  # that were begun
        self._reason = {"reason": reason} if reason else {}
        self._watching = threading.Lock()  # a step; of one thread at a time
        self._told: Exception | None = None  # that a step raised last
        self._begun: Begun | None = None  # the step that is under way
        self._harness, self._built = harness, parts_of(harness)
        self._layout = Layout.parse(harness.layout)
        name, file = name_of(build, entrypoint)
        self._root = find_root(file)
        of_run = box.Run(
            config=_plain(config),
            entrypoint=name,
            layout=self._layout.spec,
            root=self._root,
            out=Path(out).absolute(),  # training may change its directory
        )
        self._writer = Writer(
            of_run, state=state, batch=batch, limits=disk, recapture=recapture, on_incident=on_incident
        )
        self.incidents = self._writer.incidents
        self._ranks = Ranks(self._writer, self._history)
        self._signals = Signals(busy=self._writer.busy, finish=self._writer.wait)
        self._box = box.BlackBox(black_box, of_run)
        self._rehearsals = Rehearsals(harness, rehearse, of_run.out)
        self._flights = Flights(
            harness,
            detectors.of_run(limits),
            self._history,
            latch_of(harness, latch),
            self._box,
            metrics=self._writer.metrics,
            finding=self._finding,
            before=steps_before,
        )
        self._recovery = Recovery(
            self._flights,
            on_failure=on_failure,
            at_most=skip_at_most,
            capture=self._capture,
            watching=self._overdue,
            healthy=self._healthy,
            fell_back=self._writer.fell_back,
            metrics=self._writer.metrics,
            findings=self.findings,
            roots=[self._root],
        )
        self.skipped, self.fallbacks = self._recovery.skipped, self._recovery.fallbacks

    def __enter__(self) -> Recorder:
        self._writer.__enter__()
        self._signals.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._recovery.on_failure = "raise"  # training ends in any case
        late = self._late_failure()
        if isinstance(error, Exception) and error is not self._told and late is None:
            self._between_steps(error)
        self._ranks.close(error)
        late = late or self._late_failure()  # of another rank, in the last step
        self._watchdog.close()
        self._box.close()
        self._writer.__exit__(kind, error, trace)
        self._signals.__exit__()
        if late is not None and error is None:
            raise late

    @property
    def rehearsed(self) -> int:
        """How many steps were shown to replay."""
        return len(self._rehearsals.shown)

    def checkpoint(self, path: str | Path, step: int | None = None) -> None:
        """The loop has written a checkpoint, after this step (by default the last). With `state="checkpoint"`, what it
        holds of a failing step's state is not written once more: keep the file for as long as the incident."""
        self._writer.checkpoint(Path(path), self.steps if step is None else step)

    def settle(self) -> None:
        """Judge every step so far, waiting for its numbers: what is saved then has all their updates. Raises
        IncidentCaptured."""
        with Brief():
            self._settle(wait=True)

    def step(self, batch: Any) -> Any:
        """Run `harness.step` on a batch and all that belongs to the step; returns what it returned, or None where it
        raised and was skipped.

        Raises IncidentCaptured where the step failed quietly, and what the step itself raises.
        """
        result = None
        with Brief(), self._watched(batch) as probe:
            result = run(self._harness, batch, probe, micro=self._flights.micro)
        return self._recovery.result(self.steps, result)

    @contextmanager
    def watch(self, batch: Any) -> Iterator[Watch]:
        """Around one step of a loop of one's own, which must do the same as `harness.step`.

        Raises IncidentCaptured at its end where the step failed quietly, and what the loop itself raises.
        """
        with Brief(), self._watched(batch, ours=False) as probe:
            yield Watch(probe)

    def capture(self, why: str, trace: str = "") -> Path | None:
        """Write an incident though nothing failed, and go on; `kill -USR1` asks for the same at the end of a step.

        Within a step it is of that step. Between two it is of what comes next, with the last healthy batch in place of
        one that nobody has seen yet; what ran before is in its history. Call it where the loop runs. Raises BadInput
        before the first step has ended. None where it could not be written, which a line in the log explains.
        trace: of an exception that was met elsewhere, kept before the stacks of all threads.
        """
        begun = self._begun if self._watching.locked() else self._between()
        logs = {"reason": why} | ({"traceback": f"{trace}\n{stacks()}"} if trace else {})
        return self._capture(begun, Seen(), None, logs)

    def _between(self) -> Begun | None:
        if (donor := self._flights.donor) is None:
            raise BadInput("Recorder.capture: no step has ended yet, so there is no batch; call it in a step or after")
        line = f"batch: of the step after {self.steps}, which nobody has seen yet; the last healthy one is in its place"
        return self._next(tree.unpack(donor.packed), [line])

    def _next(self, batch: Any, left_out: list[str], *, came: bool = True) -> Begun | None:
        """The step after the last one, as if it began now; None, with a line, where that cannot be taken."""
        try:
            begun = self._flights.take(self.steps, batch, whole=True)
        except Exception as trouble:
            log.error("nothing is captured: what a step would start from cannot be taken: %s", one_line(trouble))
            return None
        return replace(begun, step=self.steps + 1, came=came, left_out=[*begun.left_out, *left_out])

    def _between_steps(self, error: Exception) -> None:
        """What leaves the loop where no step is under way: captured where it is the loader's, else left alone."""
        if (seen := loaders.seen(error, [self._root])) is None:
            return
        if path := self._capture(self._next({}, [], came=False), seen, error):
            note(error, f"reprokit captured what its loader left in {path}; next: reprokit show {path}")

    @contextmanager
    def _watched(self, batch: Any, *, ours: bool = True) -> Iterator[Probe]:
        if not self._watching.acquire(blocking=False):
            raise BadInput(
                "Recorder: a step was begun inside another one; end the first, or give it a recorder of its own"
            )
        flight: Flight | None = None
        try:
            self.steps += 1
            if self.steps == self._before + 1:
                self._layout.sizes(batch)  # one that does not fit is said now, not at the failure
            self._begun = begun = self._flights.begin(self.steps, batch)
            self._ranks.begin(begun)
            self._stop_if_told()
            probe = self._flights.probe(begun, batch)
            flight = Flight(number=self.steps, begun=begun, probe=probe, ours=ours)
            with probe, self._overdue(begun, self.steps):
                yield probe
        except (IncidentCaptured, BadInput):
            raise  # of a step inside this one; of a harness that is not what it must be: no failure of training
        except Exception as error:
            if flight is None or loaders.interrupts(error):
                raise  # of a batch that has no layout; of a worker that died meanwhile: no failure of this step
            if not self._goes_on(flight, error):
                raise
            return
        finally:
            self._begun = None
            self._ranks.end()
            self._box.end()
            self._watching.release()
        self._flights.end(flight)
        self._settle()
        self._signals.settle()
        if self._signals.asked() and self._flights.donor is not None:
            self.capture("SIGUSR1")

    def _goes_on(self, flight: Flight, error: Exception) -> bool:
        """Whether training does, after what left a step. Its cause may be an earlier one, which is judged first."""
        flight.error = self._told = error
        self._flights.end(flight)
        if earlier := self._late_failure():
            note(error, str(earlier))
            return False
        self._told = error if flight.ends else None  # it holds all that the step held
        return not flight.ends

    def _late_failure(self) -> IncidentCaptured | None:
        """Of a step that ended and was not judged yet."""
        try:
            self._settle(wait=True)
        except IncidentCaptured as late:
            return late.with_traceback(None)
        return None

    def _settle(self, *, wait: bool = False) -> None:
        """Judge the steps whose numbers have arrived. wait: all of them. Raises IncidentCaptured, for a failure of
        another rank too."""
        try:
            self._recovery.settle(wait=wait)
        except IncidentCaptured as captured:
            if told := self._ranks.ended(captured.path):
                raise _captured(told) from captured.__cause__
            raise
        self._stop_if_told()

    def _stop_if_told(self) -> None:
        if told := self._ranks.told():
            raise _captured(told)

    def _healthy(self, flight: Flight) -> None:
        self._ranks.healthy(flight.number)
        self._flights.healthy(flight)
        if (begun := flight.begun) is None:
            return
        write = lambda out: self._writer.write_to(out, self._snapshot(begun), flight.probe)
        for line in self._rehearsals.after(flight.number, write):
            self._finding(line)
            self._history.doubt(line)

    def _finding(self, line: str) -> None:
        if line not in self.findings:
            self.findings.append(line)
            log.warning("step %d would not replay: %s", self.steps, line)

    def _overdue(self, begun: Begun | None, step: int) -> AbstractContextManager[None]:
        """Around a step, which is captured where it hangs: on the watchdog's thread, while it goes on."""
        write = lambda hang: self._capture(begun, hang.seen, None, {"traceback": hang.stacks})
        return self._watchdog.watching(step, write)

    def _capture(
        self, begun: Begun | None, saw: Saw, error: BaseException | None, logs: Mapping[str, str] | None = None
    ) -> Path | None:
        if begun is None:
            return None
        logs = {**self._reason, **(logs or {})}
        write = lambda company: self._writer.write(
            begun.step, lambda: replace(self._snapshot(begun), company=company), saw, error, logs
        )
        with self._signals.writing():
            return self._ranks.capture(begun, saw, error, write)

    def _snapshot(self, begun: Begun) -> Snapshot:
        start, past = begun.snapshot(), self._history.past(begun.step)
        where, notes = loaders.where(self._harness.loader)
        if line := difference(self._built, parts_of(self._harness)):
            self._finding(line)
            notes = [*notes, line]
        return replace(start, past=past, loader=where, left_out=[*start.left_out, *self._history.notes(), *notes])


class Watch:
    """What a loop of one's own tells the recorder about its step."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def losses(self, losses: Any) -> None:
        """The loss, or a mapping of loss terms with the key "loss"; tensors of one element, or numbers."""
        self._probe.look_at_losses(losses)


def _captured(told: Told) -> IncidentCaptured:
    """What all ranks raise, whichever failed."""
    assert told.path is not None
    assert told.signature is not None
    return IncidentCaptured(told.path, told.signature, told.step, f"in rank {told.rank}, as the first")


def _plain(config: Any) -> Any:
    """A copy of a config that a YAML file can hold. Raises BadInput where it cannot."""
    try:
        return _yaml.read(yaml.safe_dump(config))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadInput(
            f"Recorder: config holds what YAML cannot ({one_line(error)}); a config is plain data: dicts, "
            "lists, numbers, strings, booleans and None"
        ) from error
