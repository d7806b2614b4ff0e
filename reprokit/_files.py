"""Folders that are written whole, and read without being believed.

Links are never followed, names never lead outside, and a listing is exact. Hashing and syncing run in threads, side by
side: both wait outside the interpreter, and a file system merges syncs that come together.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from itertools import count
from pathlib import Path
from typing import TypeVar

from reprokit.errors import BadInput

WORKERS = 8  # threads: enough to keep a disk's queue filled
CHUNK = 2**20  # bytes: copying and hashing go faster no more above it

T = TypeVar("T")
R = TypeVar("R")


def is_inside(name: object) -> bool:
    """Whether a name, as written in a manifest, stays below its folder on every system."""
    if not isinstance(name, str) or "\\" in name or "\0" in name:
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def shown(name: object) -> str:
    """A name for a line of text: quoted where it would break the line."""
    text = str(name)
    return text if text.isprintable() and text else ascii(text)


def listing(folder: Path, below: str = "") -> Iterator[tuple[str, int]]:
    """Every file with its size; an empty folder as its name and a slash. Refuses links and what is no file."""
    for entry in sorted(os.scandir(folder / below), key=lambda entry: entry.name):
        name = f"{below}{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            inside = list(listing(folder, f"{name}/"))
            yield from inside or [(f"{name}/", 0)]
        elif entry.is_file(follow_symlinks=False):
            yield name, entry.stat(follow_symlinks=False).st_size
        else:
            what = "a symbolic link" if entry.is_symlink() else "neither a file nor a folder"
            raise BadInput(f"{shown(folder / name)}: {what}, which an incident cannot hold; remove it")


def prune(folder: Path) -> None:
    """Remove empty folders below."""
    for path, _, _ in os.walk(folder, topdown=False):
        if path != str(folder) and not os.listdir(path):
            os.rmdir(path)


def each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(function, items))


def opened(path: Path) -> FileIO:
    """For reading, unbuffered; fails on a link that took the place of the file since it was listed."""
    return FileIO(path, opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NOFOLLOW", 0)))


def sha256(path: Path) -> str:
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copied(source: Path, target: Path) -> str:
    """Copy contents and permissions; the hash of what was read."""
    hasher = hashlib.sha256()
    with opened(source) as file, target.open("wb") as copy:
        while chunk := file.read(CHUNK):
            hasher.update(chunk)
            copy.write(chunk)
        os.fchmod(copy.fileno(), os.fstat(file.fileno()).st_mode & 0o777)
    return hasher.hexdigest()


def sync(path: Path) -> None:
    """A file's contents, or a folder's names, onto the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def seal(folder: Path, names: Iterable[str]) -> list[str]:
    """Sync these files and the folders that hold them; their hashes. A large file is synced while it is hashed."""
    paths = [folder / name for name in names]
    folders = {parent for path in paths for parent in path.parents if parent.is_relative_to(folder)}
    with ThreadPoolExecutor(WORKERS) as pool:
        hashes = [pool.submit(sha256, path) for path in paths]
        synced = [pool.submit(sync, path) for path in (*paths, *folders)]
        for done in synced:
            done.result()
        return [found.result() for found in hashes]


def rename_free(source: Path, folder: Path, name: str) -> Path:
    """Move a folder to this name, or to the first that is free of `name-2`, `name-3`, ..."""
    for number in count(1):
        target = folder / (name if number == 1 else f"{name}-{number}")
        if os.path.lexists(target):  # rename would replace an empty folder
            continue
        try:
            source.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return target
    raise AssertionError("unreachable")
