"""What is inside of compressed files, so far as that can be looked into.

A secret in there cannot be replaced in place, so such a file is left out if it holds one; and if it cannot be looked
into, being encrypted, of a kind that we cannot read, an archive in an archive, or larger inside than anybody's code.
"""

from __future__ import annotations

import bz2
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from reprokit.capture.redact.library import Unscanned

MOST = 64 << 20  # bytes that are unpacked of one file, which is itself at most a few
_KINDS = {
    b"PK\x03\x04": "zip", b"PK\x05\x06": "zip", b"\x1f\x8b\x08": "gzip", b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd", b"7z\xbc\xaf\x27\x1c": "7z", b"Rar!\x1a\x07": "rar", b"\x04\x22\x4d\x18": "lz4",
    b"\x1f\x9d": "compress", b"\x1f\xa0": "compress",
}  # fmt: skip


def kind_of(data: bytes) -> str | None:
    """By its first bytes; None for what is no archive."""
    if data[257:262] == b"ustar":
        return "tar"
    if data.startswith(b"BZh") and data[4:10] in (b"1AY&SY", b"\x17rE8P\x90"):
        return "bzip2"
    return next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)


def members(data: bytes, kind: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents, of a single stream under no name. Raises Unscanned."""
    try:
        if kind == "zip":
            yield from _zip(data)
        elif kind == "tar":
            yield from _tar(data)
        elif kind in ("gzip", "bzip2", "xz", "zstd"):
            plain = _stream(data, kind)
            yield from _tar(plain) if kind_of(plain) == "tar" else [("", plain)]
        else:
            raise Unscanned(f"a {kind} archive, whose content cannot be searched for secrets")
    except (OSError, EOFError, RuntimeError, ValueError, NotImplementedError, lzma.LZMAError, zlib.error,
            zipfile.BadZipFile, tarfile.TarError) as error:  # fmt: skip
        raise Unscanned(f"a {kind} archive that cannot be read, so its content was not searched for secrets") from error


def _zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    room = MOST
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            with archive.open(entry) as file:
                content = _bounded(file.read(room + 1), room)
            room -= len(content)
            yield entry.filename, content


def _tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
        for entry in archive:
            file = archive.extractfile(entry) if entry.isfile() else None
            if file is not None:
                yield entry.name, file.read()


def _stream(data: bytes, kind: str) -> bytes:
    if kind == "zstd":
        import zstandard

        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True) as file:
            return _bounded(file.read(MOST + 1), MOST)
    stream: Any = _STREAMS[kind]()
    plain = _bounded(stream.decompress(data, MOST + 1), MOST)
    if not stream.eof or stream.unused_data:
        raise EOFError("cut off, or several streams")
    return plain


_STREAMS: dict[str, Callable[[], object]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}


def _bounded(content: bytes, room: int) -> bytes:
    if len(content) > room:
        raise Unscanned(f"a compressed file that unpacks to over {MOST >> 20} MB, so it was not searched for secrets")
    return content
