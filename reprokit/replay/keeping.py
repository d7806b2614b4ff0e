"""Where the attempts of a run are kept, to go on with it: a folder that the user names, or one in the cache."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import time
from typing import Protocol, TypeVar

from reprokit import _files, _lines
from reprokit.errors import BadInput

_DAYS = 30  # that a run which nobody gave a place is kept: somebody who goes on does so within a month

K = TypeVar("K", covariant=True)


class Opening(Protocol[K]):
    """Opens what keeps attempts. passing: of no use once the run is over."""

    def __call__(self, folder: Path, *, resume: bool, passing: bool) -> K: ...


def kept(
    opening: Opening[K],
    out: Path | None,
    resume: Path | None,
    *,
    runs: str,
    incident: str,
    keep: bool,
    say: Callable[[str], object],
) -> K | None:
    """Opened where the user says; else, to `keep` it while it goes on, in `runs` of the user's cache; else None."""
    if out and resume and out.resolve() != resume.resolve():
        raise BadInput(f"--resume {resume}: goes on in its own folder; leave out --out")
    cache = _files.user_cache() / runs
    if resume:
        return opening(resume, resume=True, passing=resume.resolve().parent == cache.resolve())
    if out:
        return opening(out, resume=False, passing=False)
    if keep:
        try:
            return opening(_place(cache, incident), resume=False, passing=True)
        except BadInput as error:
            say(f"{error}; without one, this cannot be resumed")
    return None


def claimed(path: Path, first: bytes, *, resume: bool, whose: str) -> int:
    """A handle on a journal, locked: a new one, or to go on with one. Raises BadInput where there is one, there is
    none, it is in use, or cannot be written."""
    try:
        if path.exists() != resume:
            raise BadInput(_refusal(path.parent, resume, whose))
        return _lines.claimed(path, first, whose=whose)
    except OSError as error:
        raise BadInput(f"{path}: attempts cannot be kept there: {error.strerror}; give another --out") from error


def _place(runs: Path, incident: str) -> Path:
    """A folder for a run that was given none; those that nobody came back to go."""
    with suppress(OSError):
        for old in runs.iterdir():
            if time() - old.stat().st_mtime > _DAYS * 24 * 3600:
                shutil.rmtree(old, ignore_errors=True)
    return runs / f"{incident[:12]}-{secrets.token_hex(4)}"


def _refusal(folder: Path, resume: bool, whose: str) -> str:
    if resume:
        return f"--resume {folder}: no attempts of an earlier {whose} there; give the folder that it named, or --out"
    return f"--out {folder}: has the attempts of an earlier {whose}; --resume it, or give another folder"
