"""Between what a step started from and showed, and an incident on disk.

Nothing that goes wrong here may reach training, and nothing here may stop it for long. So a write is a thread that the
step waits for, up to `Disk.write_within` seconds: a collective of other ranks that waits for this one is given up after
ten minutes. What is still shared with training, the batches, is written first. A write that has that behind it when its
time is over goes on beside training, and ends before the process does; one that has not is given up, and leaves
nothing. Meanwhile, no other is begun.

A failure is captured once and then counted (`capture.counts`). Where there is less room than an incident takes, parts
are left out (`capture.disk`); where there is none, nothing is written. Each is said once, in one line, with what to do.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args

import torch

from reprokit import checkpoint, failure, incident, tree
from reprokit.capture import counts, disk, parts, snapshot
from reprokit.capture.black_box import Run
from reprokit.capture.disk import Disk
from reprokit.capture.logs import Tee, one_line, stacks
from reprokit.capture.snapshot import Saw, Shown, Snapshot
from reprokit.capture.telemetry import Telemetry
from reprokit.capture.told import Told
from reprokit.checkpoint import Pointers
from reprokit.errors import BadInput
from reprokit.failure import Signature
from reprokit.incident import Incident
from reprokit.tree import Packed

METRICS = 256  # steps of loss terms in an incident: enough to see a drift, small enough to forget about

StateMode = Literal["full", "checkpoint", "none"]
BatchMode = Literal["full", "pointers"]
OnIncident = Callable[[Incident], object]

log = logging.getLogger("reprokit")


class Writer:
    """Writes a run's incidents. A context manager around training, which it listens to.

    state: "full"; "checkpoint", with pointers to what the last checkpoint holds already; or "none". batch: "full", or
    "pointers", the names of its samples. recapture: write a failure each time that it comes. on_incident: told of each
    that was written. Raises BadInput for other words.
    """

    def __init__(
        self,
        run: Run,
        *,
        state: StateMode = "full",
        batch: BatchMode = "full",
        limits: Disk | None = None,
        recapture: bool = False,
        on_incident: OnIncident | None = None,
    ) -> None:
        for name, value, known in ("state", state, StateMode), ("batch", batch, BatchMode):
            if value not in get_args(known):
                raise BadInput(f"Recorder: {name}={value!r}; expected one of {', '.join(get_args(known))}")
        self.incidents: list[Path] = []  # that were written
        self.metrics: deque[dict[str, Any]] = deque(maxlen=METRICS)
        self._run, self._state, self._batch, self._recapture = run, state, batch, recapture
        self._limits, self._on_incident = limits or Disk(), on_incident
        self._tee, self._telemetry = Tee(), Telemetry()
        self._counts = counts.Counts(run.out)
        self._checkpoint: tuple[Path, int] | None = None
        self._written = 0  # bytes
        self._broken = False  # a write failed: one line about a full disk is enough
        self._said: set[str] = set()
        self._last: _Under | None = None  # write
        self._unknown: list[_Under] = []  # writes of which not all know who are to

    def __enter__(self) -> Self:
        self._tee.__enter__()
        self._telemetry.__enter__()
        try:
            incident.sweep(self._run.out)
        except OSError as trouble:
            log.info("drafts of earlier runs stay in %s: %s", self._run.out, one_line(trouble))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self.finish()
        self._telemetry.__exit__()
        self._tee.__exit__()

    @property
    def within(self) -> float:
        """Seconds that a step waits for a write."""
        return self._limits.write_within

    def busy(self) -> bool:
        """Whether an incident is being written."""
        return self._last is not None and self._last.over.locked()

    def wait(self) -> None:
        """For what is being written, however long that takes, and not for a tracker that is told of it. At any instant:
        a write that has not begun waits for whoever asks."""
        if self._last is not None and self._last.begun.is_set():
            _is_over(self._last.over)

    def finish(self) -> None:
        """Wait for what is being written, and until it is known, however long that takes."""
        for one in self._unknown:
            if one.begun.is_set() and one.thread is not threading.current_thread():  # a tracker may end the run
                _is_over(one.known)
        self._counts.save()

    def checkpoint(self, path: Path, step: int) -> None:
        """The loop has written a checkpoint after this step; with `state="checkpoint"`, incidents point into it."""
        self._checkpoint = (path.absolute(), step)

    def write(
        self,
        step: int,
        take: Callable[[], Snapshot],
        saw: Saw,
        error: BaseException | None,
        logs: Mapping[str, str] | None = None,
    ) -> Path | None:
        """The incident of this failure: a new one, or the one that it had before. take: what the step started from,
        asked for where it is written. logs: further ones, by their names.

        None where nothing was written, or not yet: then a line in the log says why.
        """
        signature = saw.signature or failure.first(saw.symptoms)
        if signature and not self._recapture and (known := self._counts.again(signature, step)):
            return known
        if self._refused(step):
            return None
        try:
            start, shown = take(), self._shown(saw, error, logs or {})
        except Exception as trouble:
            self._fails(trouble)
            return None
        return self._wait_for(start, shown, signature)

    def fell_back(self, path: Path, told: dict[str, Any]) -> None:
        """What was tried so that training could go on, to be found beside its incident."""
        with Told(self._run.config) as words:
            self._counts.fell_back(path, words.fallback(told))

    def part(self, start: Snapshot) -> AbstractContextManager[Path]:
        """What this rank adds to an incident that another one writes: a folder, until the context is left. Raises what
        goes wrong."""
        start, without = self._chosen(start)
        return parts.written(self._run, start, without)

    def write_to(self, out: Path, start: Snapshot, saw: Saw, error: BaseException | None = None) -> Path:
        """A whole incident in another folder, at once; it is not counted. Raises what goes wrong."""
        return snapshot.write(out, start, self._shown(saw, error, {}), self._run).path

    def _refused(self, step: int) -> bool:
        if self.busy():
            self._say(f"no incident of step {step}: the one before is still being written")
            return True
        if len(self.incidents) >= self._limits.max_incidents:
            kept = f"{len(self.incidents)} incidents were written"
            self._say(f"no further incidents: {kept}; raise Recorder(disk=Disk(max_incidents=...))", "max_incidents")
            return True
        return self._broken

    def _shown(self, saw: Saw, error: BaseException | None, logs: Mapping[str, str]) -> Shown:
        texts = {"stdout": self._tee.stdout(), "stderr": self._tee.stderr(), "traceback": stacks(), **logs}
        if error is not None:
            texts["traceback"] = "".join(traceback.format_exception(error)) + "\n" + texts["traceback"]
        return Shown(
            saw=saw,
            error=error,
            fingerprint=saw.fingerprint(),
            logs=texts,
            metrics=list(self.metrics),
            telemetry=self._telemetry.lines(),
        )

    def _wait_for(self, start: Snapshot, shown: Shown, signature: Signature | None) -> Path | None:
        late, outcome, stream = threading.Event(), list[Incident | BaseException](), _stream()
        told, left = threading.Lock(), list[bool]()

        def work() -> None:
            under.begun.set()
            try:
                with stream:  # in its order come the copies that the snapshot is made of
                    try:
                        outcome.append(self._write(start, shown, late))
                    except BaseException as trouble:
                        outcome.append(trouble)
                under.over.release()
                if left:
                    tell()
            finally:
                under.known.release()

        def tell() -> Path | None:
            return self._ended(outcome[0], start.step, signature) if told.acquire(blocking=False) else None

        under = _Under(thread=threading.Thread(target=work, name="reprokit writer", daemon=False))
        under.over.acquire()
        under.known.acquire()
        self._last, self._unknown = under, [*(one for one in self._unknown if one.known.locked()), under]
        try:
            try:
                under.thread.start()
            except RuntimeError as trouble:  # there can be no more of them, or memory is short
                under.over.release()
                under.known.release()
                self._fails(trouble)
                return None
            if _is_over(under.over, min(self._limits.write_within, threading.TIMEOUT_MAX)):
                return tell()
            late.set()
            within = f"{self._limits.write_within:g} s"
            self._say(f"the incident of step {start.step} takes over {within}: training goes on meanwhile")
        finally:  # it is late, or somebody interrupts: it goes on, and is to be known
            left.append(True)
            if outcome:
                tell()
        return None

    def _ended(self, found: Incident | BaseException, step: int, signature: Signature | None) -> Path | None:
        if isinstance(found, _Refused):
            self._say(f"no incident of step {step}: {found}", str(found))
            return None
        if isinstance(found, BaseException):
            self._fails(found)
            return None
        self._written += found.size
        self.incidents.append(found.path)
        if signature is not None:
            self._counts.add(signature, found, step)
        self._tell(found)
        return found.path

    def _tell(self, found: Incident) -> None:
        """A tracker that fails must not reach training."""
        if self._on_incident is not None:
            try:
                self._on_incident(found)
            except Exception as trouble:
                log.error("on_incident was not told of %s: %s", found.path, one_line(trouble))

    def _write(self, start: Snapshot, shown: Shown, late: threading.Event) -> Incident:
        start, without = self._chosen(start)
        trees, start, without = _state(start, without)
        held = self._pointers(trees)
        needs = _needs(start, trees, held, without)
        room = disk.room(self._limits, self._run.out, self._written)
        spared = disk.spared(needs, room.bytes)
        if spared is None:
            raise _Refused(f"only {disk.size(max(0, room.bytes))} may be written: {room.limit}")
        if spared:
            gone = f"{disk.listed(spared)} ({disk.size(sum(needs[part] for part in spared))})"
            line = f"{gone} left out, since only {disk.size(room.bytes)} may be written: {room.limit}"
            self._say(f"incident of step {start.step}: {line}", f"{spared} {room.limit}")
            without |= {*spared, *(["history"] if "state" in spared else [])}
            start = replace(start, left_out=[*start.left_out, line])
        notes = [*start.left_out, *self._telemetry.notes()]

        def on_own() -> None:
            if late.is_set():
                slow = f"its batches were not written within {self._limits.write_within:g} s"
                raise _Refused(f"{slow}; choose a faster disk, or raise Recorder(disk=Disk(write_within=...))")

        start = replace(start, left_out=notes)
        return snapshot.write(self._run.out, start, shown, self._run, without=without, held=held, on_own=on_own)

    def _chosen(self, start: Snapshot) -> tuple[Snapshot, set[str]]:
        """What the recorder's options leave out, and a line on each."""
        without, lines = set[str](), list(start.left_out)
        if self._state == "none":
            without |= {"state", "history"}
            lines.append("state, history: not asked for; Recorder(state='full') keeps them")
        if self._batch == "pointers":
            without |= {"batch", "donor", "history"}
            lines.append("batch, donor, history: the names of samples alone; Recorder(batch='full') keeps them")
        return replace(start, left_out=lines), without

    def _pointers(self, trees: Mapping[str, Packed]) -> Pointers | None:
        if self._state != "checkpoint" or not trees:
            return None
        if self._checkpoint is None:
            self._say("the state is written whole: no checkpoint was named; call recorder.checkpoint(path) for each")
            return None
        path, step = self._checkpoint
        try:
            return checkpoint.match(path, step, trees)
        except BadInput as reason:
            self._say(f"the state is written whole: {reason}")
            return None

    def _fails(self, trouble: BaseException) -> None:
        self._broken = True
        log.error("no incident could be written to %s, training is left alone: %s", self._run.out, one_line(trouble))

    def _say(self, line: str, kind: str | None = None) -> None:
        """Once; of its kind, where what differs from time to time does not matter."""
        if (kind or line) not in self._said:
            self._said.add(kind or line)
            log.warning("%s", line)


