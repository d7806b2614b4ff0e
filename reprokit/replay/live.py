"""What is said while attempts run: one line that stays up to date, and what is worth knowing before a long wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic

from reprokit.replay.pace import LONG, gpu_hours, left, spoken
from reprokit.replay.result import Replay, bits
from reprokit.replay.strata import Attempt
from reprokit.replay.verdict import at_most, percent


class Live:
    """Told of a replay as attempts end. gpus: that one attempt holds. kept: attempts of an earlier run."""

    def __init__(
        self,
        engine: str,
        *,
        room: int,
        gpus: int,
        say: Callable[[str], object],
        show: Callable[[str, int, int, str], object],
        kept: Sequence[Attempt] = (),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._what, self._room, self._gpus = f"replay in {engine}", max(1, room), gpus
        self._say, self._show, self._clock = say, show, clock
        self._start, self._before = clock(), sum(attempt.counts for attempt in kept)
        self._seen = len(kept)
        self._prints = Counter(bits(attempt.outcome) for attempt in kept if attempt.outcome.fingerprint)
        self._told: set[str] = set()
        self._foretold = False

    def begin(self, asked: int) -> None:
        """Before the first attempt of this run."""
        self._show(self._what, self._before, asked, "")

    def __call__(self, known: Replay) -> None:
        """After each attempt, or some."""
        new, self._seen = known.attempts[self._seen :], len(known.attempts)
        self._prints.update(bits(attempt.outcome) for attempt in new if attempt.outcome.fingerprint)
        remaining = left(self._clock() - self._start, known.n - self._before, known.asked - self._before, self._room)
        self._versions(known)
        if known.n > self._before and not self._foretold:
            self._foretold = True
            self._foretell(known, remaining)
        more = f", about {spoken(remaining)} left" if known.n > self._before and known.n < known.asked else ""
        self._show(self._what, known.n, known.asked, self._note(known) + more)

    def _note(self, known: Replay) -> str:
        low, high = known.interval
        parts = [f"{known.fail} failed", f"{percent(low)} to {at_most(high)}"]
        if count := len(self._prints):
            parts.append(f"{count} fingerprint{'s' * (count > 1)}")
        if known.infra:
            parts.append(f"{known.infra} without an answer")
        return ", ".join(parts)

    def _foretell(self, known: Replay, seconds: float) -> None:
        if seconds <= LONG:
            return
        count = known.asked - known.n
        line = f"about {spoken(seconds)} for up to {count} more attempts, {min(self._room, count)} at once"
        hours = gpu_hours(seconds, count, self._room, self._gpus)
        self._say(f"{line}, {hours:.1f} GPU hours" if self._gpus else line)

    def _versions(self, known: Replay) -> None:
        """Aloud, once each."""
        for change in known.changes[:8]:
            if str(change) not in self._told:
                self._told.add(str(change))
                kind = "newer than" if change.newer else "not the one that was"
                self._say(f"{change.name} {change.here} here, {kind} captured ({change.captured})")
