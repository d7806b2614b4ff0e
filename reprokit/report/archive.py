"""One file that holds a folder, proves it whole, and cannot hurt whoever opens it.

A bundle travels by mail and chat, so a reader trusts nothing. The first member is `MANIFEST.sha256`: how many bytes
there are, and a hash of each other file. After it come exactly those files, sorted, plain ones only: a link, a device,
a duplicate, a path that leaves the folder, a byte more or less than announced is refused where it is met, before
anything is written under a name that it chose. Memory stays small whatever the bytes claim to be: a kilobyte is
decompressed at a time, and what was not announced is not decompressed. Equal input gives equal bytes: no times, owners
or order of a disk.

A hash proves that nothing changed by accident. It says nothing about who wrote the bundle.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import zstandard

from reprokit.errors import BadInput, Infrastructure
from reprokit.report import escape
from reprokit.report.checksums import (
    MANIFEST,
    SCHEMA,
    Index,
    Newer,
    format_index,
    inside,
    parse_index,
)

EXECUTABLE = frozenset({"run.sh", "reproduce.py"})
LEVEL = 3  # weights and pixels hardly compress: higher levels cost minutes a gigabyte and save a few percent
CHUNK = 1 << 20
FEED = 1 << 10  # compressed bytes at a time: they become 32 MiB at most, a run-length block being 4 bytes for 128 KiB
WINDOW = 1 << 27  # bytes that a frame may ask a reader to hold: zstd's own limit on its command line
SLACK = 1 << 20  # tar headers and padding between two files
LONGEST_MANIFEST = 1 << 26  # half a million files

Content = Path | bytes
Sink = Callable[[str, bytes], None]
"""Told of each chunk of each file, in order; an empty chunk starts a file."""


def pack(files: Mapping[str, Content], *, top: str, incident: str, out: Path) -> None:
    """Write the files as one archive, readable or absent: beside, read back, synced, renamed."""
    index = Index(
        schema=SCHEMA,
        incident=incident,
        bytes=sum(_size(content) for content in files.values()),
        files={path: _hash(content) for path, content in sorted(files.items())},
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
    beside = Path(name)
    try:
        with os.fdopen(handle, "wb") as raw:
            with zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).stream_writer(raw, closefd=False) as stream:
                _write_tar(stream, {MANIFEST: format_index(index)} | dict(sorted(files.items())), top)
            raw.flush()
            os.fsync(raw.fileno())
        read(beside)
        beside.chmod(0o666 & ~_umask())
        beside.replace(out)
        _sync(out.parent)
    finally:
        beside.unlink(missing_ok=True)


def read(file: Path, sink: Sink | None = None, *, room: int | None = None) -> Index:
    """Check every byte of an archive, handing it to `sink` as it goes by. A sink must keep nothing if this raises."""
    with _opened_bundle(file) as stream:
        return _read(stream, sink or (lambda path, chunk: None), room)


def top(file: Path) -> str:
    """The name of the folder that an archive unpacks to. Of all else in it nothing is said."""
    with _opened_bundle(file) as stream, _tar(stream) as tar:
        return next(_members(tar, stream), ("", "", iter(())))[0]


@contextmanager
def _opened_bundle(file: Path) -> Iterator[_Stream]:
    """Whatever is wrong with it is one line."""
    if not file.is_file():
        raise BadInput(f"{file}: no bundle there; give a .tar.zst file that `reprokit bundle` wrote")
    try:
        with file.open("rb") as raw:
            yield _Stream(raw)
    except Newer as error:
        raise BadInput(f"{file}: {error}") from error
    except EOFError as error:
        raise BadInput(f"{file}: truncated; fetch it again") from error
    except (zstandard.ZstdError, tarfile.TarError, UnicodeError, OverflowError) as error:
        raise BadInput(f"{file}: no bundle, or a damaged one; fetch it again, or `reprokit bundle` anew") from error
    except ValueError as error:
        raise BadInput(f"{file}: refused, {escape.line(error)}; fetch it again from whoever made it") from error


def _tar(stream: _Stream) -> tarfile.TarFile:
    return tarfile.open(fileobj=stream, mode="r|", encoding="utf-8")  # type: ignore[call-overload,no-any-return]


def extract(file: Path, folder: Path, accept: Callable[[Path, Index], None] = lambda unpacked, index: None) -> Index:
    """Unpack into a folder that does not exist yet: whole and checked, by `accept` too, or absent."""
    if folder.exists():
        raise BadInput(f"{folder}: already there; name a folder that does not exist")
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        with _Writer(beside) as writer:
            index = read(file, writer, room=shutil.disk_usage(beside).free)
        accept(beside, index)
        beside.chmod(0o755)
        beside.rename(folder)
        _sync(folder.parent)
    except OSError as error:
        raise Infrastructure(f"{folder}: cannot unpack there ({error.strerror}); choose another folder") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return index


def _write_tar(stream: BinaryIO, files: Mapping[str, Content], top: str) -> None:
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{top}/{path}")  # its time and owner are 0 from the start
            member.size = _size(content)
            member.mode = 0o755 if path in EXECUTABLE else 0o644
            with _opened(content) as source:
                tar.addfile(member, source)


def _opened(content: Content) -> BinaryIO:
    return content.open("rb") if isinstance(content, Path) else BytesIO(content)


def _size(content: Content) -> int:
    return content.stat().st_size if isinstance(content, Path) else len(content)


def _hash(content: Content) -> str:
    with _opened(content) as source:
        return hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(folder: Path) -> None:
    """A rename is on the disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(stream: _Stream, sink: Sink, room: int | None) -> Index:
    with _tar(stream) as tar:
        members = _members(tar, stream)
        top, first, content = next(members, ("", "", iter(())))
        if first != MANIFEST:
            raise ValueError(f"its first file is not {MANIFEST}")
        held: list[bytes] = []
        _tell(lambda path, chunk: held.append(chunk), MANIFEST, content, LONGEST_MANIFEST)
        index = parse_index(b"".join(held))
        if room is not None and index.bytes > room:
            raise ValueError(f"it unpacks to {index.bytes} bytes and there is room for {room}")
        _tell(sink, MANIFEST, [b"".join(held)])
        missing, left = dict(index.files), index.bytes
        for folder, path, content in members:
            if folder != top or path not in missing:
                raise ValueError(f"{path!r} is not announced in {MANIFEST}, or comes twice")
            size, digest = _tell(sink, path, content, left)
            left -= size
            if digest != missing.pop(path):
                raise ValueError(f"{path!r} does not match its hash")
        stream.finish()
    if missing or left:
        raise ValueError(f"{next(iter(missing), 'something')!r} is missing")
    return index


