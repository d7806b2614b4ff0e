"""Folders that are written whole, and read without being believed.

Links are never followed, names never lead outside, and a listing is exact. Hashing and syncing run in threads, side by
side: both wait outside the interpreter, and a file system merges syncs that come together.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import FileIO
from itertools import count
from pathlib import Path
from typing import TypeVar

from reprokit.errors import BadInput

WORKERS = 8  # threads: enough to keep a disk's queue filled
CHUNK = 2**20  # bytes: copying and hashing go faster no more above it
_FRESH = 60.0  # seconds in which a folder may be there and not yet claimed
_STALE = 24 * 3600.0  # seconds past which nobody still writes, whatever a file system says of claims

_ROUNDS = 1_000_000  # as deep as a tree can be that somebody left; and an end where they are still at it

T = TypeVar("T")
R = TypeVar("R")


def user_cache() -> Path:
    """Where what can be made or fetched again is kept for this user; it need not exist. Safe to delete."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "reprokit"


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


def write_whole(path: Path, data: bytes) -> None:
    """Beside, synced and renamed: a file that is whole, or as it was."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def write_out(path: Path, data: bytes) -> None:
    """Where somebody said: whole, or as it was, and a link stays a link. What is no file (a device, a pipe, a stream of
    this process) is written into."""
    if not _is_stream(path):
        write_whole(Path(os.path.realpath(path)), data)
        return
    stream = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)  # a pipe that nobody reads is no reason to wait
    os.set_blocking(stream, True)
    with os.fdopen(stream, "wb") as file:
        file.write(data)


def _is_stream(path: Path) -> bool:
    """Whether another file in its place would not be what was meant. Of a process's own streams some are files."""
    if not path.exists():
        return False
    while not (own := _STREAMS.fullmatch(os.path.realpath(path.parent))) and path.is_symlink():
        path = path.parent / os.readlink(path)
    return own is not None or not path.is_file()


_STREAMS = re.compile("/dev|/proc/.*/fd")


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


def claim(folder: Path) -> int | None:
    """A lock on a folder that ends with this process, however that ends; None where the file system has none."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def sweep(folder: Path, prefix: str) -> list[str]:
    """Remove what processes that are gone have left below `folder` under names with this prefix; the names."""
    removed = []
    for entry in [entry for entry in os.scandir(folder) if entry.name.startswith(prefix)]:
        with suppress(OSError):  # somebody else sweeps as well
            if _is_left(entry):
                shutil.rmtree(entry.path) if entry.is_dir(follow_symlinks=False) else os.unlink(entry.path)
                removed.append(entry.name)
    return removed


def _is_left(entry: os.DirEntry[str]) -> bool:
    age = time.time() - entry.stat(follow_symlinks=False).st_mtime
    if age < _FRESH or age > _STALE or not entry.is_dir(follow_symlinks=False):
        return age >= _FRESH
    if (handle := claim(Path(entry.path))) is None:
        return False
    os.close(handle)
    return True


def erase(folder: Path) -> None:
    """Remove a folder and all that somebody's code may have left in it. Does not raise: what cannot go, stays.

    No link is followed, not even one that takes a folder's place meanwhile. Folders that forbid it are opened first.
    Depth costs no stack and no descriptors: what lies in a folder is moved up before the folder goes.
    """
    with suppress(OSError):
        top = os.open(folder, _FOLDER)
        try:
            numbers = count()
            for _ in range(_ROUNDS):
                if not any([_emptied(top, name, numbers) for name in os.listdir(top)]):
                    break
        finally:
            os.close(top)
        os.rmdir(folder)


_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _emptied(top: int, name: str, numbers: Iterator[int]) -> bool:
    """Whether this entry is gone, and what was below it has come up."""
    with suppress(OSError):
        if _unlinked(name, top):
            return True
        _open_up(name, top)
        inside = os.open(name, _FOLDER, dir_fd=top)
        try:
            for one in os.listdir(inside):
                if not _unlinked(one, inside):
                    _open_up(one, inside)  # a folder that changes its place is written to: it has a way up
                    os.rename(one, f".{next(numbers)}", src_dir_fd=inside, dst_dir_fd=top)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=top)
        return True
    return False


def _unlinked(name: str, folder: int) -> bool:
    """Whether it was no folder, and is gone."""
    try:
        os.unlink(name, dir_fd=folder)
    except (IsADirectoryError, PermissionError):
        return False
    return True


def _open_up(name: str, folder: int) -> None:
    """By what is there, and not by its name, which may be another's by now."""
    path = os.open(name, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
    try:
        with suppress(OSError):
            os.chmod(f"/proc/self/fd/{path}", 0o700)
    finally:
        os.close(path)
