"""Any text without its secrets.

Findings are places in the text. A marker is as long as what it replaces, so places stay what they are; rules run until
they find nothing outside of markers, and what is covered only grows, so this ends, and cleaning what is clean changes
nothing. In Python only strings and comments are touched: a name is no secret, and without it a program is none.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from reprokit.capture.redact import library
from reprokit.capture.redact.library import Unscanned
from reprokit.capture.redact.markers import MARKED, STARTS, is_marker, marker
from reprokit.capture.redact.rules import RULES, Rule, Sort, sort_of
from reprokit.capture.redact.views import Span, View

Found = tuple[str, Sequence[Span]]  # what it is, and the parts of lines that hold it
_SHORTEST_KNOWN = 12  # characters of a value that is searched for everywhere: a shorter one may be a word of the code
_SHORTEST_WHOLE = 6  # of one that is all of a value: no option of training has letters and digits by such a chance
_known: ContextVar[tuple[str, ...]] = ContextVar("known", default=())
_whole: ContextVar[frozenset[str]] = ContextVar("whole", default=frozenset())


@contextmanager
def knowing(secrets: Iterable[str]) -> Iterator[None]:
    """Within this context these values are secrets wherever they stand, and in whatever encoding. One that may be a
    word of the code is one where it is all of a value."""
    forms, whole = set(_known.get()), set(_whole.get())
    for secret in secrets:
        mixed = bool(re.search(r"\d", secret) and re.search(r"[A-Za-z]", secret))
        if len(secret) >= (_SHORTEST_WHOLE if mixed else _SHORTEST_KNOWN):
            whole.add(secret)
        if len(secret) >= _SHORTEST_KNOWN and mixed:
            data = secret.encode("utf-8", "replace")
            forms |= {secret, quote(secret, safe=""), base64.b64encode(data).decode(), repr(secret)[1:-1]}
    token, other = _known.set(tuple(sorted(forms, key=len, reverse=True))), _whole.set(frozenset(whole))
    try:
        yield
    finally:
        _known.reset(token)
        _whole.reset(other)


def known() -> tuple[str, ...]:
    return _known.get()


def is_known(value: object) -> bool:
    """Whether this value, all of it, is one of them."""
    return isinstance(value, str) and value in _whole.get()


def text(value: str, place: str = "") -> tuple[str, list[str]]:
    """Any text: source, a diff, a log. Findings read `place:line: sort`, or `line: sort` without a place.

    Raises Unscanned.
    """
    prefix = f"{place}:" if place else ""
    clean, found = _cleaned(value, place, sort_of(place), with_library=True)
    return clean, [f"{prefix}{line}: {name}" for line, name in found]


def own(value: str, sort: Sort = Sort.PROSE) -> tuple[str, list[tuple[int, str]]]:
    """By our own rules alone, which need no library: for what is structured anyhow, and for binary data."""
    return _cleaned(value, "", sort, with_library=False)


def _cleaned(value: str, place: str, sort: Sort, *, with_library: bool) -> tuple[str, list[tuple[int, str]]]:
    if with_library:
        library.ready()
    try:
        return _settled(value, place, sort, with_library)
    except Exception as error:
        raise Unscanned(f"the search for secrets broke ({type(error).__name__}: {error})".splitlines()[0]) from error


def _settled(value: str, place: str, sort: Sort, with_library: bool) -> tuple[str, list[tuple[int, str]]]:
    cover, found, clean = _Cover(value), set(), value
    code = None
    while True:
        grown = False
        for name, spans in _look(clean, place, sort, with_library):
            if sort is Sort.PYTHON and code is None:
                code = _names_of(value)
            spans = [part for span in spans for part in _lines(clean, span) if not (code and code.hold(part))]
            if new := [span for span in spans if cover.lacks(span)]:
                found.add((value.count("\n", 0, new[0][0]) + 1, name))
                cover.add(new)
                grown = True
        if not grown:
            return clean, sorted(found)
        clean = cover.text()


def _look(value: str, place: str, sort: Sort, with_library: bool) -> Iterator[Found]:
    view = View(value)
    for secret in known():
        yield from (("known secret", [(start, start + len(secret))]) for start in _occurrences(value, secret))
    for rule in _rules(sort):
        yield from ((rule.name, spans) for spans in rule.find(view))
    if with_library:
        yield from ((name, [span]) for name, span in library.find(view, sort, place))
    if sort is not Sort.DATA:
        yield from _encoded(view)


@lru_cache(maxsize=8)
def _rules(sort: Sort) -> tuple[Rule, ...]:
    return tuple(rule for rule in RULES if sort & rule.where)


def _occurrences(value: str, secret: str) -> Iterator[int]:
    start = value.find(secret)
    while start >= 0:
        yield start
        start = value.find(secret, start + len(secret))


def _lines(value: str, span: Span) -> Iterator[Span]:
    """The parts of a span that have no line break in them, and no marker throughout."""
    start, end = span
    for part in re.finditer(r"[^\r\n]+", value[start:end]):
        if not is_marker(part[0]):
            yield start + part.start(), start + part.end()


_TEXT = re.compile(r"(?:[A-Za-f]...){5,}.{0,3}")  # base64 of ASCII: the first bit of every byte is zero
_PERCENT = re.compile(r"[\w.~+-]*(?:%[0-9A-Fa-f]{2}[\w.~+-]*){2,}")


def _encoded(view: View) -> Iterator[Found]:
    """Secrets inside of base64, and of addresses inside of addresses."""
    for start, end in view.runs:
        decoded = _decoded(view.text[start:end]) if _TEXT.fullmatch(view.text, start, end) else ""
        if decoded and own(decoded, Sort.DATA)[1]:
            end += len(view.text[end : end + 2]) - len(view.text[end : end + 2].lstrip("="))
            yield "encoded secret", [(start, end)]
    for start, end in view.windows(("%3a%2f%2f", "%40", "%3d")):
        for match in _PERCENT.finditer(view.text, start, end):
            if own(unquote(match[0]))[1]:
                yield "encoded secret", [match.span()]


def _decoded(word: str) -> str:
    """What base64 encodes, where that is text."""
    try:
        data = base64.b64decode(word.replace("-", "+").replace("_", "/") + "=" * (-len(word) % 4))
    except (binascii.Error, ValueError):
        return ""
    return data.decode() if data.isascii() else ""


class _Cover:
    """What of a text is hidden: spans that do not overlap, in order."""

    def __init__(self, original: str) -> None:
        self.original = original
        self.spans: list[Span] = []
        marked = any(start in original for start in STARTS)  # by an earlier cleaning
        self._markers = [match.span() for match in MARKED.finditer(original)] if marked else []

    def lacks(self, span: Span) -> bool:
        """Whether any of it shows."""
        position = span[0]
        for start, end in sorted([*self.spans, *self._markers]):
            if start <= position < end:
                position = end
        return position < span[1]

    def add(self, spans: Iterable[Span]) -> None:
        merged: list[Span] = []
        for start, end in sorted([*self.spans, *spans]):
            if merged and start < merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        self.spans = merged

    def text(self) -> str:
        parts, position = [], 0
        for start, end in self.spans:
            parts += [self.original[position:start], marker(self.original[start:end])]
            position = end
        return "".join([*parts, self.original[position:]])


@dataclass(frozen=True, slots=True)
class _Names:
    """Of a program: where its strings and comments are. Empty where it cannot be read: then all of it is text."""

    quoted: list[Span]

    def hold(self, span: Span) -> bool:
        """Whether this is code, which stays."""
        return bool(self.quoted) and not any(start < span[1] and span[0] < end for start, end in self.quoted)


def _names_of(program: str) -> _Names:
    offsets = [0]
    for line in io.StringIO(program):  # as tokenize reads it
        offsets.append(offsets[-1] + len(line))
    quoted = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            if token.type not in (tokenize.NAME, tokenize.OP, tokenize.NUMBER) and token.string.strip():
                (first, left), (last, right) = token.start, token.end
                quoted.append((offsets[first - 1] + left, offsets[last - 1] + right))
    except (tokenize.TokenError, SyntaxError, IndexError, ValueError):
        return _Names([])
    return _Names(quoted)
