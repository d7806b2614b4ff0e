"""What becomes of training when a step has failed: it ends, or it goes on.

Whatever comes then, the failure is captured first, from the start of its step.

`skip`: training goes on as if the batch had never come. Parameters, buffers, optimizer, scaler, `.grad`, `extra_state`,
the place in gradient accumulation and the generators are what they were when the step began. The generators too, since
that is what leaving a batch out means: the next one gets the random numbers that this one got, and the run is the one
that never saw it, bit for bit. What cannot be undone is what the loop itself has done since: batches that it fetched, a
scheduler that it stepped between two steps.

`fallback`: the step is run again from its start, as variants, until one passes (`capture.fallback`).

Where the failure is read late (`capture.latch`), steps have run since in which nothing was updated. They are run again
from their own batches, in their order, with what the loop did between them, and each is judged again. Their random
numbers follow on from those before, as they would have without the batch. But where the loop has drawn from the
generators between them, for batches that it has in hand, it must not draw the same numbers once more: there each step
gets those that it had.

A latch can be wrong about gradients whose squares overflow. Then all of these steps, the suspected one too, are run
again with the random numbers that they had, which is what would have happened without a recorder.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from reprokit import failure
from reprokit.capture import allocator
from reprokit.capture.again import again, in_company
from reprokit.capture.begun import Begun
from reprokit.capture.fallback import Fallback, fall_back
from reprokit.capture.flights import Flight, Flights
from reprokit.capture.latch import LateProbe
from reprokit.capture.logs import note, one_line
from reprokit.capture.rerun import Cannot, Rerun, drew, lost
from reprokit.capture.snapshot import Saw
from reprokit.errors import BadInput, Infrastructure, ReprokitError
from reprokit.failure import Kind, Signature, Symptom
from reprokit.harness import State
from reprokit.step.detectors import Watching
from reprokit.step.probe import Probe

OnFailure = Literal["raise", "skip", "fallback"]
AT_MOST = 10  # steps skipped in a row: a bad shard of data passes, a run that has gone bad does not

log = logging.getLogger("reprokit")


class IncidentCaptured(ReprokitError):
    """A step failed without raising, and was captured. `path` is the incident, `signature` what failed."""

    def __init__(self, path: Path, signature: Signature, step: int, why: str = "") -> None:
        super().__init__(
            f"step {step}: {signature.kind} at {signature.where}; {f'{why}; ' * bool(why)}captured in {path}; "
            f"next: reprokit show {path}"
        )
        self.path = path
        self.signature = signature


class Capture(Protocol):
    """Write an incident; None where none was written."""

    def __call__(
        self, begun: Begun | None, saw: Saw, error: BaseException | None, logs: Mapping[str, str] | None = None
    ) -> Path | None: ...


class Recovery:
    """Judges the steps of a run, and sees to those that failed.

    capture: write an incident. watching: a context around a step that is run again. healthy: told of each step that
    was. fell_back: told beside which incident a fallback is to be found. metrics: of the steps judged so far. findings:
    of the rehearsal. roots: of the user's code. Raises BadInput.
    """

    def __init__(
        self,
        flights: Flights,
        *,
        on_failure: OnFailure,
        at_most: int,
        capture: Capture,
        watching: Callable[[Begun | None, int], AbstractContextManager[None]],
        healthy: Callable[[Flight], object],
        fell_back: Callable[[Path, dict[str, Any]], object],
        metrics: deque[dict[str, Any]],
        findings: Sequence[str],
        roots: Sequence[Path],
    ) -> None:
        if on_failure not in get_args(OnFailure):
            raise BadInput(f"Recorder: on_failure={on_failure!r}; expected one of {', '.join(get_args(OnFailure))}")
        if type(at_most) is not int or at_most < 1:
            raise BadInput(f"Recorder: skip_at_most={at_most!r}; expected how many steps in a row, 1 or more")
        self.on_failure: OnFailure = on_failure
        self.skipped: list[int] = []
        self.fallbacks: list[Fallback] = []
        self._flights, self._capture, self._is_healthy = flights, capture, healthy
        self._fell_back, self._metrics, self._findings, self._roots = fell_back, metrics, findings, roots
        self._at_most, self._in_a_row = at_most, 0
        self._rerun = Rerun(flights, watching, lambda: self.settle(wait=True))
        self._said = False
        flights.runs_again = on_failure != "raise"

    def settle(self, *, wait: bool = False) -> None:
        """Judge the steps whose numbers have arrived. wait: all of them. Raises IncidentCaptured."""
        for flight in self._flights.judged(wait=wait or self._must_wait()):
            if flight.error is not None:
                flight.ends = not self._raised(flight, flight.error)
                continue
            self._note(flight.number, flight.probe.losses)
            if flight.probe.symptoms:
                self._failed(flight)
            else:
                self._healthy(flight)

    def result(self, step: int, result: Any) -> Any:
        """What this step returned, or what it returned when it was run again."""
        found, self._rerun.result = self._rerun.result, None
        return found[1] if found and found[0] == step else result

    def _must_wait(self) -> bool:
        """Steps are to be read in time, since those after a failing one could not be run again."""
        if self.on_failure == "raise" or self._flights.latch is None or self._flights.in_time is None:
            return False
        if not self._said:
            self._said = True
            log.info("on_failure=%s: each step waits for its numbers: %s", self.on_failure, self._flights.in_time)
        return True

    def _note(self, step: int, losses: Mapping[str, float]) -> None:
        if self._metrics and self._metrics[-1]["step"] == step:
            self._metrics.pop()
        self._metrics.append({"step": step, **{name: str(value) for name, value in losses.items()}})

    def _healthy(self, flight: Flight) -> None:
        self._in_a_row = 0
        self._is_healthy(flight)

    def _failed(self, flight: Flight) -> None:
        begun, probe = flight.begun, flight.probe
        if begun is not None and isinstance(probe, LateProbe):
            begun.held = probe.latched
            probe = self._closely(begun, probe)
            if not probe.symptoms:
                self._false_alarm(flight, self._flights.failed())
                return
        path = self._capture(begun, probe, None)
        signature = failure.first(probe.symptoms)
        assert signature is not None
        why = ""
        if self.on_failure != "raise":
            try:
                self._go_on(flight, probe.symptoms, path)
                return
            except Cannot as reason:
                why = f"on_failure={self.on_failure}: {reason}"
        self._flights.failed()
        if path is None and self._in_a_row > self._at_most:
            raise Infrastructure(f"step {flight.number}: {signature.kind} at {signature.where}; {why}; see the log")
        if path is not None:
            raise IncidentCaptured(path, signature, flight.number, why)
        if why:
            log.error("step %d: %s", flight.number, why)

    def _closely(self, begun: Begun, probe: LateProbe) -> Probe:
        try:
            found, doubt = again(self._flights.harness, begun.snapshot(), probe)
        except Exception as trouble:  # no memory for it, or a harness that is another one by now
            log.warning("step %d is not run again for a closer look: %s", begun.step, one_line(trouble))
            return probe
        if doubt:
            begun.doubts.append(doubt)
            log.warning("step %d: %s", begun.step, doubt)
        return found

    def _go_on(self, flight: Flight, symptoms: Sequence[Symptom], path: Path | None) -> None:
        """Raises Cannot."""
        begun = flight.begun
        if begun is None:
            raise Cannot("what the step starts from could not be taken")
        if in_company():
            raise Cannot("other ranks would have to do the same")
        state = self._rerun.start_of(begun)
        rest = self._flights.failed()
        steps, own = [flight, *rest], drew(flight, rest)
        if why := lost(rest if self.on_failure == "skip" else steps, steps[:-1]):
            raise Cannot(why)
        if self.on_failure == "skip":
            told = self._skip(flight, state)
        else:
            told = self._fall_back(flight, state, symptoms, path)
        line = f"step {flight.number}: {symptoms[0].kind} at {symptoms[0].where}: {told}"
        line += f"; {_span(rest)} run again" if rest else ""
        if self._findings and (rest or self.on_failure == "fallback"):
            line += "; what is run again may differ from your loop, as the rehearsal has found"
        log.warning("%s; %s", line, f"captured in {path}" if path else "not captured, see above")
        self._rerun.after_first(steps, own=own)

    def _skip(self, flight: Flight, state: State) -> str:
        self._rerun.restore(flight, state)
        self._in_a_row += 1
        if self._in_a_row > self._at_most:
            raise Cannot(f"{self._in_a_row} steps in a row failed, and skip_at_most is {self._at_most}")
        self.skipped.append(flight.number)
        return "skipped"

    def _fall_back(self, flight: Flight, state: State, symptoms: Sequence[Symptom], path: Path | None) -> str:
        assert flight.begun is not None
        bounds = flight.probe.bounds if isinstance(flight.probe, LateProbe) else self._flights.detectors.bounds()

        def restore() -> None:
            self._rerun.restore(flight, state)

        told, kept = fall_back(self._flights.harness, flight.begun, symptoms, bounds, restore)
        self.fallbacks.append(told)
        if path is not None:
            self._fell_back(path, told.to_json())
        if kept is None:
            restore()
            raise Cannot(f"nothing helped: {'; '.join(f'{name}: {outcome}' for name, outcome in told.tried)}")
        self._in_a_row = 0
        self._flights.passed(flight, kept.scaling)
        self._note(flight.number, kept.losses)
        self._rerun.result = (flight.number, kept.result)
        return f"{told.helped} helped, for this step alone"

    def _raised(self, flight: Flight, error: Exception) -> bool:
        """An exception left the step. Whether training goes on."""
        probe, logs = flight.probe, {}
        probe.fail(error, self._roots)
        if probe.signature and probe.signature.kind is Kind.OOM:
            probe.add(found := allocator.evidence())
            logs["memory"] = allocator.text(found)
        if path := self._capture(flight.begun, probe, error, logs):
            note(error, f"reprokit captured this step in {path}; next: reprokit show {path}")
        if self.on_failure != "skip" or flight.begun is None or in_company():
            return False
        try:
            if (state := flight.begun.snapshot().state) is None:
                raise Cannot("what it started from was written into before it raised")
            self._flights.failed()
            told = self._skip(flight, state)
        except Exception as reason:
            note(error, f"on_failure=skip: {reason if isinstance(reason, Cannot) else one_line(reason)}")
            return False
        log.warning("step %d: %s: %s; captured in %s", flight.number, one_line(error), told, path)
        return True

    def _false_alarm(self, flight: Flight, rest: list[Flight]) -> None:
        """The harness is as it was when the step began."""
        self._flights.back_to(flight)
        steps = [flight, *rest]
        what = f"step {flight.number}: squares overflow in its norm, and all values are finite"
        if why := lost(steps, steps[:-1]):
            log.warning("%s: no failure, but the updates of %s are lost: %s", what, _span(steps), why)
            return
        log.info("%s: no failure; %s run again", what, _span(steps))
        self._rerun.attempt(flight, Watching())  # its numbers have been told to the run's detectors
        try:
            self._rerun.after_first(steps, own=True)
        except Cannot as reason:
            log.warning("%s: no failure, but updates of %s are lost: %s", what, _span(steps), reason)


def _span(steps: Sequence[Flight]) -> str:
    first, last = steps[0].number, steps[-1].number
    return f"step {first} is" if first == last else f"steps {first} to {last} are"
