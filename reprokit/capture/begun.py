"""A step that has begun: all that an incident of it needs, held so that holding it costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from reprokit.capture.batch import Held
from reprokit.capture.snapshot import Snapshot
from reprokit.capture.start import OWN, Lost, Start
from reprokit.harness import State


@dataclass(slots=True)
class Begun:
    """One step from its start on. Nothing in it changes but what training writes into, which is noticed."""

    step: int  # counted from 1
    start: Start
    loop: dict[str, int]  # what of the loop's state is the recorder's
    rng: dict[str, Any]
    flags: dict[str, Any]
    batch: Held  # by reference
    copy: Held | None  # the same in memory of its own, where its step is not known to leave it alone
    donor: Held | None  # the last healthy batch before
    left_out: Sequence[str]  # entries of the batch that cannot be stored
    came: bool = True  # False: the loader failed, and there is no batch
    held: bool = False  # by a latch: optimizers that were called since had been told to skip
    doubts: list[str] = field(default_factory=list)  # about what is held
    looked: bool = field(default=False)  # where a failure would have shown, before an optimizer's step

    @property
    def kept(self) -> Held:
        """The batch, to be kept after the step."""
        return self.copy or self.batch

    def look(self, *, failing: bool) -> None:
        """A point where failures show. What a failing step started from is copied now, before anything is updated."""
        self.looked = True
        if not failing:
            self.start.learn()
            return
        with suppress(Lost):  # told by whoever asks for the snapshot
            self.start.freeze()

    def settled(self, *, late: bool) -> None:
        """Nothing failed. late: that is seen only now."""
        if late or not self.looked:
            self.start.learn(held=late)

    def snapshot(self) -> Snapshot:
        """In memory of its own, with a line on what was lost. Its state is None where some of that was written into."""
        return self._snapshot(lambda: self.start.freeze(held=self.held))

    def part(self) -> Snapshot:
        """The same, but of the state only what each rank has for itself; the rest may have been updated since."""
        return self._snapshot(lambda: self.start.parts(OWN))

    def _snapshot(self, take: Callable[[], State]) -> Snapshot:
        notes = [*self.left_out, *self.doubts]
        state = None
        try:
            state = take()
        except Lost as lost:
            notes.append(f"the state at the start: {lost} was written into before the failure showed")
        batch, donor = self.kept, self.donor
        if not self.came:
            notes.append("the batch: it never came; the last healthy one is the donor")
        if not batch.intact:
            notes.append("the batch as it was: its step changed it, and what is kept is the changed one")
        if donor is not None and not donor.intact:
            donor = None
            notes.append("the last healthy batch: it was changed after its step")
        return Snapshot(
            step=self.step,
            state=state,
            loop=self.loop,
            rng=self.rng,
            flags=self.flags,
            batch=(batch.packed.copied() if batch.marks else batch.packed) if self.came else None,
            donor=donor.packed if donor else None,
            left_out=notes,
        )
