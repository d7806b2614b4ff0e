"""A file's bytes without its secrets, whatever their encoding.

Text is searched by all rules. Of binary data only what has a shape of its own can be told from chance (`ghp_...`, a
private key), and is overwritten in place. What is compressed can be looked into, but not changed.
"""

from __future__ import annotations

import codecs
import hashlib
from collections import OrderedDict
from collections.abc import Iterator

from reprokit.capture.redact import archives, library, running
from reprokit.capture.redact.library import Unscanned
from reprokit.capture.redact.markers import is_marker, marker
from reprokit.capture.redact.names import is_secret_file
from reprokit.capture.redact.rules import RULES, Rule, Sort, sort_of
from reprokit.capture.redact.views import View

_MARKS = {  # the longer first: one of UTF-16 is the start of one of UTF-32
    codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be",
}  # fmt: skip
_PICTURES = (  # and other media: binary, even where no zero is near the start
    *(b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF8", b"RIFF", b"OggS", b"ID3", b"\x1aE\xdf\xa3", b"wOFF", b"wOF2"),
    *(b"\x00\x00\x00\x18ftyp", b"\x00\x00\x00\x1cftyp", b"\x00\x00\x00\x20ftyp", b"\x00\x00\x00\x14ftyp"),
)
_REMEMBERED = 20_000  # contents that were found clean, so that the next incident of a run need not search them again
_clean: OrderedDict[bytes, None] = OrderedDict()


def content(data: bytes, place: str = "") -> tuple[bytes, list[str]]:
    """A file's bytes, as many as there were. Raises Unscanned where they must not be written at all."""
    key = _key(data, place)
    if key in _clean:
        return data, []
    clean, found = _cleaned(data, place)
    if not found:
        _clean[key] = None
        if len(_clean) > _REMEMBERED:
            _clean.popitem(last=False)
    return clean, found


def is_binary(data: bytes) -> bool:
    """A NUL near the start, as git has it."""
    return b"\0" in data[:8000]


def _key(data: bytes, place: str) -> bytes:
    """All that the result depends on."""
    digest = hashlib.blake2b(data, digest_size=16)
    digest.update(f"\0{sort_of(place)}\0{place.rpartition('/')[2]}\0{running.known()!r}".encode("utf-8", "replace"))
    return digest.digest()


def _cleaned(data: bytes, place: str) -> tuple[bytes, list[str]]:
    library.ready()
    if kind := archives.kind_of(data):
        _look_inside(data, kind, place)
        return data, []
    if encoding := _encoding(data):
        clean, found = running.text(data.decode(encoding), place)
        data, more = _binary(clean.encode(encoding), place)  # it may only look like it
        return data, found + more
    if is_binary(data) or data.startswith(_PICTURES):
        return _binary(data, place)
    clean, found = running.text(data.decode("latin-1"), place)  # a character for each byte, so that the rest returns
    return clean.encode("latin-1"), found


def _look_inside(data: bytes, kind: str, place: str) -> None:
    for name, inside in archives.members(data, kind):
        if is_secret_file(name):
            raise Unscanned(f"a {kind} archive with a file of credentials in it")
        if archives.kind_of(inside):
            raise Unscanned(f"a {kind} archive with another in it, which was not searched for secrets")
        if _cleaned(inside, name or place.rpartition(".")[0])[1]:
            raise Unscanned(f"a {kind} archive with a secret in it")


def _encoding(data: bytes) -> str | None:
    """UTF-16 or UTF-32, by its mark or by where the zeros are; only if decoding loses nothing."""
    named = next((encoding for mark, encoding in _MARKS.items() if data.startswith(mark)), None)
    guess = named or _guess(data)
    try:
        return guess if guess and data.decode(guess).encode(guess) == data else None
    except (UnicodeDecodeError, UnicodeEncodeError):
        return None


def _guess(data: bytes) -> str | None:
    """Of text in Latin letters every other byte is zero, or three of four."""
    start = data[:4000]
    if len(data) < 8 or b"\0" not in start:
        return None
    quarters = [start[index::4].count(0) * 4 / len(start) > 0.8 for index in range(4)]
    forms = {"0111": "utf-32-le", "1110": "utf-32-be", "0101": "utf-16-le", "1010": "utf-16-be"}
    guess = forms.get("".join("1" if zeros else "0" for zeros in quarters))
    return guess if guess and len(data) % int(guess[4:6]) // 8 == 0 else None


_SHAPES = [rule for rule in RULES if rule.where & Sort.DATA]


def _binary(data: bytes, place: str) -> tuple[bytes, list[str]]:
    """Secrets with a shape of their own, as bytes and as UTF-16, overwritten in place."""
    changed, found = bytearray(data), set()
    wide = _WIDE in data.translate(_PRINTED)
    for step, offset in ((1, 0), (2, 0), (2, 1)) if wide else ((1, 0),):
        view = View(changed[offset::step].decode("latin-1"))
        for rule in _SHAPES:
            for start, end in _spans(rule, view):
                if step == 1 or not any(changed[offset + 2 * start + 1 : offset + 2 * end - 1 : 2]):
                    hidden = marker(view.text[start:end]).encode("latin-1")
                    changed[offset + step * start : offset + step * end : step] = hidden
                    found.add(rule.name)
    prefix = f"{place}: " if place else ""
    return bytes(changed), [f"{prefix}{name} in binary data" for name in sorted(found)]


_WIDE = b"a0" * 15  # UTF-16 of so many Latin letters, in either order but for the last
_PRINTED = bytes(ord("a") if 32 <= byte < 127 else ord("0") if not byte else ord(" ") for byte in range(256))


def _spans(rule: Rule, view: View) -> Iterator[tuple[int, int]]:
    for spans in rule.find(view):
        for start, end in spans:
            secret = view.text[start:end]
            if not is_marker(secret) and secret.isascii() and secret.isprintable():
                yield start, end
