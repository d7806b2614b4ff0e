"""Which files make up the code that is training, in a repository and outside of one.

In a repository git knows: what is tracked, and what it would offer to add. Outside of one everything below the root is
code, except what is known not to be: environments, caches, incidents. Either way there may be data lying about, so
there are caps, and code goes first: a copy that has every script and lacks a video still replays.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from os.path import basename, splitext
from pathlib import Path

from reprokit.capture import redact
from reprokit.capture.repository import GITLINK, GitError, Repository, shown
from reprokit.incident import DRAFT_PREFIX

LOOKED_AT = 100_000  # entries of a walk: a data set of millions of frames must not hold up training
CACHES = frozenset((  # never code, and large; not named among what is left out
    "__pycache__", ".git", ".hg", ".svn", ".venv", "venv", "node_modules", ".tox", ".nox", ".eggs", ".cache",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".idea", ".vscode",
    "site-packages", "dist-packages", ".DS_Store",
))  # fmt: skip
MARKS = {  # what a folder has -> what it is
    "pyvenv.cfg": "an environment",
    "conda-meta": "an environment",
    "incident.json": "an incident",
    "attempts.jsonl": "attempts of a replay",
}
MADE = {".tar.zst": "a bundle", ".journal.jsonl": "the journal of a reduction"}  # by verbs; no code unless tracked
CODE = frozenset((
    ".py", ".pyi", ".pyx", ".ipynb", ".yaml", ".yml", ".toml", ".json", ".cfg", ".ini", ".sh", ".txt", ".md", ".jinja",
    ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp",
))  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """How much of a working tree is archived. Code is far below this, and a run may have many incidents."""

    total: int = 50 << 20  # bytes
    file: int = 5 << 20  # bytes of one file
    files: int = 5_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """One file to archive."""

    path: str  # where it goes, relative to the root
    file: str  # what is read, relative to the root too: for a link, the file that it leads to
    size: int
    tracked: bool
    link: bool = False


@dataclass(kw_only=True, slots=True)
class Listing:
    """What there is, what was not taken and why, and what git says of it.

    Names are text relative to the root, not paths: there may be a hundred thousand of them.
    """

    root: Path
    exclude: list[str]
    repository: Repository | None = None
    files: list[Found] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)  # of the repository itself, links too
    modules: dict[str, str | None] = field(default_factory=dict)  # repositories inside this one, with their commits
    left_out: list[str] = field(default_factory=list)  # "path: reason"
    links: list[tuple[str, str, bool]] = field(default_factory=list)  # to folders: where, what, tracked
    folders: dict[str, str | None] = field(default_factory=dict)  # looked at -> why nothing in it is taken
    looked_at: int = 0  # entries of a walk

    def add(self, name: str, *, tracked: bool) -> bool:
        """Take one file, or say why not; whether it is there and meant to be seen."""
        if self.excluded(name) or (not tracked and (name.endswith(".pyc") or self.closed(_parent(name)) is not None)):
            return False
        try:
            status = os.lstat(os.path.join(self.root, name))
        except (FileNotFoundError, NotADirectoryError):  # deleted: the patch says so
            return False
        except OSError as error:
            self.left_out.append(f"{shown(name)}: {error.strerror}")
            return False
        if stat.S_ISLNK(status.st_mode):
            self._add_link(name, tracked)
        elif stat.S_ISREG(status.st_mode):
            self.files.append(Found(path=name, file=name, size=status.st_size, tracked=tracked))
        elif not stat.S_ISDIR(status.st_mode):
            self.left_out.append(f"{shown(name)}: is no file")
        return stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode)

    def excluded(self, name: str) -> bool:
        return any(name == folder or name.startswith(f"{folder}/") for folder in self.exclude)

    def closed(self, folder: str) -> str | None:
        """Why nothing untracked in a folder is taken, if so; said once, for the outermost."""
        if not folder:
            return None
        if folder not in self.folders:
            reason = self.closed(_parent(folder))
            if reason is None:
                reason = self._own_reason(folder)
                if reason:
                    self.left_out.append(f"{shown(folder)}: {reason}")
            self.folders[folder] = reason
        return self.folders[folder]

    def choose(self, caps: Caps) -> tuple[list[Found], set[str]]:
        """What fits, code first, then tracked, then small; and the paths that were refused, each with a reason."""
        kept: list[Found] = []
        refused: set[str] = set()
        room = caps.total
        order = lambda found: (splitext(found.path)[1] not in CODE, not found.tracked, found.size, found.path)
        for found in sorted(self.files, key=order):
            made = next((what for suffix, what in MADE.items() if found.path.endswith(suffix)), None)
            if made and not found.tracked:
                reason = made
            elif redact.is_secret_file(found.path) or redact.is_secret_file(found.file):
                reason = "a file of credentials"
            elif found.size > caps.file:
                reason = f"{found.size:,} bytes, over {caps.file:,} a file"
            elif found.size > room:
                reason = f"{found.size:,} bytes, over {caps.total:,} in all"
            elif len(kept) >= caps.files:
                reason = f"over {caps.files:,} files"
            else:
                kept.append(found)
                room -= found.size
                continue
            self.left_out.append(f"{shown(found.path)}: {reason}")
            refused.add(found.path)
        return sorted(kept, key=lambda found: found.path), refused

    def expand(self) -> None:
        """A link to a folder becomes a folder, with copies of the files that are taken at their own place."""
        own = [found for found in self.files if not found.link] if self.links else []
        for name, real, tracked in self.links:
            for found in own:
                if found.path.startswith(f"{real}/"):
                    path = name + found.path.removeprefix(real)
                    self.files.append(Found(path=path, file=found.file, size=found.size, tracked=tracked, link=True))
        self.links.clear()

    def _own_reason(self, folder: str) -> str | None:
        name = basename(folder)
        if name in CACHES:
            return ""
        if self.excluded(folder) or name.startswith(DRAFT_PREFIX):
            return "the recorder's own output"
        return next((reason for mark, reason in MARKS.items() if (self.root / folder / mark).exists()), None)

    def _add_link(self, name: str, tracked: bool) -> None:
        file = self.root / name
        try:
            real = file.resolve(strict=True)
            size = real.stat().st_size
        except (OSError, RuntimeError):  # the latter for a link to itself
            self.left_out.append(f"{shown(name)}: a link to nothing")
            return
        if real in (self.root, *file.parents):
            self.left_out.append(f"{shown(name)}: a link to a folder around it")
        elif self.root not in real.parents:
            self.left_out.append(f"{shown(name)}: a link out of the source")
        elif real.is_dir():
            self.links.append((name, real.relative_to(self.root).as_posix(), tracked))
        elif real.is_file():
            file_name = real.relative_to(self.root).as_posix()
            self.files.append(Found(path=name, file=file_name, size=size, tracked=tracked, link=True))


def take(root: Path, exclude: Iterable[Path]) -> Listing:
    """The files of a root (resolved), by git if it is in a repository. What git or a folder refuses is left out."""
    listing = _empty(root, exclude)
    try:
        repository = Repository.find(root)
        if repository is not None and not is_too_much(repository.top) and repository.holds(root):
            listing.repository = repository
            _from_git(listing, repository)
    except (GitError, ValueError) as error:  # the latter for answers of git that we cannot read
        listing.repository = None
        listing.left_out.append(f"commit and patch.diff: {error}")
        listing.files.clear()
    if listing.repository is None:
        _from_walk(listing, LOOKED_AT)
    listing.expand()
    return listing


def walk(root: Path, exclude: Iterable[Path], most: int) -> Listing:
    """The files below a folder (resolved), whatever git thinks of them; of at most so many entries."""
    listing = _empty(root, exclude)
    _from_walk(listing, most)
    listing.expand()
    return listing


def is_too_much(folder: Path) -> bool:
    """Whether a folder holds more than anybody's code: only files directly in it are ever archived."""
    everything = (Path(folder.anchor), Path.home().resolve(), Path(tempfile.gettempdir()).resolve())
    return folder in everything or folder.name in ("site-packages", "dist-packages")


