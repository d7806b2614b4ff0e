"""Where objects lie: a folder of this machine, or whatever else fsspec reaches.

Both are the same few verbs, and in both an object is there whole or not at all. A folder needs a rename for that. An
object store has no rename, but shows nothing of a write until it is done; it is asked to write only where nothing is,
and some servers refuse that with 409, 412 or 501, and some ignore it. None of that matters: an object's name is the
hash of its content, so one that is there is the one that was meant, and one written twice is the same. What a server
stores over it is found out by whoever reads it.
"""

from __future__ import annotations

import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from reprokit import _files
from reprokit.errors import BadInput, Infrastructure, ReprokitError

_PART = ".part-"  # hidden, beside the object that it becomes
_LINE = 200  # characters of what a library says that are passed on


def shown(url: str) -> str:
    """A URL without credentials, which may be in it."""
    return re.sub(r"//[^/@]*@", "//***@", url)


class Place(ABC):
    """Names are relative, with slashes. Raises FileNotFoundError for what is not there, Infrastructure for the rest."""

    def __init__(self, url: str) -> None:
        self.url = shown(url)

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes, or None where there is nothing."""

    @abstractmethod
    def write(self, path: Path, name: str) -> str:
        """A file's content, under this name; the hash of what was read."""

    @abstractmethod
    def read(self, name: str, path: Path) -> str:
        """Into a file that does not exist yet; the hash of what arrived."""

    @contextmanager
    def told(self) -> Iterator[None]:
        """What a library says, in one line."""
        try:
            yield
        except (ReprokitError, FileNotFoundError):
            raise
        except Exception as error:
            said = " ".join(str(error).split())[:_LINE] or type(error).__name__
            next_ = "check --store, its disk and your access"
            raise Infrastructure(f"{self.url}: the store cannot be used ({said}); {next_}") from error


class Folder(Place):
    """On this machine, or on a disk that several machines share."""

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url)
        self._root = root

    def size(self, name: str) -> int | None:
        with self.told():
            path = self._root / name
            return path.stat().st_size if path.exists() else None

    def write(self, path: Path, name: str) -> str:
        with self.told():
            target = self._root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{_PART}{secrets.token_hex(8)}")
            try:
                sha256 = _files.copied(path, part)
                _files.sync(part)
                part.rename(target)
                _files.sync(target.parent)
            finally:
                part.unlink(missing_ok=True)
            return sha256

    def read(self, name: str, path: Path) -> str:
        with self.told():
            return _files.copied(self._root / name, path)


class Bucket(Place):
    """An object store, through fsspec: whole objects alone are read and written, never ranges of them."""

    def __init__(self, url: str, system: Any, root: str) -> None:
        super().__init__(url)
        self._system, self._root = system, root.rstrip("/")

    def size(self, name: str) -> int | None:
        with self.told():
            try:
                return int(self._system.info(self._path(name))["size"])
            except FileNotFoundError:
                return None

    def write(self, path: Path, name: str) -> str:
        with self.told():
            sha256 = _files.sha256(path)
            try:
                self._system.put_file(str(path), self._path(name), mode="create")
            except Exception:
                if self.size(name) != path.stat().st_size:  # it was not that somebody else was first
                    self._system.put_file(str(path), self._path(name))
            return sha256

    def read(self, name: str, path: Path) -> str:
        with self.told():
            self._system.get_file(self._path(name), str(path))
            return _files.sha256(path)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def open_place(url: str) -> Place:
    """The place of a URL: a path or file://, s3:// (extra s3), memory:// (this process alone), or what fsspec knows."""
    try:
        system, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        need = "pip install 'reprokit[s3]'" if url.startswith("s3:") else f"install what it needs ({error})"
        raise BadInput(f"{shown(url)}: this Python cannot reach it; {need}") from error
    except ValueError as error:
        raise BadInput(f"{shown(url)}: no store; give a folder, file:// or s3://bucket/folder") from error
    return Folder(url, Path(os.fsdecode(root))) if isinstance(system, LocalFileSystem) else Bucket(url, system, root)
