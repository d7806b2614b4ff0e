"""Steps from their beginning until they are judged.

A step begins with a hold on all that an incident of it would need, and is judged once its numbers are on the host:
where an optimizer can skip on its device that may be some steps later (`capture.latch`). So steps wait in a line, and
leave it in their order, since what is healthy is told by those before.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from reprokit import tree
from reprokit.capture import black_box as box
from reprokit.capture.batch import Held
from reprokit.capture.begun import Begun
from reprokit.capture.history import APART, History
from reprokit.capture.latch import Latch, LateProbe, possible
from reprokit.capture.logs import one_line
from reprokit.capture.start import Start, Steady
from reprokit.errors import BadInput
from reprokit.harness import Harness, take_state
from reprokit.step import flags, rng
from reprokit.step.between import Changes
from reprokit.step.detectors import Watching
from reprokit.step.detectors.view import Scaling
from reprokit.step.probe import Probe

LATEST = 8  # steps that may wait to be judged, on a GPU that is far behind its host; the next one waits
WARM = 2  # first steps, which are copied whole: they show what may be kept by reference
METRICS_IN_BOX = 32  # of them in a black box, which writes them each step

log = logging.getLogger("reprokit")


@dataclass(kw_only=True, slots=True)
class Flight:
    """A step that ended."""

    number: int
    begun: Begun | None  # None: what it started from could not be taken
    probe: Probe
    ours: bool = True  # it was run by us, and not by a loop of the user's own
    error: Exception | None = None  # that left it
    ends: bool = False  # training, since the step raised and is not to be left out
    generators: dict[str, Any] | None = None  # at its end, where that was kept
    after: Changes | None = None  # what the loop did until the next one began; None: cannot be done again


class Flights:
    """Of one run. metrics: of the steps judged so far. finding: told what will not replay, a line each. before: the
    number of the step before the first."""

    def __init__(
        self,
        harness: Harness,
        detectors: Watching,
        history: History,
        latch: Latch | None,
        box: box.BlackBox,
        *,
        metrics: Sequence[Mapping[str, Any]],
        finding: Callable[[str], object],
        before: int = 0,
    ) -> None:
        self.harness, self.detectors, self.history, self.latch = harness, detectors, history, latch
        self.donor: Held | None = None  # the last healthy batch
        self.micro = 0  # batches that the optimizer step under way has had
        self.runs_again = False  # steps may be run again after a failure: what that takes is kept
        self.in_time: str | None = None  # why steps that ran after a failing one could not be run again
        self._box, self._metrics, self._finding = box, metrics, finding
        self._steady, self._warm = Steady(), before + WARM
        self._moves_unknown = latch is not None  # what a step moves after the last look: only late readers need that
        self._shows_moves: Start | None = None
        self._said: set[str] = set()
        self._looked_whole = 0  # step after which all parameters were looked at
        self._waiting: deque[Flight] = deque()

    def begin(self, number: int, batch: Any) -> Begun | None:
        """What the step starts from; None where that cannot be taken, which is said once and stops nothing."""
        whole = self.history.due(number, self.harness) or number <= self._warm
        if self._moves_unknown:
            self._learn_moves()
            whole = whole or self.micro + 1 == self.harness.accumulate
        if self._waiting:
            self._waiting[-1].after = self.history.after(number - 1)
        try:
            begun = self.take(number, batch, whole=whole)
        except Exception as trouble:
            self._finding(f"what the step starts from cannot be taken: {one_line(trouble)}")
            return None
        self.history.begin(begun)
        if begun.left_out:
            self.in_time = begun.left_out[0]
        elif not self.history.joins:
            self.in_time = "what the loop does between two steps cannot be done again"
        if self._box.kept:
            self._put_into_box(begun)
        return begun

    def take(self, number: int, batch: Any, *, whole: bool) -> Begun:
        """The same, without a trace. whole: all of it copied."""
        left_out: list[str] = []
        reference = tree.refer(
            batch, name="batch", on_unstorable=lambda entry, value: left_out.append(self._lacks(entry, value))
        )
        copied = number <= self._warm or self.history.copies
        return Begun(
            step=number,
            start=Start(self.harness, self._steady, full=whole, loop=self._loop()),
            loop=self._loop(),
            rng=rng.take(),
            flags={**flags.take(), "device": str(self.harness.device), "harness_autocast": self.harness.autocast},
            batch=Held.of(reference),
            copy=Held.of(reference, copy=True) if copied else None,
            donor=self.donor,
            left_out=left_out,
        )

    def probe(self, begun: Begun | None, batch: Any, watching: Watching | None = None, *, late: bool = True) -> Probe:
        """The context for the step. watching: in place of the run's detectors; late: it may be read late."""
        at_door = lambda one: self._at_door(one, begun, probe)
        trouble = lambda error: self._blind(begun, error)
        probe: Probe
        if not late or self.latch is None or begun is None or begun.step <= self._warm:
            probe = Probe(self.harness, watching or self.detectors, batch, at_door, trouble)
            return probe
        whole = begun.start.full or begun.step - self._looked_whole >= APART  # there may be no history, and no anchors
        self._looked_whole = begun.step if whole else self._looked_whole
        probe = LateProbe(self.harness, self.detectors, batch, at_door, self.latch, whole=whole, trouble=trouble)
        return probe

    def _blind(self, begun: Begun | None, error: Exception) -> None:
        if (line := one_line(error)) not in self._said:
            self._said.add(line)
            step = f"step {begun.step}" if begun else "a step"
            log.error("%s, and others like it, is not looked at, training is left alone: %s", step, line)

    def end(self, flight: Flight) -> None:
        """The step is over."""
        if flight.error is not None:
            self._waiting.append(flight)
            return
        self._box.end()
        self.micro = (self.micro + 1) % self.harness.accumulate
        if flight.probe.blind:
            self.history.failed()  # whether the next one follows from this one, nobody knows
            return
        for stranger in dict.fromkeys(flight.probe.strangers):
            self._finding(
                f"an optimizer that the harness does not list took a step: {stranger}; hand it over in "
                "Harness(optimizer={'name': optimizer, ...})"
            )
        if flight.begun is not None and not flight.probe.symptoms:
            self.history.end(flight.begun, self.harness)
        if self.runs_again and isinstance(flight.probe, LateProbe):
            flight.generators = rng.take()
        self._waiting.append(flight)

    def judged(self, *, wait: bool = False) -> Iterator[Flight]:
        """Steps whose numbers have arrived, in their order. wait: all of them."""
        while self._waiting and (wait or len(self._waiting) > LATEST or self._waiting[0].probe.ready):
            flight = self._waiting.popleft()
            flight.probe.settle()
            yield flight

    def healthy(self, flight: Flight) -> None:
        """Its batch becomes the donor, unless it may be what stalls the scaler in the end."""
        if flight.begun is None:
            return
        flight.begun.settled(late=isinstance(flight.probe, LateProbe))
        if self._moves_unknown and flight.begun.start.full and flight.probe.stepped:
            self._shows_moves = flight.begun.start
            if self.harness.device.type == "cpu":  # elsewhere a step may be read when the next one has begun
                self._learn_moves()
        if flight.probe.scaling is not None and flight.probe.scaling.skipped > 0:
            self.history.suspect(flight.number)
        else:
            self.donor = flight.begun.kept

    def failed(self) -> list[Flight]:
        """One did, and was seen to: optimizers go on. Those after it, in which nothing was updated, are given back."""
        if self.latch is not None:
            self.latch.clear()
        after = list(self._waiting)
        self._waiting.clear()
        self.history.failed()
        return after

    def back_to(self, flight: Flight) -> None:
        """The harness is as it was when this step began, and so is what is counted here. A loop counts for itself."""
        assert flight.begun is not None
        self.detectors.skipped(flight.begun.loop.get("skips", 0))
        if flight.ours:
            self.micro = flight.begun.loop["micro"]

    def passed(self, flight: Flight, scaling: Scaling | None) -> None:
        """It did at last, as a variant, right after `back_to`. Not as it would again: it is in no history."""
        if flight.ours:
            self.micro = (self.micro + 1) % self.harness.accumulate
        if scaling is not None:
            self.detectors.skipped(scaling.skipped + (0 if scaling.succeeded else self.detectors.skips))

    def _learn_moves(self) -> None:
        if self._shows_moves is not None:
            self._shows_moves.learn_moves()
            self._moves_unknown, self._shows_moves = False, None

    def _at_door(self, optimizer: torch.optim.Optimizer, begun: Begun | None, probe: Probe) -> None:
        """A failure shows here or, most likely, not at all; this optimizer has not updated anything yet."""
        if begun is not None:
            begun.look(failing=bool(probe.symptoms))
            key = next(key for key, one in self.harness.optimizers.items() if one is optimizer)
            begun.start.updating(key, optimizer)

    def _loop(self) -> dict[str, int]:
        """What of the loop's state is the recorder's: it is not in the harness, and a replay needs it."""
        return {"micro": self.micro, **({"skips": self.detectors.skips} if self.harness.scaler else {})}

    def _lacks(self, entry: str, value: object) -> str:
        self._finding(
            f"{entry} ({type(value).__name__}) cannot be stored, so a replay lacks it; use tensors, arrays, "
            "numbers, strings, and lists, tuples or dicts of them"
        )
        return f"{entry}: a {type(value).__name__} cannot be stored"

    def _put_into_box(self, begun: Begun) -> None:
        start = box.Start(
            step=begun.step,
            batch=begun.kept.packed,
            rng=begun.rng,
            flags=begun.flags,
            loop=begun.loop,
            donor=begun.donor is not None,
            left_out=begun.left_out,
            metrics=list(self._metrics)[-METRICS_IN_BOX:],
        )
        now = lambda: {**take_state(self.harness), "loop": self._loop()}
        self._box.begin(start, self.history.past(begun.step), now)


def latch_of(harness: Harness, latch: bool | Literal["auto"]) -> Latch | None:
    """Where it is wanted and possible. Raises BadInput where it is asked for and is not possible."""
    able = possible(harness)
    if latch is True and not able:
        raise BadInput("Recorder: latch=True needs optimizers that can skip on their device; build them fused=True")
    return Latch(harness.device) if able and latch is not False else None