def _empty(root: Path, exclude: Iterable[Path]) -> Listing:
    inside = [folder.relative_to(root).as_posix() for folder in map(Path.resolve, exclude) if root in folder.parents]
    return Listing(root=root, exclude=inside)


def _from_git(listing: Listing, repository: Repository, outer: bool = True) -> None:
    """Files of a repository, and of those inside it: submodules, and others that happen to lie there."""
    inner: dict[str, str | None] = {}
    for entry in repository.tracked():
        name = seen_from(listing.root, repository, entry.path)
        if name and entry.mode == GITLINK:
            inner[name] = entry.blob
        elif name:
            listing.add(name, tracked=True)
    for path in repository.untracked():
        name = seen_from(listing.root, repository, path)
        if name and name.endswith("/"):
            inner.setdefault(name.rstrip("/"), None)
        elif name and listing.add(name, tracked=False) and outer:
            listing.untracked.append(name)
    for name, recorded in inner.items():
        if listing.closed(name) is None and not listing.excluded(name):
            _from_inner(listing, name, recorded)


def seen_from(root: Path, repository: Repository, path: str) -> str | None:
    """A path of a repository as a name below the root, which may be a folder of it, or around it; None if not below."""
    if root == repository.top:
        return path
    if root in repository.top.parents:
        return f"{repository.top.relative_to(root).as_posix()}/{path}"
    folder = root.relative_to(repository.top).as_posix() + "/"
    return path.removeprefix(folder) if path.startswith(folder) else None


def _from_inner(listing: Listing, name: str, recorded: str | None) -> None:
    folder = listing.root / name
    listing.modules[shown(name)] = recorded
    try:
        if not (folder / ".git").exists():
            listing.left_out.append(f"{shown(name)}: a submodule that is not checked out")
        elif (inside := Repository.find(folder)) is not None and inside.top == folder.resolve():
            listing.modules[shown(name)] = inside.commit() or recorded
            _from_git(listing, inside, outer=False)
    except GitError as error:
        listing.left_out.append(f"{shown(name)}: {error}")


def _from_walk(listing: Listing, most: int) -> None:
    shallow = is_too_much(listing.root)
    if shallow:
        listing.left_out.append(f".: only code directly in {listing.root.name or '/'} is taken, not all that is below")
    folders = [""]
    while folders:
        for name, is_folder in _entries(listing, folders.pop()):
            listing.looked_at += 1
            if listing.looked_at > most:
                listing.left_out.append(f".: over {most:,} files and folders, the rest was not looked at")
                return
            if is_folder and not shallow and listing.closed(name) is None:
                folders.append(name)
            elif not is_folder and not (shallow and (splitext(name)[1] not in CODE or name.startswith("."))):
                listing.add(name, tracked=False)


def _entries(listing: Listing, folder: str) -> list[tuple[str, bool]]:
    """Of one folder, in order; nothing where it cannot be read."""
    prefix = f"{folder}/" if folder else ""
    try:
        with os.scandir(listing.root / folder) as found:
            return sorted((prefix + entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    except OSError as error:
        listing.left_out.append(f"{shown(folder or '.')}: {error.strerror}")
        return []


def _parent(name: str) -> str:
    return name.rpartition("/")[0]
