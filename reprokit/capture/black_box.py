"""The black box: what an incident needs, outside of a process that may die in its step.

A process that a signal ends writes nothing down. So before each step what it begins with is put into shared memory,
which outlives the process: the batch and the generators, and now and then the state (the anchor of the history); the
step's own state is made from those by running the steps between (`step.rewind`). What does not change, such as source,
configuration and environment, is written once. Whoever supervises the process (`reprokit run`) makes an incident of it
(`capture.remains`), and removes it; a process that ends well removes it itself.

Killed at any instant, the box is readable: nothing is written into that `current.json` speaks of, that file is replaced
in one rename, and only a process that is inside a step has the marker that says so.

The price, which is why one must ask for it: each step copies its batch into memory, each anchor the state, and that
memory stays taken. Where it ends, the box is given up with a line, and training goes on.
"""

from __future__ import annotations

import atexit
import faulthandler
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from reprokit import tree
from reprokit.capture import environment, source
from reprokit.capture.history import Entry, Past
from reprokit.capture.history import about as about_step
from reprokit.capture.logs import one_line
from reprokit.capture.told import Told
from reprokit.harness import State
from reprokit.incident import Draft

WANTED = "REPROKIT_BLACK_BOX"  # variable: 1 where a Recorder that says nothing else shall keep a box
PLACE = "REPROKIT_BOX"  # variable: the folder in which a supervisor looks for boxes
BASE, ABOUT, CURRENT, BEGUN, DUMP = "base", "about.json", "current.json", "begun", "dump.txt"

log = logging.getLogger("reprokit")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What does not change while one trains."""

    config: Any
    entrypoint: str
    layout: Any
    root: Path
    out: Path  # folder of the incidents


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """What a step begins with."""

    step: int
    batch: tree.Packed
    rng: Mapping[str, Any]
    flags: Mapping[str, Any]
    loop: Mapping[str, int]
    donor: bool  # whether the last healthy batch is one to heal with
    left_out: Sequence[str]
    metrics: Sequence[Mapping[str, Any]]


class BlackBox:
    """Of one recorder. wanted: None asks the environment. A box that nobody wants, or watches, costs nothing."""

    def __init__(self, wanted: bool | None, run: Run) -> None:
        wanted = os.environ.get(WANTED) == "1" if wanted is None else wanted
        place = os.environ.get(PLACE)
        if wanted and not place:
            log.warning("black_box: nobody would look into it; start training with `reprokit run -- python train.py`")
        self._run = run
        self._path = Path(place) / f"box-{os.getpid()}-{secrets.token_hex(4)}" if wanted and place else None
        self._owner = os.getpid()
        self._anchor: int | None = None  # the step before which the state is held
        self._batches: set[int] = set()  # steps whose batches are held
        self._closed: set[int] = set()  # and those of which it is known what came after
        self._dump: IO[str] | None = None
        self._faults = False  # were told of before: on stderr

    @property
    def kept(self) -> bool:
        """Whether there is one, and it is this process's: a forked child leaves its parent's alone."""
        return self._path is not None and os.getpid() == self._owner

    def begin(self, start: Start, past: Past | None, state: Callable[[], State]) -> None:
        """A step begins. past: the steps before it; state: takes the harness's, where none is held to run from."""
        if self._path is None or not self.kept:
            return
        try:
            if self._dump is None:
                self._open(self._path)
            self._write(self._path, start, past, state)
        except Exception as trouble:  # most often that memory is full
            log.warning("black_box: given up at step %d: %s", start.step, one_line(trouble))
            self.close()

    def end(self) -> None:
        """The step is over, however it ended."""
        if self._path is not None and self._dump is not None and self.kept:
            (self._path / BEGUN).unlink(missing_ok=True)

    def close(self) -> None:
        """Training is over."""
        path, self._path = self._path, None
        if path is None or os.getpid() != self._owner:  # a forked child must not remove its parent's
            return
        if self._dump is not None:
            faulthandler.disable()
            self._dump.close()
            if self._faults:
                with suppress(Exception):  # of a stderr that is no file
                    faulthandler.enable()
            atexit.unregister(self.close)
        shutil.rmtree(path, ignore_errors=True)

    def _open(self, path: Path) -> None:
        path.mkdir()
        with Draft(path) as draft:
            about = _write_base(draft, self._run)
            draft.path.rename(path / BASE)
        _replace(path / ABOUT, about)
        self._faults = faulthandler.is_enabled()
        self._dump = (path / DUMP).open("w")
        faulthandler.enable(self._dump)
        atexit.register(self.close)

    def _write(self, path: Path, start: Start, past: Past | None, state: Callable[[], State]) -> None:
        entries = past.entries if past else ()
        anchor = entries[0].step if entries else start.step
        if anchor != self._anchor:
            _save(path / f"anchors/{anchor}", "anchor", past.anchor if past else state())
        for entry in entries:
            self._write_entry(path, entry)
        folder = path / f"steps/{start.step}"
        _save(folder, "batch", start.batch)
        _save(folder, "rng", start.rng)
        self._batches.add(start.step)
        current = {
            "step": start.step,
            "anchor": anchor,
            "steps": [entry.step for entry in entries],
            "donor": entries[-1].step if entries and start.donor else None,
            "loop": dict(start.loop),
            "flags": dict(start.flags),
            "left_out": list(start.left_out),
            "metrics": [dict(line) for line in start.metrics],
        }
        _replace(path / CURRENT, current)
        (path / BEGUN).touch()
        self._forget(path, anchor)

    def _write_entry(self, path: Path, entry: Entry) -> None:
        folder = path / f"steps/{entry.step}"
        if entry.step not in self._batches:
            _save(folder, "batch", entry.batch.packed)
            self._batches.add(entry.step)
        if entry.step not in self._closed:
            _save(folder, "start", about_step(entry))
            self._closed.add(entry.step)

    def _forget(self, path: Path, anchor: int) -> None:
        """What lies before the anchor; current.json speaks of it no more."""
        if self._anchor is not None and self._anchor != anchor:
            shutil.rmtree(path / f"anchors/{self._anchor}", ignore_errors=True)
        self._anchor = anchor
        for step in [step for step in self._batches if step < anchor]:
            shutil.rmtree(path / f"steps/{step}", ignore_errors=True)
            self._batches.discard(step)
            self._closed.discard(step)


def _write_base(draft: Draft, run: Run) -> dict[str, Any]:
    """The files of an incident that do not change, and what its manifest says of them."""
    with Told(run.config) as told:
        record = source.archive(draft, run.root, exclude=[run.out])
        told.write_config(draft)
        told.write_command(draft, run.root)
        draft.write_text("requirements.txt", environment.requirements(record.distributions))
    return {
        "out": str(run.out),
        "entrypoint": run.entrypoint,
        "layout": run.layout,
        "commit": record.commit,
        "redacted": [*record.redacted, *told.redacted],
        "left_out": [*record.left_out, *told.left_out],
    }


def _save(folder: Path, name: str, data: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tree.save(data, folder, name)


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    """Whole, or as it was."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(data, allow_nan=False))
    beside.replace(path)
