"""Files that cross between this machine and a container whose code is not ours."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import threading
from pathlib import Path

from reprokit.step.outcome import Outcome

_LARGEST = 64 << 20  # bytes of an outcome that are read; a large model's fingerprint is about one


def read_outcome(path: Path) -> Outcome | None:
    """What a container left, if it is an outcome. The code in there is not ours: it may have left a link, a pipe, a
    terabyte or nonsense."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return Outcome.from_json(json.loads(file.read(_LARGEST)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    finally:
        os.close(descriptor)


class Visible:
    """Folders as somebody else can read them. Containers do not run as root, and what root wrote under umask 077 only
    root can read: such a folder is copied once, into a place that only root can reach from outside."""

    def __init__(self, *, needed: bool) -> None:
        self._needed = needed
        self._copies: dict[Path, Path] = {}
        self._lock = threading.Lock()
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

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
        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="reprokit-visible-")
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
