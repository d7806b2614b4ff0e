"""A step that takes too long is written down while it hangs, by a thread that looks at the clock.

The thread looks at what the step began with and at where each thread stands, and never at the step itself, which goes
on hanging, or ends after all: then a line says so and training goes on. While the thread writes, the end of the step
waits for it, so that nothing moves under its hands but the step. A step costs two assignments and a lock that nobody
wants.

Not seen: a step that never lets go of the interpreter's lock, since then no other thread runs either, and a loop that
hangs between two steps.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType

import torch

from reprokit.capture.logs import one_line, stacks
from reprokit.capture.seen import Seen
from reprokit.failure import Kind, Signature, Symptom
from reprokit.step.deadline import WAITED
from reprokit.step.probe import phase_in

_LOOKS = 20  # at the clock, in the time that a step may take
_LONGEST_PAUSE = 1.0  # seconds between two looks

log = logging.getLogger("reprokit")


@dataclass(frozen=True, slots=True)
class Hang:
    """What the watchdog saw when it lost patience."""

    seen: Seen
    stacks: str  # of all threads, the hanging one first


Write = Callable[[Hang], Path | None]


@dataclass(slots=True, eq=False)
class _Watched:
    step: int
    thread: int
    since: float
    write: Write
    told: bool = False


class Watchdog:
    """Of one recorder. seconds: that a step may take; None watches nothing. Its thread starts with the first step."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._now: _Watched | None = None
        self._writing = threading.Lock()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(self, step: int, write: Write) -> Iterator[None]:
        """Around a step. write: makes an incident of it, on the watchdog's thread, while the step goes on."""
        if self._seconds is None:
            yield
            return
        self._start()
        watched = _Watched(step, threading.get_ident(), monotonic(), write)
        self._now = watched
        try:
            yield
        finally:
            with self._writing:
                self._now = None
            if watched.told:
                log.warning("step %d ended after all, after %.0f s", step, monotonic() - watched.since)

    def close(self) -> None:
        """End the thread; what it is writing is finished."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._closed.clear()
            self._thread = threading.Thread(target=self._look, name="reprokit-watchdog", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        assert self._seconds is not None
        while not self._closed.wait(min(self._seconds / _LOOKS, _LONGEST_PAUSE)):
            with self._writing:
                watched = self._now
                if watched and not watched.told and monotonic() - watched.since >= self._seconds:
                    watched.told = True
                    self._tell(watched, self._seconds)

    def _tell(self, watched: _Watched, seconds: float) -> None:
        try:
            with apart():
                path = watched.write(observe(watched.thread, seconds))
        except Exception as trouble:
            log.error("step %d hangs and cannot be captured: %s", watched.step, one_line(trouble))
            return
        if path is not None:
            log.error(
                "step %d has taken over %g s: captured as a hang in %s, and left alone; next: reprokit show %s",
                *(watched.step, seconds, path, path),
            )


def observe(thread: int, seconds: float) -> Hang:
    """Where this thread stands, and all others. seconds: how long was waited for it."""
    frame = sys._current_frames().get(thread)
    frames = list(_outwards(frame))
    where = phase_in(one.f_code for one in reversed(frames))
    evidence = {WAITED: seconds, "at": _place(frames[0]) if frames else "its thread is gone"}
    symptom = Symptom(kind=Kind.HANG, where=where, evidence=evidence)
    seen = Seen(signature=Signature(kind=Kind.HANG, where=where), symptoms=(symptom,))
    return Hang(seen, stacks(thread, "hangs"))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _place(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"


def apart() -> AbstractContextManager[object]:
    """On a stream of its own: what hangs may be a kernel, and copies on its stream would wait for it."""
    if not torch.cuda.is_initialized():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream())
