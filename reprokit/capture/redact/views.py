"""A text, and where in it a search is worth its time.

An archived tree is megabytes of code with hardly a secret in it, and training waits. So patterns are not run over
everything: most need a word that occurs in few lines, or a run of letters and digits that is longer than code's own
words. Both are found by searches that cost next to nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

Span = tuple[int, int]
RUN = 15  # characters: the shortest secret with a shape of its own
_BEFORE, _AFTER = 300, 2_500  # characters of a line around a word that a pattern sees: some lines are whole files
_IN_RUN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/_-"
_TABLE = bytes(ord("a") if byte in _IN_RUN else ord(" ") for byte in range(256))


class View:
    def __init__(self, text: str) -> None:
        self.text = text
        self._plain = text.encode("latin-1", "replace")  # a byte for each character: what is searched for is ASCII
        self.lowered = self._plain.lower().decode("latin-1")
        self._windows: dict[tuple[str, ...], list[Span]] = {}
        self._places: dict[str, list[int]] = {}

    @cached_property
    def runs(self) -> list[Span]:
        """Maximal runs of letters, digits and what base64 has besides, of at least RUN characters."""
        plain = self._plain.translate(_TABLE)
        found, start = [], plain.find(b"a" * RUN)
        while start >= 0:
            end = plain.find(b" ", start)
            end = end if end >= 0 else len(plain)
            found.append((start, end))
            start = plain.find(b"a" * RUN, end)
        return found

    @cached_property
    def dense(self) -> str:
        """The runs alone."""
        return "\n".join(self.lowered[start:end] for start, end in self.runs)

    def has(self, needles: tuple[str, ...], *, dense: bool = False) -> bool:
        return any(needle in self.dense for needle in needles) if dense else any(map(self._of, needles))

    def windows(self, needles: tuple[str, ...], *, dense: bool = False) -> list[Span]:
        """Lines, or their parts, that have one of these words; in order, none twice. dense: where it is in a run."""
        if dense and not self.has(needles, dense=True):
            return []
        if needles not in self._windows:
            places = sorted(place for needle in needles for place in self._of(needle))
            self._windows[needles] = list(self._merged(places))
        return self._windows[needles]

    def _of(self, needle: str) -> list[int]:
        if needle not in self._places:
            places, position = [], self.lowered.find(needle)
            while position >= 0:
                places.append(position)
                position = self.lowered.find(needle, position + len(needle))
            self._places[needle] = places
        return self._places[needle]

    def _merged(self, places: list[int]) -> Iterator[Span]:
        start = end = -1
        for place in places:
            if place < end - _AFTER // 2 or (place < end and self.text[end : end + 1] in ("\n", "")):
                continue
            first = max(self.text.rfind("\n", 0, place) + 1, place - _BEFORE)
            last = self.text.find("\n", place)
            last = min(last if last >= 0 else len(self.text), place + _AFTER)
            if first < end:
                end = last
                continue
            if start >= 0:
                yield start, end
            start, end = first, last
        if start >= 0:
            yield start, end
