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
from pathlib import Path, PurePosixPath

from reprokit.capture import redact
from reprokit.capture.repository import GITLINK, GitError, Repository, shown
from reprokit.incident import DRAFT_PREFIX

LOOKED_AT = 100_000  # entries of a walk: a data set of millions of frames must not hold up training
CACHES = frozenset((  # never code, and large; not named among what is left out
    "__pycache__", ".git", ".hg", ".svn", ".venv", "venv", "node_modules", ".tox", ".nox", ".eggs", ".cache",
    ".mypy_cache", ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".idea", ".vscode",
    "site-packages", "dist-packages", ".DS_Store",
))  # fmt: skip
MARKS = {"pyvenv.cfg": "an environment", "conda-meta": "an environment", "incident.json": "an incident"}
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
    file: Path  # what is read: for a link, the file that it leads to
    size: int
    tracked: bool
    link: bool = False


@dataclass(kw_only=True, slots=True)
class Listing:
    """What there is, what was not taken and why, and what git says of it."""

    root: Path
    exclude: list[Path]
    repository: Repository | None = None
    files: list[Found] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)  # relative to the repository's top; links too
    modules: dict[str, str | None] = field(default_factory=dict)  # repositories inside this one, with their commits
    left_out: list[str] = field(default_factory=list)  # "path: reason"
    links: list[tuple[str, Path, bool]] = field(default_factory=list)  # to folders: where, what, tracked
    folders: dict[Path, str | None] = field(default_factory=dict)  # looked at -> why nothing in it is taken

    def add(self, file: Path, *, tracked: bool) -> bool:
        """Take one file, or say why not; whether it is there and meant to be seen."""
        if self.excluded(file) or (not tracked and (file.suffix == ".pyc" or self.closed(file.parent) is not None)):
            return False
        path = file.relative_to(self.root).as_posix()
        try:
            status = file.lstat()
        except (FileNotFoundError, NotADirectoryError):  # deleted: the patch says so
            return False
        except OSError as error:
            self.left_out.append(f"{shown(path)}: {error.strerror}")
            return False
        if stat.S_ISLNK(status.st_mode):
            self._add_link(file, path, tracked)
        elif stat.S_ISREG(status.st_mode):
            self.files.append(Found(path=path, file=file, size=status.st_size, tracked=tracked))
        elif not stat.S_ISDIR(status.st_mode):
            self.left_out.append(f"{shown(path)}: is no file")
        return stat.S_ISLNK(status.st_mode) or stat.S_ISREG(status.st_mode)

    def excluded(self, file: Path) -> bool:
        return any(file == folder or folder in file.parents for folder in self.exclude)

    def closed(self, folder: Path) -> str | None:
        """Why nothing untracked in a folder is taken, if so; said once, for the outermost."""
        if folder == self.root or self.root not in folder.parents:
            return None
        if folder not in self.folders:
            reason = self.closed(folder.parent)
            if reason is None:
                reason = self._own_reason(folder)
                if reason:
                    self.left_out.append(f"{shown(folder.relative_to(self.root).as_posix())}: {reason}")
            self.folders[folder] = reason
        return self.folders[folder]

    def choose(self, caps: Caps) -> tuple[list[Found], set[str]]:
        """What fits, code first, then tracked, then small; and the paths that were refused, each with a reason."""
        kept, refused, room = [], set(), caps.total
        order = lambda found: (Path(found.path).suffix not in CODE, not found.tracked, found.size, found.path)
        for found in sorted(self.files, key=order):
            if redact.is_secret_file(found.file.name) or redact.is_secret_file(PurePosixPath(found.path).name):
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
        for path, real, tracked in self.links:
            inside = [found for found in self.files if real in found.file.parents and not found.link]
            for found in inside:
                name = f"{path}/{found.file.relative_to(real).as_posix()}"
                self.files.append(Found(path=name, file=found.file, size=found.size, tracked=tracked, link=True))
        self.links.clear()

    def _own_reason(self, folder: Path) -> str | None:
        if folder.name in CACHES:
            return ""
        if self.excluded(folder) or folder.name.startswith(DRAFT_PREFIX):
            return "the recorder's own output"
        return next((reason for mark, reason in MARKS.items() if (folder / mark).exists()), None)

    def _add_link(self, file: Path, path: str, tracked: bool) -> None:
        try:
            real = file.resolve(strict=True)
        except (OSError, RuntimeError):  # the latter for a link to itself
            self.left_out.append(f"{shown(path)}: a link to nothing")
            return
        if self.root not in real.parents:
            self.left_out.append(f"{shown(path)}: a link out of the source")
        elif real in file.parents:
            self.left_out.append(f"{shown(path)}: a link to a folder around it")
        elif real.is_dir():
            self.links.append((path, real, tracked))
        elif real.is_file():
            self.files.append(Found(path=path, file=real, size=real.stat().st_size, tracked=tracked, link=True))


