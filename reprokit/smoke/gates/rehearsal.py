"""Gate zero: a step runs, and runs again in a fresh process with the same bits.

Nothing else that reprokit says about a failure holds for a harness that fails this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from reprokit._scratch import Scratch
from reprokit.capture.again import in_company
from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.capture.rehearsal import DEADLINE, STEPS
from reprokit.smoke.gate import Finding, Gate, Subject
from reprokit.smoke.laps import copied, laps
from reprokit.smoke.words import counted

RUNS, REPLAYS = "the step runs", "it replays bit for bit in a fresh process"


class Rehearsal(Gate):
    """Costs two laps here, and for each step a fresh process that runs it four times."""

    name = "rehearsal"
    meanwhile = "a fresh process imports all anew, for each of two steps"

    def look(self, subject: Subject) -> Iterator[Finding]:
        if not subject.batches:
            yield from (self.not_applicable(check, subject.no_batches) for check in (RUNS, REPLAYS))
            return
        began, asked = perf_counter(), f"{counted(len(subject.batches), 'step')} without an exception"
        done = list(laps(subject, subject.harness()))
        seconds = perf_counter() - began
        yield self.passed(RUNS, asked, f"{counted(len(done), 'step')} in {seconds:.1f} s", seconds=seconds)
        if any(lap.detached for lap in done):
            yield self.not_applicable(REPLAYS, "the loss has no graph, so there is no step to replay")
        elif in_company():
            yield self.not_applicable(REPLAYS, "several ranks train together; smoke one of them alone")
        else:
            yield self._replayed(subject)

    def _replayed(self, subject: Subject) -> Finding:
        wanted = min(STEPS, len(subject.batches))
        with Scratch("smoke") as scratch:
            recorder = Recorder(
                subject.harness(),
                build=subject.build,
                config=subject.config,
                entrypoint=subject.entrypoint,
                out=Path(scratch),
                rehearse=True,
                latch=False,
                black_box=False,
            )
            try:
                with recorder, subject.clock.longer(STEPS * DEADLINE):
                    for batch in subject.batches:
                        recorder.step(copied(batch))
            except IncidentCaptured as failed:
                where = f"{failed.signature.kind} at {failed.signature.where}"
                return self.not_applicable(
                    REPLAYS, f"step {recorder.steps} fails ({where}), and healthy ones are asked"
                )
        shown = f"{recorder.rehearsed} of {counted(wanted, 'step')}"
        if recorder.findings or recorder.rehearsed < wanted:
            said = "; ".join(recorder.findings) or "no replay was seen to its end"
            advice = (
                "state that the step keeps belongs into the harness (modules, or extra_state=), and build and step get "
                "by with the config alone"
            )
            return self.failed(REPLAYS, counted(wanted, "step"), f"{shown}: {said}", advice).on(recorder.rehearsed + 1)
        return self.passed(REPLAYS, counted(wanted, "step"), shown, steps=recorder.rehearsed)
