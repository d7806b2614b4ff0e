"""What a command's attempts find: a copy of the source each, a folder to write to, and the files that it is told of.

The source is that of an incident, or what makes up the code in the current folder. It is copied once, so that no
attempt meets what was changed meanwhile, and for each attempt again, so that none meets what another one wrote.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reprokit import _files
from reprokit._scratch import Scratch
from reprokit.capture import listing
from reprokit.errors import BadInput, some
from reprokit.incident import Incident

WORK, OUT, INPUTS = "work", "out", "inputs"
CAPS = listing.Caps(total=1 << 30, file=256 << 20, files=20_000)  # of the current folder: code, not data
_NAMED = 5  # of what is not copied
_NAMES = {"config": "config.yaml", "batch": "batch.safetensors"}
_BLOCK = 4096  # bytes, at least, of a file on disk

Say = Callable[[str], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """Files that the user names instead of those of the incident."""

    config: Path | None = None
    batch: Path | None = None


class Stage:
    """A context manager, since it has files."""

    def __init__(
        self, incident: Incident | None, places: set[str], given: Given, *, say: Say = lambda line: None
    ) -> None:
        self.incident = incident
        self._scratch = Scratch("script")
        self._root = Path(self._scratch.name)
        try:
            self.inputs = {name: self._input(name, given) for name in ("config", "batch") if name in places}
            if "incident" in places and incident is None:
                raise BadInput("--script: {incident} needs an INCIDENT; give one, or leave it out")
            command = _told(incident) if incident else {}
            self.cwd = _inside(command.get("cwd"))
            self.path = tuple(_inside(entry) for entry in command.get("path") or ())
            self.tree = self._root / WORK
            _copied(incident, self.tree) if incident else _current(self.tree, say)
            names = list(_files.listing(self.tree))
            self.size = (len(list(self.tree.rglob("*"))), sum(_blocks(size) for _, size in names))
            if not (self.tree / self.cwd).is_dir():
                self.cwd = "."
        except BaseException:
            self._scratch.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._scratch.cleanup()

    @property
    def packages(self) -> Path | None:
        """What the incident has of packages from beside the source."""
        return self.incident.packages if self.incident and self.incident.packages.is_dir() else None

    @property
    def folder(self) -> Path:
        """Of the files that attempts are told of: to be read alone."""
        return self._root / INPUTS

    @property
    def digest(self) -> str:
        """Of all that attempts find, but for an incident, which has an id."""
        names = [] if self.incident else [f"{WORK}/{name}" for name, _ in _files.listing(self.tree) if name[-1] != "/"]
        names += [str(path.relative_to(self._root)) for path in self.inputs.values()]
        hashes = _files.each(lambda name: _files.sha256(self._root / name), names)
        return sha256(json.dumps(sorted(zip(names, hashes))).encode()).hexdigest()

    def lay(self, folder: Path, *, open_: bool = False) -> None:
        """For one attempt, into an empty folder. open_: to be written to by anybody who can come here."""
        work, out = self.work(folder), self.out(folder)
        shutil.copytree(self.tree, work, symlinks=True)
        out.mkdir()
        if open_:
            for path in (work, out, *work.rglob("*")):
                path.chmod(path.stat().st_mode | (0o777 if path.is_dir() else 0o666))

    def work(self, folder: Path) -> Path:
        """An attempt's copy of the source."""
        return folder / WORK

    def out(self, folder: Path) -> Path:
        """What it is told as `{out}`."""
        return folder / OUT

    def _input(self, name: str, given: Given) -> Path:
        file: Path | None = getattr(given, name)
        target = (
            self._root / INPUTS / (file.name if file else "config.yaml" if name == "config" else "batch.safetensors")
        )
        target.parent.mkdir(exist_ok=True)
        target.parent.chmod(0o755)
        if target.exists():
            raise BadInput(f"--{name} {file}: has the name of the other file; rename one")
        if file:
            _take(name, file, target)
        elif self.incident is None:
            raise BadInput(f"--script: {{{name}}} needs an INCIDENT, or --{name} FILE")
        elif name == "config":
            shutil.copyfile(self.incident.path / "config.yaml", target)
        else:
            _write_batch(self.incident, target)
        target.chmod(0o644)
        return target


def _blocks(size: int) -> int:
    """Of a disk, in bytes, as they are counted afterwards."""
    return -(-size // _BLOCK) * _BLOCK


def _take(name: str, file: Path, target: Path) -> None:
    try:
        shutil.copyfile(file, target)
    except OSError as error:
        raise BadInput(f"--{name} {file}: cannot be read ({error.strerror}); give a file") from error


def _told(incident: Incident) -> dict[str, Any]:
    command = incident.command()
    return command if isinstance(command, dict) else {}


def _inside(folder: object) -> str:
    """As an incident of anybody's has it: a folder of the source, or the source itself."""
    return str(folder) if _files.is_inside(folder) else "."


def _copied(incident: Incident, into: Path) -> None:
    if not incident.source.is_dir():
        raise BadInput(
            f"{incident.name}: holds no source to run a command in; leave out INCIDENT to run in this folder"
        )
    shutil.copytree(incident.source, into)


def _current(into: Path, say: Say) -> None:
    """As a capture would take it: what git tracks or would add, without caches, environments and credentials."""
    here = Path.cwd().resolve()
    if listing.is_too_much(here):
        raise BadInput(f"{here}: more than anybody's code; go to the folder that the command runs in")
    kept, refused = listing.take(here, []).choose(CAPS)
    into.mkdir()
    for one in kept:
        target = into / one.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(here / one.file, target)
    absent = set(os.listdir(here)) - set(os.listdir(into)) - listing.CACHES
    if left := sorted({*absent, *refused}):
        names = some([_files.shown(name) for name in left], _NAMED)
        say(f"not in the copy that attempts run in: {names}; what the command needs of it, name by its whole path")


def _write_batch(incident: Incident, target: Path) -> None:
    """The tensors by their names, as they are used: `safetensors.torch.load_file` reads them. The rest is in a JSON of
    the same name beside it."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, rest = {}, {}
    for name, leaf in _leaves(incident.batch(), "batch"):
        if hasattr(leaf, "untyped_storage"):
            tensors[name] = leaf.detach().cpu().contiguous().clone()
        elif hasattr(leaf, "__array_interface__"):
            import torch

            tensors[name] = torch.as_tensor(leaf).contiguous()
        elif leaf is None or isinstance(leaf, str | int | float | bool):
            rest[name] = leaf
    try:
        save_file(tensors, target)
    except (SafetensorError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise BadInput(f"{incident.name}: its batch is not plain tensors ({error}); give --batch FILE") from error
    target.with_suffix(".json").write_text(json.dumps(rest))
    target.with_suffix(".json").chmod(0o644)


def _leaves(value: Any, name: str, below: str = "") -> list[tuple[str, Any]]:
    """By the path to each: `global`, `local.0`. A batch that is one tensor is `batch`."""
    pairs = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else None
    )
    if pairs is None:
        return [(below or name, value)]
    return [found for key, part in pairs for found in _leaves(part, name, f"{below}.{key}" if below else str(key))]
