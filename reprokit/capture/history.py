"""The last healthy steps, by reference, and the state from which they can be run again.

A cause may lie steps before the failure that shows it. So the recorder keeps a ring of steps: each one's batch,
generators and place in gradient accumulation, and now and then the whole state at a step's start, an anchor. The oldest
anchor decides how far one can go back: at least `steps` steps as soon as that many were made, since one is let go only
when the next is old enough. Copying a state takes a twentieth of a small step, so anchors are far apart while there is
room for the batches between them.

Batches are not copied, so they may change afterwards (`Held` says how that is seen). A batch that its own step changed
is replaced by the copy that the recorder made at the start; one that is changed later leaves the ring, with all that
came before it. Either way the ring wants copies from then on.

The ring begins anew where the steps do not follow each other: after a failure, and where a loop writes into parameters,
buffers or optimizer state between two steps (see `reprokit.step.between` for that, and for what cannot be seen).
Bytes are limited; the oldest go first. Nothing that goes wrong in here may reach training: the history ends, with a
note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from reprokit import tree
from reprokit.capture.batch import Held
from reprokit.capture.logs import one_line
from reprokit.capture.start import OWN, Start
from reprokit.errors import BadInput, some
from reprokit.harness import Harness, State
from reprokit.incident import Draft
from reprokit.step import between
from reprokit.step.rehearse import REWINDING

if TYPE_CHECKING:
    from reprokit.capture.begun import Begun

STEPS = 4  # a few: each costs a batch, and most causes show at once
APART = 16  # steps between anchors: a copy of the state, 4% of a small step on a CPU, is then a quarter of a percent
BYTES = 1 << 30  # of batches and anchors: on a GPU they lie there

log = logging.getLogger("reprokit")

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A healthy step."""

    step: int
    micro: int
    skips: int
    donor: bool  # its batch is one to heal with
    rng: dict[str, Any]
    batch: Held
    after: between.Changes  # what the loop did to the harness before the next step began


@dataclass(frozen=True, kw_only=True, slots=True)
class Past:
    """What an incident holds of it: steps that follow each other up to the failing one, and the state before them."""

    anchor: State
    entries: tuple[Entry, ...]  # oldest first, at least one
    donor: tree.Packed | None  # the healthy batch before them


@dataclass(frozen=True, kw_only=True, slots=True)
class _Anchor:
    step: int
    start: Start


