"""A checkpoint as the place of tensors that an incident need not hold once more.

A state just after a checkpoint, or one with a frozen backbone, is mostly in that file already. Blocks of an incident's
state whose bytes are in the checkpoint are written as pointers: to the file, with its hash, and to the tensor in it.
Equal bytes are what is asked for, so a replay is as exact as with a whole state, and the file's hash vouches for them
when they are read: moved, changed or overwritten, it is refused in one line. The file is opened as data alone
(safetensors, or torch's own format with `weights_only`), and copied into memory, never mapped: whoever overwrites a
mapped file kills its readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from reprokit import _files, tree
from reprokit._storage import Block
from reprokit.errors import BadInput
from reprokit.tree import Packed

FILE = "checkpoint.json"  # beside the trees that point into it
_SMALLEST = 1024  # bytes: a pointer to less saves nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Pointers:
    """A checkpoint, and the blocks of trees that are in it."""

    path: str
    sha256: str
    bytes: int
    step: int  # of training, after which it was written
    trees: Mapping[str, Mapping[str, str]]  # tree -> block -> block of the checkpoint, as a tree

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    def held(self, name: str) -> Collection[str]:
        """Blocks of this tree that are in the checkpoint."""
        return self.trees.get(name, {}).keys()


def match(path: Path, step: int, trees: Mapping[str, Packed]) -> Pointers:
    """Which blocks of these trees the checkpoint has, byte for byte. Raises BadInput where it cannot be read."""
    before = _stamp(path)
    sha256, stored = _files.sha256(path), _blocks(path)
    if _stamp(path) != before:
        raise BadInput(f"{path}: changed while it was read; name a checkpoint once it is written")
    ours = [block for packed in trees.values() for block in packed.blocks]
    sizes = {_size(block) for block in ours} & {_size(block) for block in stored.values()}
    known = {_digest(block): name for name, block in stored.items() if _size(block) in sizes}
    found = {
        name: {block.name: at for block in packed.blocks if (at := _among(known, block, sizes)) is not None}
        for name, packed in trees.items()
    }
    return Pointers(path=str(path), sha256=sha256, bytes=before[0], step=step, trees=found)


def read(folder: Path) -> Pointers | None:
    """The pointers beside the trees of this folder; None where they are whole."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        found = Pointers(**json.loads(file.read_text()))
        if not all(type(text) is str for text in (found.path, found.sha256)):
            raise TypeError
        return found
    except (ValueError, TypeError, OSError) as error:
        raise BadInput(f"{file}: not what reprokit writes there; fetch or capture the incident again") from error


def missing(pointers: Pointers) -> str:
    """Why the checkpoint cannot be used, as far as one sees without reading it; empty where it can."""
    try:
        size = _stamp(Path(pointers.path))[0]
    except BadInput as reason:
        return str(reason)
    return "" if size == pointers.bytes else _changed(pointers)


def resolve(pointers: Pointers, name: str) -> dict[str, torch.Tensor]:
    """The bytes of this tree's blocks. Raises BadInput where the file is not the one that was pointed to."""
    wanted = pointers.trees.get(name, {})
    if not wanted:
        return {}
    if reason := missing(pointers):
        raise BadInput(reason)
    path = Path(pointers.path)
    if _files.sha256(path) != pointers.sha256:
        raise BadInput(_changed(pointers))
    stored = _blocks(path)
    try:
        return {block: stored[at].copied().memory for block, at in wanted.items()}
    except (KeyError, TypeError) as error:
        raise BadInput(f"{path}: has not the tensors that the incident points to; capture it again") from error


def _changed(pointers: Pointers) -> str:
    return (
        f"{pointers.path}: not the checkpoint of step {pointers.step} that the incident points to (sha256 "
        f"{pointers.sha256[:12]}); put that file there again"
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError as error:
        raise BadInput(
            f"{path}: the checkpoint that holds the state cannot be read ({error.strerror}); put it there again"
        ) from error
    return found.st_size, found.st_mtime_ns, found.st_ino


def _blocks(path: Path) -> dict[str, Block]:
    """The checkpoint's memory by name; the names are the same each time that the same file is read."""
    try:
        if path.suffix == ".safetensors":
            data: Any = safetensors.torch.load(path.read_bytes())
        else:
            data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise BadInput(
            f"{path}: no checkpoint that can be read as plain data ({type(error).__name__}); save state_dicts alone"
        ) from error
    packed = tree.refer(data, name="checkpoint", on_unstorable=lambda entry, value: None)
    return {block.name: block for block in packed.blocks}


def _size(block: Block) -> int:
    return block.memory.numel()


def _among(known: Mapping[str, str], block: Block, sizes: Collection[int]) -> str | None:
    size = _size(block)
    return known.get(_digest(block)) if size >= _SMALLEST and size in sizes else None


def _digest(block: Block) -> str:
    return hashlib.sha256(block.memory.cpu().numpy().data).hexdigest()
