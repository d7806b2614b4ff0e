"""Steps that are run again in training: from where one began, those after it, from their own batches.

A step that is run again begins like any other one and is judged like any other one, in time. What the loop did between
two steps is done again between them, as far as that is known (`step.between`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any

from reprokit import tree
from reprokit.capture.begun import Begun
from reprokit.capture.flights import Flight, Flights
from reprokit.capture.logs import one_line
from reprokit.harness import State, put_state
from reprokit.step import between, flags, rewind, rng
from reprokit.step.detectors import Watching
from reprokit.step.run import run


class Cannot(Exception):
    """Training cannot go on in this way; the message says why."""


class Rerun:
    """Of one run. watching: a context around a step that is run again. settle: judge those that ended."""

    def __init__(
        self,
        flights: Flights,
        watching: Callable[[Begun | None, int], AbstractContextManager[None]],
        settle: Callable[[], object],
    ) -> None:
        self.result: tuple[int, Any] | None = None  # of the step that was run again last, and its number
        self._flights, self._watching, self._settle = flights, watching, settle

    def start_of(self, begun: Begun) -> State:
        """The state at its start; made from an earlier one where it was written into. Raises Cannot."""
        try:
            state = begun.snapshot().state
        except Exception as trouble:
            raise Cannot(f"what the step started from cannot be taken: {one_line(trouble)}") from trouble
        if state is not None:
            return state
        if (past := self._flights.history.past(begun.step)) is None:
            raise Cannot("what the step started from was written into, and no step before it is held")
        moments = [
            rewind.Moment(number=one.step, batch=one.batch.packed, rng=one.rng, micro=one.micro, after=one.after)
            for one in past.entries
        ]
        try:
            with flags.entered(begun.flags):
                return rewind.forward(self._flights.harness, past.anchor, moments)
        except Exception as trouble:
            raise Cannot(f"what the step started from cannot be made again: {one_line(trouble)}") from trouble

    def restore(self, flight: Flight, state: State) -> None:
        """Raises Cannot."""
        assert flight.begun is not None
        try:
            put_state(self._flights.harness, state)
        except Exception as trouble:  # the step, or the loop after it, made another harness; or an object refuses
            raise Cannot(f"what the step started from cannot be put back: {one_line(trouble)}") from trouble
        rng.put(flight.begun.rng)
        self._flights.back_to(flight)

    def after_first(self, steps: Sequence[Flight], *, own: bool) -> None:
        """All but the first, which is behind us. own: with the random numbers that they had. Raises Cannot."""
        for before, flight in pairwise(steps):
            assert flight.begun is not None
            try:
                between.put(self._flights.harness, before.after or [])
            except Exception as trouble:
                done = f"what the loop did after step {before.number} cannot be done again"
                raise Cannot(f"{done}: {one_line(trouble)}") from trouble
            if own:
                rng.put(flight.begun.rng)
            self.attempt(flight)

    def attempt(self, once: Flight, watching: Watching | None = None) -> None:
        """Run a step again, and judge it. Raises what it raises, where training is not to go on."""
        assert once.begun is not None
        if not once.ours:
            self._flights.micro = once.begun.loop["micro"]
        batch = tree.unpack(once.begun.kept.packed)
        begun, error = self._flights.begin(once.number, batch), None
        probe = self._flights.probe(begun, batch, watching, late=False)
        try:
            with flags.entered(once.begun.flags), probe, self._watching(begun, once.number):
                result = run(self._flights.harness, batch, probe, micro=self._flights.micro)
                self.result = (once.number, result)
        except Exception as raised:
            error = raised
        flight = Flight(number=once.number, begun=begun, probe=probe, ours=once.ours, error=error)
        self._flights.end(flight)
        self._settle()
        if error is not None and flight.ends:
            raise error


def lost(runs: Iterable[Flight], before: Iterable[Flight]) -> str:
    """Why these steps cannot be run again, with what the loop did after some of them; empty where they can."""
    for flight in runs:
        if flight.begun is None:
            return f"what step {flight.number} starts from could not be taken"
        if flight.begun.left_out:
            return flight.begun.left_out[0]
        if not flight.begun.kept.intact:
            return f"the batch of step {flight.number} was changed since, in its step or by what made it"
    lost = [flight.number for flight in before if flight.after is None]
    return f"what the loop did after step {lost[0]} cannot be done again" if lost else ""


def drew(flight: Flight, rest: Sequence[Flight]) -> bool:
    """Whether the loop drew from the generators between these steps."""
    return any(
        before.generators is None or one.begun is None or rng.moved(before.generators, one.begun.rng)
        for before, one in pairwise([flight, *rest])
    )