def take(root: Path, exclude: Iterable[Path]) -> Listing:
    """The files of a root (resolved), by git if it is in a repository. What git or a folder refuses is left out."""
    outside = [folder.resolve() for folder in exclude]
    listing = Listing(root=root, exclude=[folder for folder in outside if folder not in (root, *root.parents)])
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
        _from_walk(listing)
    listing.expand()
    return listing


def is_too_much(folder: Path) -> bool:
    """Whether a folder holds more than anybody's code: only files directly in it are ever archived."""
    everything = (Path(folder.anchor), Path.home().resolve(), Path(tempfile.gettempdir()).resolve())
    return folder in everything or folder.name in ("site-packages", "dist-packages")


def _from_git(listing: Listing, repository: Repository, outer: bool = True) -> None:
    """Files of a repository, and of those inside it: submodules, and others that happen to lie there."""
    inner: dict[str, str | None] = {}
    for entry in repository.tracked():
        if entry.mode == GITLINK:
            inner[entry.path] = entry.blob
        elif listing.root in (repository.top / entry.path).parents:
            listing.add(repository.top / entry.path, tracked=True)
    for path in repository.untracked():
        if path.endswith("/"):
            inner.setdefault(path.rstrip("/"), None)
        elif listing.root in (repository.top / path).parents:
            is_there = listing.add(repository.top / path, tracked=False)
            listing.untracked += [path] if is_there and outer else []
    for path, recorded in inner.items():
        folder = repository.top / path
        if listing.root in folder.parents and listing.closed(folder) is None and not listing.excluded(folder):
            _from_inner(listing, folder, recorded)


def _from_inner(listing: Listing, folder: Path, recorded: str | None) -> None:
    name = shown(folder.relative_to(listing.root).as_posix())
    listing.modules[name] = recorded
    try:
        if not (folder / ".git").exists():
            listing.left_out.append(f"{name}: a submodule that is not checked out")
        elif (inside := Repository.find(folder)) is not None and inside.top == folder.resolve():
            listing.modules[name] = inside.commit() or recorded
            _from_git(listing, inside, outer=False)
    except GitError as error:
        listing.left_out.append(f"{name}: {error}")


def _from_walk(listing: Listing) -> None:
    looked_at = 0
    folders = [listing.root]
    shallow = is_too_much(listing.root)
    if shallow:
        listing.left_out.append(f".: only code directly in {listing.root.name or '/'} is taken, not all that is below")
    while folders:
        folder = folders.pop()
        for file, is_folder in _entries(listing, folder):
            looked_at += 1
            if looked_at > LOOKED_AT:
                listing.left_out.append(f".: over {LOOKED_AT:,} files and folders, the rest was not looked at")
                return
            if is_folder and not shallow and listing.closed(file) is None:
                folders.append(file)
            elif not is_folder and not (shallow and (file.suffix not in CODE or file.name.startswith("."))):
                listing.add(file, tracked=False)


def _entries(listing: Listing, folder: Path) -> list[tuple[Path, bool]]:
    """Of one folder, in order; nothing where it cannot be read."""
    try:
        with os.scandir(folder) as found:
            return sorted((folder / entry.name, entry.is_dir(follow_symlinks=False)) for entry in found)
    except OSError as error:
        listing.left_out.append(f"{shown(folder.relative_to(listing.root).as_posix())}: {error.strerror}")
        return []
