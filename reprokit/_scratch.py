"""Temporary folders that do not outlive their process, however it ends.

A process that is killed cleans nothing up, and what it leaves is copies of somebody's code and batches. So each folder
is locked by the process that made it; a lock ends with its holder, and the next process that makes a folder removes
those that nobody holds.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from reprokit import _files

PREFIX = "reprokit-scratch-"
_FRESH = 60.0  # seconds in which a folder may be there and not yet be locked


class Scratch(tempfile.TemporaryDirectory[str]):
    """A temporary folder that is swept away if this process cannot do it. what: a word for who looks into /tmp."""

    def __init__(self, what: str) -> None:
        _sweep_once(tempfile.gettempdir())
        super().__init__(prefix=f"{PREFIX}{what}-", ignore_cleanup_errors=True)
        lock = _files.claim(Path(self.name))
        self._unlock = (lambda: None) if lock is None else weakref.finalize(self, os.close, lock)

    def cleanup(self) -> None:
        _files.erase(Path(self.name))  # what is left for `tempfile` is nothing: it follows links where it must not
        super().cleanup()
        self._unlock()


@cache
def _sweep_once(folder: str) -> None:
    """At the first folder of a process: later there is nothing new to find."""
    with suppress(OSError):
        sweep(Path(folder))


def sweep(folder: Path) -> list[str]:
    """Remove what processes of this user that are gone have left below a folder; the names."""
    found = [entry for entry in os.scandir(folder) if entry.name.startswith(PREFIX)]
    return [entry.name for entry in found if _removed(entry)]


def _removed(entry: os.DirEntry[str]) -> bool:
    """Whether it was left, and could be taken over; somebody else may be sweeping as well."""
    with suppress(OSError):
        about = entry.stat(follow_symlinks=False)
        own = about.st_uid == os.geteuid() and entry.is_dir(follow_symlinks=False)
        if own and time.time() - about.st_mtime >= _FRESH and (lock := _files.claim(Path(entry.path))) is not None:
            try:
                _files.erase(Path(entry.path))
            finally:
                os.close(lock)
            return True
    return False
