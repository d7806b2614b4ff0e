"""What this machine was doing while an attempt ran, as seen from outside of it.

Attempts that hang or die tell nothing of themselves, and what a captured environment has may be too little to ask a
driver. So whoever makes attempts samples the host and its GPUs meanwhile, and each attempt gets the means of its time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from reprokit.capture.telemetry import Telemetry
from reprokit.replay.engines.base import Engine
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome

_EVERY = 0.2  # seconds: an attempt at a small step takes two
_LINES = 3600 * 5  # an hour of them
_FIRST, _LOOK = 10.0, 0.01  # seconds for a first sample, which a sick driver may hold up, and between looks at it
_SINCE_START = ("ecc_corrected", "ecc_uncorrected")  # counted since the driver was loaded: what was added matters

Line = Mapping[str, Any]


class Observed(Engine):
    """Another engine, whose outcomes get what was seen of the machine in `evidence["host"]`. It samples while it is
    entered; whoever gave it the other engine ends that."""

    def __init__(self, engine: Engine, telemetry: Telemetry | None = None) -> None:
        self.name, self.capacity = engine.name, engine.capacity
        self._engine = engine
        self._telemetry = telemetry or Telemetry(ring=_LINES, every=_EVERY)

    def submit(self, case: Case) -> Future[Outcome]:
        inner, outer = self._engine.submit(case), Future[Outcome]()
        outer.set_running_or_notify_cancel()
        started = time.time()
        inner.add_done_callback(lambda future: _pass_on(future, outer, lambda one: self._seen(one, started)))
        return outer

    def lines(self) -> list[dict[str, Any]]:
        """All samples so far, oldest first."""
        return self._telemetry.lines()

    def notes(self) -> list[str]:
        """What was not sampled, and why."""
        return self._telemetry.notes()

    def __enter__(self) -> Self:
        self._telemetry.__enter__()
        until = time.monotonic() + _FIRST
        while not self._telemetry.lines() and time.monotonic() < until:  # or a short attempt would be before it
            time.sleep(_LOOK)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._telemetry.__exit__()

    def _seen(self, outcome: Outcome, started: float) -> Outcome:
        ended = time.time()
        begun = ended - outcome.total_seconds if outcome.total_seconds else started
        host = means(between(self._telemetry.lines(), begun, ended))
        return replace(outcome, evidence={**(outcome.evidence or {}), "host": host})


def _pass_on(inner: Future[Outcome], outer: Future[Outcome], seen: Callable[[Outcome], Outcome]) -> None:
    try:
        outer.set_result(seen(inner.result()))
    except BaseException as error:  # a cancelled one, too: nobody may wait for ever
        outer.set_exception(error)


def between(lines: Iterable[Line], begun: float, ended: float) -> list[Line]:
    """Those of a time, in seconds since the epoch; the last before its end where there is none."""
    known = [(seconds, line) for line in lines if (seconds := _seconds(line)) is not None]
    inside = [line for seconds, line in known if begun <= seconds <= ended]
    return inside or [line for seconds, line in known if seconds <= ended][-1:]


def means(lines: Iterable[Line]) -> dict[str, float]:
    """Of each number: `load`, `gpu0.temperature`. Of what is counted since a driver was loaded, what was added; of its
    errors (Xid), how many there were."""
    values: dict[str, list[float]] = {}
    for line in lines:
        for name, value in _flat(line):
            values.setdefault(name, []).append(value)
    return {name: _one(name, found) for name, found in values.items()}


def _one(name: str, values: list[float]) -> float:
    last = name.rpartition(".")[2]
    if last in _SINCE_START:
        return values[-1] - values[0]
    return sum(values) if last == "xid" else sum(values) / len(values)


def _flat(line: Line) -> Iterable[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield name, float(value)
    gpus = line.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        for name, value in gpu.items() if isinstance(gpu, dict) else ():
            if name == "xid" and isinstance(value, list):
                yield f"gpu{gpu.get('index')}.xid", float(len(value))
            elif name != "index" and isinstance(value, int | float) and not isinstance(value, bool):
                yield f"gpu{gpu.get('index')}.{name}", float(value)


def _seconds(line: Line) -> float | None:
    with suppress(KeyError, TypeError, ValueError):
        return datetime.fromisoformat(line["time"]).timestamp()
    return None