def _is_over(over: threading.Lock, within: float = -1) -> bool:
    """Wait for a write, by default however long that takes. A lock alone: whoever interrupts a `join` has Python take
    the thread for dead, and a handler of signals that waits for a thread must not hold what that one needs to end."""
    if over.acquire(timeout=within):
        over.release()
        return True
    return False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Under:
    """A write that is under way."""

    thread: threading.Thread
    begun: threading.Event = field(default_factory=threading.Event)
    over: threading.Lock = field(default_factory=threading.Lock)  # held until it is on disk, or has failed
    known: threading.Lock = field(default_factory=threading.Lock)  # held until who is to know of it does


class _Refused(Exception):
    """There is to be no incident; the message says why and what to do."""


def _state(start: Snapshot, without: set[str]) -> tuple[dict[str, Packed], Snapshot, set[str]]:
    """The trees of the state that are to be written. One that has no form is left out, and a line says so."""
    if "state" in without:
        return {}, start, without
    trees: dict[str, Any] = {}
    if start.state is not None:
        trees["state"] = start.state
    if start.past is not None and "history" not in without:
        trees["anchor"] = start.past.anchor
    try:
        return {name: tree.refer(data, name=name) for name, data in trees.items()}, start, without
    except BadInput as reason:
        log.warning("incident of step %d: its state is left out: %s", start.step, reason)
        lines = [*start.left_out, f"state, history: {reason}"]
        return {}, replace(start, left_out=lines), without | {"state", "history"}


def _needs(
    start: Snapshot, trees: Mapping[str, Packed], held: Pointers | None, without: set[str]
) -> dict[str, int]:
    """Bytes of each part that is to be written."""
    stored = {
        name: sum(block.memory.numel() for block in packed.blocks if not (held and block.name in held.held(name)))
        for name, packed in trees.items()
    }
    past = start.past if start.past is not None and "history" not in without else None
    steps = sum(entry.batch.packed.nbytes for entry in past.entries) if past else 0
    needs = {
        "state": stored.get("state", 0),
        "history": stored.get("anchor", 0) + steps,
        "donor": start.donor.nbytes if start.donor is not None else 0,
        "batch": start.batch.nbytes if start.batch is not None else 0,
    }
    if start.state is None:  # it comes of running the history
        needs |= {"state": needs["history"], "history": 0}
    return {part: 0 if part in without else size for part, size in needs.items()}


def _stream() -> AbstractContextManager[object]:
    """The one of this thread, for another."""
    if not torch.cuda.is_initialized():
        return nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream())
