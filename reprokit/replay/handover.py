"""Files that cross between this machine and a container whose code is not ours."""

from __future__ import annotations

import json
import os
import shutil
import stat
import threading
from contextlib import suppress
from pathlib import Path

from reprokit._scratch import Scratch
from reprokit.step.outcome import Outcome

_LARGEST = 16 << 20  # bytes of an outcome that are read; a large model's fingerprint is about one
_MANY = 10_000  # files and folders in an output folder: looking at so many takes a moment, and an attempt leaves five
_RESERVE = 2 << 30  # bytes of a disk that are left to others, or half of what was free if that is less
_MIB = 1 << 20


def read_outcome(path: Path) -> Outcome | None:
    """What a container left, if it is an outcome. The code in there is not ours: it may have left a link, a pipe, a
    terabyte or nonsense."""
    try:
        descriptor = _opened(path)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            data = json.loads(file.read(_LARGEST))
        json.dumps(data, ensure_ascii=False).encode()  # half a character is a ValueError here, not where it is shown
        return Outcome.from_json(data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ArithmeticError):
        return None
    finally:
        os.close(descriptor)


def read_tail(path: Path, count: int = 1 << 16) -> bytes:
    """The last bytes of a file that a container left; none where it is anything else."""
    with suppress(OSError), open(_opened(path), "rb") as file:
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            file.seek(max(0, about.st_size - count))
            return file.read(count)
    return b""


def _opened(path: Path) -> int:
    """Neither it nor the folder that it is in may be a link, and nobody is waited for at the other end of a pipe."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(path.parent, flags | os.O_DIRECTORY)
    try:
        return os.open(path.name, flags | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)


class Room:
    """What a container takes of the disk that its output folder is on. Nothing but us limits that: the folder is this
    machine's. A file that is open and has no name any more is seen by what is free."""

    def __init__(self, folder: Path, limit: int, *, many: int = _MANY) -> None:
        self._folder, self._limit, self._many = folder, limit, many
        self._left = min(_RESERVE, _free(folder) // 2)

    def exceeded(self) -> str:
        """Why it must end; empty while it need not. Asked now and then."""
        taken = _taken(self._folder, self._many)
        if taken is None:
            return f"killed for its output folder: more than {self._many} entries, or some that cannot be looked at"
        if taken > self._limit:
            return f"killed for its output folder: {taken / _MIB:.0f} MiB, of {self._limit / _MIB:.0f} that it may take"
        if _free(self._folder) < self._left:
            return "killed since the disk of its output folder is nearly full; free some, or set TMPDIR to another disk"
        return ""


def _free(folder: Path) -> int:
    about = os.statvfs(folder)
    return about.f_bavail * about.f_frsize


def _taken(folder: Path, many: int = _MANY) -> int | None:
    """Bytes on disk of all below a folder; None where that is not to be found out in a moment."""
    taken, seen, todo = 0, 0, [str(folder)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if (seen := seen + 1) > many:
                        return None
                    taken += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except FileNotFoundError:  # gone meanwhile
            continue
        except OSError:
            return None
    return taken


class Visible:
    """Folders as somebody else can read them. Containers do not run as root, and what root wrote under umask 077 only
    root can read: such a folder is copied once, into a place that only root can reach from outside."""

    def __init__(self, *, needed: bool) -> None:
        self._needed = needed
        self._copies: dict[Path, Path] = {}
        self._lock = threading.Lock()
        self._scratch: Scratch | None = None

    def of(self, folder: Path) -> Path:
        folder = folder.resolve()
        with self._lock:
            if folder not in self._copies:
                self._copies[folder] = self._copy(folder) if self._needed and _hidden(folder) else folder
            return self._copies[folder]

    def close(self) -> None:
        if self._scratch:
            self._scratch.cleanup()

    def _copy(self, folder: Path) -> Path:
        self._scratch = self._scratch or Scratch("visible")
        copy = Path(self._scratch.name) / str(len(self._copies))
        shutil.copytree(folder, copy, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        return copy


def _hidden(folder: Path) -> bool:
    """Whether anything in a folder cannot be read by others."""
    for path in (folder, *folder.rglob("*")):
        mode = path.lstat().st_mode
        wanted = 0o005 if stat.S_ISDIR(mode) else 0o004
        if not stat.S_ISLNK(mode) and mode & wanted != wanted:
            return True
    return False