def _members(tar: tarfile.TarFile, stream: _Stream) -> Iterator[tuple[str, str, Iterator[bytes]]]:
    """Top folder, path below it and content of each member: plain files with plain paths, or ValueError."""
    while True:
        stream.allow(SLACK)
        if (member := tar.next()) is None:
            return
        if member.type != tarfile.REGTYPE or member.issparse() or member.size < 0:
            raise ValueError(f"{member.name!r} is no plain file")
        top, _, path = inside(member.name).partition("/")
        yield top, path, _content(tar, member, stream)
        tar.members = []  # type: ignore[attr-defined]  # tarfile keeps every header it has seen


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo, stream: _Stream) -> Iterator[bytes]:
    reader = tar.extractfile(member)
    assert reader is not None  # a plain file has one
    left = member.size
    while left:
        stream.allow(CHUNK + SLACK)
        chunk = reader.read(min(CHUNK, left))
        if not chunk:
            raise EOFError
        left -= len(chunk)
        yield chunk


def _tell(sink: Sink, path: str, content: Iterable[bytes], limit: int = LONGEST_MANIFEST) -> tuple[int, str]:
    """Hand a file to the sink: its size and hash."""
    size, digest = 0, hashlib.sha256()
    sink(path, b"")
    for chunk in content:
        size += len(chunk)
        if size > limit:
            raise ValueError(f"{path!r} is larger than {MANIFEST} announces")
        digest.update(chunk)
        sink(path, chunk)
    return size, digest.hexdigest()


class _Stream:
    """The one zstd frame in a file, decompressed on demand and never beyond what was allowed."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._frame = zstandard.ZstdDecompressor(max_window_size=WINDOW).decompressobj()
        self._ready = bytearray()
        self._allowed = SLACK

    def allow(self, size: int) -> None:
        """From here on, this many bytes more."""
        self._allowed = size

    def read(self, size: int) -> bytes:
        while len(self._ready) < size and not self._frame.eof:
            fed = self._raw.read(FEED)
            if not fed:
                raise EOFError
            self._ready += self._frame.decompress(fed)
        self._allowed -= min(size, len(self._ready))
        if self._allowed < 0:
            raise ValueError("a header in it is too large")
        taken = bytes(self._ready[:size])
        del self._ready[:size]
        return taken

    def finish(self) -> None:
        """Nothing may follow the tar but its padding, and nothing the frame."""
        self.allow(SLACK)
        if any(self.read(SLACK // 2)) or self.read(1) or self._frame.unused_data or self._raw.read(1):
            raise ValueError("something follows its end")


class _Writer:
    """A sink that writes below a folder that is its own. No path reaches it that `inside` has not passed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: BinaryIO | None = None

    def __call__(self, path: str, chunk: bytes) -> None:
        if chunk:
            assert self._open is not None  # an empty chunk came first
            self._open.write(chunk)
            return
        self._close()
        target = self._folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._open = target.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            raise ValueError(f"{path!r} is also a folder, or another name for a file that came before") from error
        target.chmod(0o755 if path in EXECUTABLE else 0o644)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._open.flush()
            os.fsync(self._open.fileno())
            self._open.close()
            self._open = None
