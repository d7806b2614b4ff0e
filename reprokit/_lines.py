"""A file of records, a line of JSON each, that is good whenever its process is killed.

It is created whole, with its first line, or is not there. A line is written by one process, all of it or nothing; what
a crash of the machine tears is at the end, and has no line end or is no JSON. One process at a time holds it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from reprokit import _files
from reprokit.errors import BadInput

T = TypeVar("T")


def line(record: Mapping[str, Any]) -> bytes:
    """ASCII: no text can break a line, and what is no valid Unicode, as some paths are, comes back as it was."""
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode("ascii") + b"\n"


def parsed(text: bytes) -> dict[str, Any]:
    """Empty where it is no JSON object, or has no end."""
    try:
        data = json.loads(text) if text.endswith(b"\n") else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def append(handle: int, text: bytes, *, sync: bool) -> None:
    """All of it, or nothing of it."""
    size = os.fstat(handle).st_size
    try:
        written = 0
        while written < len(text):
            written += os.write(handle, text[written:])
        if sync:
            os.fsync(handle)
    except OSError:
        with suppress(OSError):  # a torn line is cut off when the file is opened
            os.ftruncate(handle, size)
        raise


def claimed(path: Path, first: bytes, *, whose: str = "reduction") -> int:
    """A handle on it, locked. It is created where there is none. Raises BadInput where another process holds it."""
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            _create(path, first)
            continue
        try:
            _lock(path, handle, whose)
            if _is_at(path, handle):  # whoever had the lock may have removed it
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def read(handle: int) -> list[bytes] | None:
    """All lines, the last perhaps torn; None where it is no plain file."""
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        return None
    with os.fdopen(os.dup(handle), "rb") as file:
        file.seek(0)
        return file.readlines()


def records(
    path: Path, handle: int, header: Mapping[str, Any], parse: Callable[[bytes], T | None], *, whose: str
) -> list[T]:
    """What `parse` makes of each line after the first, which must hold this header. Where it gives None at the end,
    that was torn, and is cut off. Raises BadInput where the file is of another run, or damaged."""
    lines = read(handle)
    if not lines or not isinstance(found := parsed(lines[0]).get("header"), dict):
        raise BadInput(f"{path}: not a journal of a {whose}; give another folder")
    asked = parsed(line(header))  # as it looks in a file: no tuples
    if names := sorted(key for key in found.keys() | asked.keys() if found.get(key) != asked.get(key)):
        other = ", ".join(map(_files.shown, names))
        raise BadInput(
            f"{path}: of another {whose}: not the same {other}; repeat it as it was, or start over with another --out"
        )
    seen = [parse(line) for line in lines[1:]]
    sound = seen.index(None) if None in seen else len(seen)
    if any(one is not None for one in seen[sound:]):
        raise BadInput(f"{path}: line {sound + 2} is damaged; give another folder")
    if sound < len(seen):
        os.ftruncate(handle, sum(map(len, lines[: sound + 1])))
    return [one for one in seen if one is not None]


def _create(path: Path, first: bytes) -> None:
    """Whole or absent, and never over one that another process made in the meantime."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".draft-{path.name}-{secrets.token_hex(4)}")
    try:
        with draft.open("xb") as file:
            file.write(first)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            draft.rename(path)
        _files.sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def _lock(path: Path, handle: int, whose: str) -> None:
    """Ends with the process, however that ends, and with all that was forked off it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(f"{path}: another {whose} is at work on it; wait for it, or give another --out") from None
    except OSError:  # some network file systems have no locks: then nobody keeps two apart
        return


def _is_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False