class History:
    """The ring. `due`, `begin` and `end` around each step, `end` only after one that is not known to have failed."""

    def __init__(self, steps: int = STEPS, limit: int = BYTES) -> None:
        if steps < 0 or limit < 0:
            raise BadInput(f"Recorder: history={steps}, history_bytes={limit}; expected 0 or more, 0 for no history")
        self._wanted, self._steps, self._limit = steps, steps, limit
        self._apart = max(APART, self._least)
        self._entries: list[Entry] = []
        self._anchors: list[_Anchor] = []
        self._before: Entry | None = None  # the one before the oldest
        self._last = 0  # step that ended
        self._seen: between.Look | None = None  # at its end
        self.copies = False  # of each batch are wanted, since one was changed
        self._reference: Held | None = None  # the last step's batch itself
        self._notes: dict[str, str] = {}  # kind of loss -> the last of it

    def due(self, step: int, harness: Harness) -> bool:
        """A step is about to begin. Whether its state is to be an anchor, and so must be copied whole."""
        return bool(self._safely(lambda: self._due(step, harness)))

    def begin(self, begun: Begun) -> None:
        """It has begun. Its start is kept where an anchor is due."""
        self._safely(lambda: self._begin(begun))

    def end(self, begun: Begun, harness: Harness) -> None:
        """It ended, and nothing is known to have failed."""
        self._safely(lambda: self._end(begun, harness))

    def after(self, step: int) -> between.Changes | None:
        """What the loop did after this step, until the next one began; None where it is not known, or cannot be done
        again."""
        last = self._entries[-1] if self._entries else None
        return last.after if last is not None and last.step == step else None

    @property
    def joins(self) -> bool:
        """Whether what the loop does between two steps is looked at, and could so far be done again."""
        return self._steps > 0 and "gap" not in self._notes

    def suspect(self, step: int) -> None:
        """The batch of this step, which ended, is none to heal with."""
        self._entries = [replace(one, donor=False) if one.step == step else one for one in self._entries]

    def failed(self) -> None:
        """A step did: what comes next does not follow from what is held."""
        self._last = 0
        self._clear(None)

    def past(self, step: int) -> Past | None:
        """What can be rewound from this step, which has begun and is not healthy."""
        return self._safely(lambda: self._past(step, Start.freeze))

    def part(self, step: int) -> Past | None:
        """The same, with no more of the state than each rank has for itself."""
        return self._safely(lambda: self._past(step, lambda start: start.parts(OWN)))

    def doubt(self, finding: str) -> None:
        """What a rehearsal found; where it speaks of going back, nothing is held that would be untrue."""
        if finding.startswith(REWINDING):
            self._stop(finding)

    def notes(self) -> list[str]:
        """Why it is shorter than was asked for; empty where it is not."""
        return [] if len(self._entries) >= self._wanted else [f"history: {note}" for note in self._notes.values()]

    @property
    def _least(self) -> int:
        """Steps between anchors, where it is bytes that are short."""
        return max(1, (self._steps + 1) // 2)

    def _due(self, step: int, harness: Harness) -> bool:
        if self._reference and not self._reference.intact and not self.copies:
            log.info("history: the batch of step %d was changed in or after it: batches are copied from now", step - 1)
            self.copies = True
        if self._last != step - 1:
            self._clear(None)
        elif self._entries:
            self._join(step, harness)
            self._drop_changed([self._entries[i] for i in {0, len(self._entries) - 1} if self._entries])
        return not self._anchors or step - self._anchors[-1].step >= self._apart

    def _begin(self, begun: Begun) -> None:
        if not self._anchors or begun.step - self._anchors[-1].step >= self._apart:
            self._anchors.append(_Anchor(step=begun.step, start=begun.start))
        while len(self._anchors) > 1 and begun.step - self._anchors[1].step >= self._steps:
            self._drop_oldest()

    def _end(self, begun: Begun, harness: Harness) -> None:
        entry = Entry(
            step=begun.step,
            micro=begun.loop["micro"],
            skips=begun.loop.get("skips", 0),
            donor=True,
            rng=begun.rng,
            batch=begun.kept,
            after=[],
        )
        self._entries.append(entry)
        self._reference = begun.batch
        self._last, self._seen = begun.step, between.look(harness)
        self._fit()

    def _join(self, step: int, harness: Harness) -> None:
        """What the loop did since the last step ended."""
        assert self._seen is not None
        now = between.look(harness)
        if names := between.written(self._seen, now):
            what = some(names, 1)
            self._note("gap", f"{what} changed between steps {step - 1} and {step}, so one can go back to {step} only")
            self._clear(self._entries[-1])
            return
        self._entries[-1] = replace(self._entries[-1], after=between.changes(self._seen, now))

    def _past(self, step: int, take: Callable[[Start], State]) -> Past | None:
        self._drop_changed(self._entries)
        entries = tuple(entry for entry in self._entries if entry.step < step)
        if not entries or entries[-1].step != step - 1:
            return None
        before = self._before if self._before and self._before.donor else None
        donor = before.batch.packed if before and before.batch.intact else None
        return Past(anchor=take(self._anchors[0].start), entries=entries, donor=donor)

    def _drop_changed(self, looked_at: list[Entry]) -> None:
        """Those that were changed since, and all before the last of them."""
        changed = [entry.step for entry in looked_at if not entry.batch.intact]
        if not changed:
            return
        line = f"the batch of step {max(changed)} was changed after its step, and is lost with those before it"
        self._note("changed", line)
        self.copies = True
        self._anchors = [anchor for anchor in self._anchors if anchor.step > max(changed)]
        self._keep_from(self._anchors[0].step if self._anchors else self._last + 1)

    def _drop_oldest(self) -> None:
        del self._anchors[0]
        self._keep_from(self._anchors[0].step)

    def _keep_from(self, step: int) -> None:
        gone = [entry for entry in self._entries if entry.step < step]
        self._entries = [entry for entry in self._entries if entry.step >= step]
        self._before = gone[-1] if gone else self._before

    def _fit(self) -> None:
        """Let the oldest go until the rest fits; where not even the nearest anchor does, want fewer steps."""
        while self._anchors and self._nbytes() > self._limit:
            if len(self._anchors) > 1:
                self._drop_oldest()
                continue
            if self._apart > self._least:
                self._apart = max(self._apart // 2, self._least)
                self._clear(self._entries[-1] if self._entries else None)
                continue
            self._steps //= 2
            self._note("limit", f"history_bytes has no room for more than {self._steps} steps")
            self._clear(self._entries[-1] if self._steps and self._entries else None)

    def _nbytes(self) -> int:
        held = [*self._entries, *([self._before] if self._before else [])]
        return sum(one.start.nbytes for one in self._anchors) + sum(one.batch.packed.nbytes for one in held)

    def _clear(self, before: Entry | None) -> None:
        self._entries, self._anchors, self._before = [], [], before

    def _note(self, kind: str, line: str) -> None:
        if kind not in self._notes:
            log.warning("history: %s", line)
        self._notes[kind] = line

    def _safely(self, do: Callable[[], T]) -> T | None:
        try:
            return do() if self._steps else None
        except Exception as trouble:
            self._stop(one_line(trouble))
            return None

    def _stop(self, why: str) -> None:
        self._steps = 0
        self._clear(None)
        self._note("end", f"it ended: {why}")


Clean = Callable[[tree.Packed, str], tree.Packed]  # a batch without secrets, given its place


def write(draft: Draft, past: Past, donor: tree.Packed | None, place: str, clean: Clean) -> None:
    """Into the folder of a rank, but for the anchor. The batch of the last step is not written where it is its donor.
    """
    for entry in past.entries:
        folder = f"{place}/history/{entry.step}"
        draft.write_tree(folder, "start", about(entry))
        if entry is not past.entries[-1] or entry.batch.packed is not donor:
            draft.write_tree(folder, "batch", clean(entry.batch.packed, f"{folder}/batch"))
    if past.donor is not None:
        draft.write_tree(f"{place}/history", "donor", clean(past.donor, f"{place}/history/donor"))


def about(entry: Entry) -> dict[str, Any]:
    """What is written of a step beside its batch."""
    return {
        "step": entry.step,
        "micro": entry.micro,
        "skips": entry.skips,
        "donor": entry.donor,
        "rng": entry.rng,
        "after": entry.after,
    }
