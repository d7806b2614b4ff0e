"""An incident: one captured failure as a directory that is complete, or is not there.

It is written into a sibling that is hidden and has no name yet, every file is synced, and one rename publishes it:
killed at any moment, it is whole or absent. The manifest lists every file with its hash, and the incident's id is the
digest of the manifest, so one id vouches for every byte, in the directory, in a bundle and in a store. A reader
believes nothing else: what is missing, changed, added, linked or outside is refused in one line before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from reprokit import _files, _yaml, checkpoint, tree
from reprokit.checkpoint import Pointers
from reprokit.errors import BadInput
from reprokit.failure import Signature, Symptom

SCHEMA = 1
MANIFEST = "incident.json"
GROUP = "group.json"  # in the folder of a rank
DRAFT_PREFIX = ".draft-"  # hidden: nobody takes one for an incident, and a stale one is seen for what it is

_BUNDLED = "MANIFEST.sha256"  # lies beside the incident in an unpacked bundle
_AGAIN = "fetch or capture the incident again"
_HASH = re.compile("[0-9a-f]{64}")
_LARGE = 1 << 20  # bytes of a file that hash longer than a thread takes to be given it
_REASON = 200  # characters of what a reader says that are passed on


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """What a file must be."""

    sha256: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What failed, where it came from, and every file of the incident but the manifest itself."""

    signature: Signature | None  # None: nothing failed, as in a rehearsal
    step: int
    entrypoint: str  # package.module:build, or train.py:build
    layout: Any  # plain data, as Layout.spec has it
    files: Mapping[str, FileEntry]
    symptoms: tuple[Symptom, ...] = ()
    schema: int = SCHEMA
    world_size: int = 1
    origin: int = 0  # the rank that failed first: the one that is meant where none is named
    created: str = ""  # ISO 8601, UTC
    commit: str | None = None  # None: not in a repository
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    redacted: tuple[str, ...] = ()  # what was changed to keep secrets out
    left_out: tuple[str, ...] = ()  # what could not be stored, or was too large
    parent: str | None = None  # id of what this was reduced from
    certificate: Mapping[str, Any] | None = None  # of a reduction: why it is minimal
    id: str = ""  # set where it is written or read

    def to_json(self) -> dict[str, Any]:
        """Strict JSON, with the id that it has: the digest of all the rest."""
        plain = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "id"}
        if self.world_size == 1:
            del plain["origin"]  # there is one; and so had incidents before there could be others
        plain |= {
            "signature": self.signature.to_json() if self.signature else None,
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
            "files": {path: {"sha256": entry.sha256, "bytes": entry.bytes} for path, entry in self.files.items()},
            "fingerprint": dict(self.fingerprint),
        }
        return {"id": hashlib.sha256(_canonical(plain)).hexdigest(), **plain}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Raises what Python raises where a value is missing or of the wrong kind; the id must be that of the rest."""
        parsed = {
            "signature": Signature.from_json(data["signature"]) if data["signature"] else None,
            "symptoms": tuple(Symptom.from_json(symptom) for symptom in data["symptoms"]),
            "files": {path: FileEntry(**entry) for path, entry in data["files"].items()},
            "redacted": tuple(data["redacted"]),
            "left_out": tuple(data["left_out"]),
        }
        manifest = cls(**{**data, **parsed})
        texts = (manifest.entrypoint, manifest.created, *manifest.redacted, *manifest.left_out)
        numbers = (manifest.step, manifest.world_size, manifest.origin)
        counts = (*numbers, *(entry.bytes for entry in manifest.files.values()))
        optional = (manifest.commit, manifest.parent)
        if not all(one is None or type(one) is str for one in optional):
            raise ValueError("not a manifest's values")
        if not (manifest.certificate is None or isinstance(manifest.certificate, dict)):
            raise ValueError("not a manifest's values")
        if not all(type(text) is str for text in texts) or not all(type(count) is int for count in counts):
            raise ValueError("not a manifest's values")
        if not all(_HASH.fullmatch(entry.sha256) for entry in manifest.files.values()):
            raise ValueError("not a hash")
        if manifest.to_json()["id"] != manifest.id:
            raise ValueError("not the manifest of this id")
        return manifest


@dataclass(frozen=True, slots=True)
class Incident:
    """An incident on disk whose manifest is sound. Data is read when asked for."""

    path: Path
    manifest: Manifest
    rank: int | None = None  # that is meant where none is named; None: the one that failed first

    @classmethod
    def open(cls, path: Path | str, *, verify: bool = True) -> Incident:
        """Check the manifest and the listing and, unless told otherwise, the hash of every file."""
        path = Path(path)
        try:
            incident = cls(path, read_manifest(path))
            _check_listing(path, incident.manifest.files)
            if verify:
                _check_hashes(path, incident.manifest.files)
        except OSError as error:
            raise BadInput(f"{error.filename or path}: cannot be read ({error.strerror}); {_AGAIN}") from error
        return incident

    @property
    def name(self) -> str:
        """What it is called, and what is made from it after it: its folder's name; inside a bundle, the bundle's."""
        path = self.path.resolve()
        return path.parent.name if path.name == "incident" and (path.parent / _BUNDLED).is_file() else path.name

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.manifest.files.values())

    @property
    def source(self) -> Path:
        """The archived tree of the source."""
        return self.path / "source/tree"

    @property
    def packages(self) -> Path:
        """What was imported from beside the source; absent where nothing was."""
        return self.path / "source/packages"

    def config(self) -> Any:
        try:
            return _yaml.read(self._text("config.yaml"))
        except ValueError as error:
            why = _files.shown(str(error)[:_REASON])
            raise BadInput(f"{self.path / 'config.yaml'}: not YAML of plain data ({why}); {_AGAIN}") from error

    def command(self) -> Any:
        return self._json("command.json")

    def environment(self) -> Any:
        return self._json("environment.json")

    def variables(self) -> dict[str, str]:
        """Those of its environment that were captured."""
        found = self.environment().get("variables", {})
        if not isinstance(found, dict) or not all(map(_is_variable, found, found.values())):
            raise BadInput(f"{self.path / 'environment.json'}: variables that no process has; {_AGAIN}")
        return found

    def flags(self) -> Any:
        return self._json("flags.json")

    def requirements(self) -> str:
        return self._text("requirements.txt")

    @property
    def rolls_forward(self) -> bool:
        """Whether the step's start is not held, but comes of running the history's steps from the anchor."""
        return "state/state.json" not in self.manifest.files and "state/anchor.json" in self.manifest.files

    def state(self, rank: int | None = None) -> Any:
        """The state at the step's start, or None where it `rolls_forward`. Ranks share it, but for some of it."""
        return None if self.rolls_forward else self._state("state", rank)

    def loop(self) -> Any:
        """What the recorder knew of the loop at the step's start, of an incident that `rolls_forward`."""
        return self._json("state/loop.json")

    @property
    def ranks(self) -> list[int]:
        """Those that are held, of the `world_size` that there were."""
        found = (re.fullmatch(r"ranks/([0-9]{2,6})/rng\.json", path) for path in self.manifest.files)
        return sorted(int(one[1]) for one in found if one)

    @property
    def folder(self) -> str:
        """Of the rank that is meant."""
        return self._rank(None)

    def group(self, rank: int | None = None) -> Any:
        """What its process group was, and what the rank showed; empty where it was in none."""
        name = f"{self._rank(rank)}/{GROUP}"
        return self._json(name) if name in self.manifest.files else {}

    def batch(self, rank: int | None = None) -> Any:
        return tree.load(self.path / self._rank(rank), "batch")

    def donor(self, rank: int | None = None) -> Any:
        """The last healthy batch, or None where the first one failed."""
        held = f"{self._rank(rank)}/donor.json" in self.manifest.files
        return tree.load(self.path / self._rank(rank), "donor") if held else None

    def loader(self, rank: int | None = None) -> Any:
        """Where in its data the loader was, as its `state_dict` said; None for one that has none."""
        held = f"{self._rank(rank)}/loader.json" in self.manifest.files
        return tree.load(self.path / self._rank(rank), "loader") if held else None

    def rng(self, rank: int | None = None) -> Any:
        return tree.load(self.path / self._rank(rank), "rng")

    def rewindable(self) -> int:
        """How many steps before the failing one are held, in every rank."""
        held = [self._earlier(rank) for rank in self.ranks]
        return len(held[0]) if held and all(one == held[0] for one in held) else 0

    def history(self, rank: int | None = None) -> list[Any]:
        """Those steps, oldest first: step, micro, rng, batch, and what changed after it. A batch that is not held is
        the donor: that of the last step. One that a reduction dropped has none, and does not run."""
        found = []
        for name in self._earlier(rank):
            folder = f"{self._rank(rank)}/history/{name}"
            start = {"dropped": False, **tree.load(self.path / folder, "start")}
            held = f"{folder}/batch.json" in self.manifest.files
            batch = tree.load(self.path / folder, "batch") if held else None if start["dropped"] else self.donor(rank)
            found.append({**start, "batch": batch})
        return found

    def donor_before(self, rank: int | None = None) -> Any:
        """The healthy batch before the whole history, or None where none was kept."""
        held = f"{self._rank(rank)}/history/donor.json" in self.manifest.files
        return tree.load(self.path / self._rank(rank) / "history", "donor") if held else None

    def anchor(self, rank: int | None = None) -> Any:
        """The state before the oldest step of the history, or None where there is none."""
        return self._state("anchor", rank) if "state/anchor.json" in self.manifest.files else None

    def checkpoint(self) -> Pointers | None:
        """Where tensors of the state are that are not in here; None where all of it is."""
        return checkpoint.read(self.path / "state") if f"state/{checkpoint.FILE}" in self.manifest.files else None

    def _state(self, name: str, rank: int | None) -> Any:
        pointers = self.checkpoint()
        held = checkpoint.resolve(pointers, name) if pointers else None
        state = tree.load(self.path / "state", name, held)
        own = f"{self._rank(rank)}/{name}.json" in self.manifest.files
        return state | tree.load(self.path / self._rank(rank), name) if own else state

    def _rank(self, rank: int | None) -> str:
        named = self.rank if rank is None else rank
        return folder_of(self.manifest.origin if named is None else named)

    def _earlier(self, rank: int | None) -> list[str]:
        """The folders of the history's steps, oldest first."""
        pattern = re.compile(rf"{self._rank(rank)}/history/([0-9]{{1,18}})/start\.json")
        return sorted((found[1] for path in self.manifest.files if (found := pattern.fullmatch(path))), key=int)

    def copy_into(self, draft: Draft, *, except_: Collection[str] = ()) -> None:
        """All files but those named, by path or by folder; each is checked against its hash on the way."""
        folders = tuple(f"{name.rstrip('/')}/" for name in except_)
        kept = [item for item in self.manifest.files.items() if not f"{item[0]}/".startswith(folders)]
        _files.each(lambda file: _check_hash(self.path, file[0], file[1], copy_to=draft.file(file[0])), kept)

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{self.path / name}: missing or not text; {_AGAIN}") from error

    def _json(self, name: str) -> Any:
        try:
            found = json.loads(self._text(name))
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self.path / name}: not JSON; {_AGAIN}") from error
        if not isinstance(found, dict):
            raise BadInput(f"{self.path / name}: not what reprokit writes there; {_AGAIN}")
        return found


