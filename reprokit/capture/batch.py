"""A batch by reference, and whether it is still what it was.

A copy of each batch would cost what a recorder may not: memory of its size, and the time to fill it. So the recorder
keeps the tensors themselves, with marks. What torch writes is seen by a tensor's version; NumPy, and a loader that
fills the same buffer again, are seen by a sample of bytes, of what lies on the host. No device is read.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reprokit import tree
from reprokit.step.between import version

SAMPLES = 64  # bytes of a block that are looked at: a refilled buffer differs in nearly all of them

Marks = tuple[tuple[tuple[int, ...], bytes], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """A batch at the start of its step."""

    packed: tree.Packed
    marks: Marks | None  # by which one sees that it was changed; None for a copy

    @classmethod
    def of(cls, packed: tree.Packed, *, copy: bool = False) -> Held:
        return cls(packed=packed.copied() if copy else packed, marks=None if copy else marks(packed))

    @property
    def intact(self) -> bool:
        """Nobody wrote into it since."""
        return self.marks is None or marks(self.packed) == self.marks


def marks(packed: tree.Packed) -> Marks:
    """Versions of the tensors, and a sample of the bytes on the host."""
    found = []
    for block in packed.blocks:
        versions = tuple(version(owner) for owner in block.owners if isinstance(owner, torch.Tensor))
        found.append((versions, _sample(block.memory) if block.memory.is_cpu else b""))
    return tuple(found)


def _sample(memory: torch.Tensor) -> bytes:
    step = max(1, len(memory) // SAMPLES) | 1  # odd: all bytes of an element have their turn
    return memory[::step].numpy().tobytes()