class Draft:
    """An incident in the making, in a hidden folder inside `out`. Leaving the context removes it unless published."""

    def __init__(self, out: Path | str) -> None:
        self.out = Path(out)
        self.path = self.out / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
        self._claim: int | None = None

    def __enter__(self) -> Self:
        try:
            self.path.mkdir(parents=True)
            self._claim = _files.claim(self.path)
        except OSError as error:
            raise BadInput(f"{self.out}: cannot be written ({error.strerror}); choose another folder") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._claim is not None:
            os.close(self._claim)

    def file(self, name: str) -> Path:
        """Where to write a file of this name; its folders are made."""
        if not _files.is_inside(name) or name == MANIFEST:
            raise BadInput(f"{_files.shown(name)}: no name for a file of an incident; use a relative path without ..")
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def names(self) -> list[str]:
        """Of the files so far."""
        return [name for name, _ in _files.listing(self.path)]

    def write_text(self, name: str, text: str) -> None:
        """UTF-8; what has no place in it, as lone surrogates of captured output, is written as an escape."""
        self.file(name).write_bytes(text.encode("utf-8", "backslashreplace"))

    def write_json(self, name: str, data: Any) -> None:
        try:
            self.write_text(name, json.dumps(data, indent=2, allow_nan=False) + "\n")
        except (TypeError, ValueError) as error:
            raise BadInput(f"{name}: not plain data ({error}); use mappings, lists, text and numbers") from error

    def write_yaml(self, name: str, data: Any) -> None:
        try:
            self.write_text(name, yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
        except yaml.YAMLError as error:
            raise BadInput(f"{name}: not plain data; use mappings, lists, text and numbers") from error

    def write_tree(
        self,
        folder: str,
        name: str,
        data: object,
        on_unstorable: Callable[[str, object], None] | None = None,
        *,
        without: Collection[str] = (),
    ) -> None:
        """See `tree.save`."""
        place = self.file(f"{folder}/{name}.json").parent
        tree.save(data, place, name, on_unstorable=on_unstorable, without=without)

    def publish(self, name: str, **manifest: Any) -> Incident:
        """Hash, sync and rename. Takes Manifest's fields but schema, id and files; a taken name gets a number."""
        if not _files.is_inside(name) or "/" in name or name.startswith("."):
            raise BadInput(f"{_files.shown(name)}: no name for an incident; use letters, digits and dashes")
        _files.prune(self.path)
        sizes = dict(_files.listing(self.path))
        hashes = _files.seal(self.path, sizes)
        files = {path: FileEntry(sha256=sha256, bytes=sizes[path]) for path, sha256 in zip(sizes, hashes)}
        manifest = {"created": datetime.now(UTC).isoformat(timespec="seconds")} | manifest
        text = json.dumps(Manifest(files=files, **manifest).to_json(), indent=1, allow_nan=False) + "\n"
        (self.path / MANIFEST).write_text(text)
        _files.seal(self.path, [MANIFEST])
        path = _files.rename_free(self.path, self.out, name)
        _files.sync(self.out)
        return Incident(path, Manifest.from_json(json.loads(text)))


def sweep(out: Path) -> list[str]:
    """Remove drafts in `out` whose writers were killed; their names. Those that somebody still writes stay."""
    return _files.sweep(out, DRAFT_PREFIX) if out.is_dir() else []


def _canonical(data: Mapping[str, Any]) -> bytes:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _is_variable(name: str, value: object) -> bool:
    """Whether a process can be started with it."""
    if not name or "=" in name or not isinstance(value, str) or "\0" in name + value:
        return False
    try:
        os.fsencode(name + value)
    except UnicodeEncodeError:
        return False
    return True


def folder_of(rank: int) -> str:
    """Where an incident has what is one rank's."""
    return f"ranks/{rank:02}"


def read_manifest(folder: Path) -> Manifest:
    """Of an incident, or of what is to become one; only the manifest itself is looked at. Raises BadInput."""
    path = folder / MANIFEST
    if folder.name.startswith(DRAFT_PREFIX):
        raise BadInput(f"{folder}: a draft that was never finished, not an incident; delete it")
    if not folder.is_dir():
        what = "a file, not the folder of an incident" if folder.exists() else "no such incident"
        raise BadInput(f"{_files.shown(folder)}: {what}; check the path")
    if not path.exists():
        inside = sorted(one.parent.name for one in folder.glob(f"[!.]*/{MANIFEST}"))
        give = f"one of the {len(inside)} in it, such as {folder / inside[0]}" if inside else "the folder that has one"
        raise BadInput(_files.shown(f"{folder}: not an incident, it has no {MANIFEST}; give {give}"))
    try:
        with _files.opened(path) as file:
            data = json.load(file)
        schema = data["schema"]
        if type(schema) is int and schema > SCHEMA:
            newer = f"schema {schema} of a newer reprokit, this one reads up to {SCHEMA}"
            raise BadInput(f"{path}: {newer}; upgrade reprokit")
        if schema != SCHEMA:
            raise ValueError("no schema")
        return Manifest.from_json(data)
    except json.JSONDecodeError as error:
        raise BadInput(f"{path}: not JSON, truncated or altered; {_AGAIN}") from error
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadInput(f"{path}: not the manifest that reprokit wrote, it was altered; {_AGAIN}") from error


def _check_listing(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """What the manifest lists is there in its size, and nothing else is."""
    for name in files:
        if not _files.is_inside(name) or name == MANIFEST:
            outside = f"its manifest lists a path outside, {_files.shown(name)}"
            raise BadInput(f"{folder}: {outside}; do not trust where it came from")
    sizes = dict(_files.listing(folder))
    del sizes[MANIFEST]
    for name, entry in files.items():
        path = _files.shown(folder / name)
        if name not in sizes:
            raise BadInput(f"{path}: missing; {_AGAIN}")
        if sizes[name] != entry.bytes:
            raise BadInput(f"{path}: {sizes[name]} bytes instead of {entry.bytes}, truncated or altered; {_AGAIN}")
    for name in sizes.keys() - files.keys():
        raise BadInput(f"{_files.shown(folder / name)}: not in the incident's manifest; remove it, or {_AGAIN}")


def _check_hashes(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Threads are for those that are worth one."""
    large = {name: entry for name, entry in files.items() if entry.bytes >= _LARGE}
    _files.each(lambda file: _check_hash(folder, file[0], file[1]), large.items())
    for name, entry in files.items():
        if name not in large:
            _check_hash(folder, name, entry)


def _check_hash(folder: Path, name: str, entry: FileEntry, copy_to: Path | None = None) -> None:
    path = folder / name
    found = _files.sha256(path) if copy_to is None else _files.copied(path, copy_to)
    if found != entry.sha256:
        raise BadInput(f"{_files.shown(path)}: does not match its hash, it was altered; {_AGAIN}")
