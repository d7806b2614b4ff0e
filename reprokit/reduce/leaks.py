"""Is anything of a batch left in the one that was made from its recipe? Checked on the results, not argued.

Content is found by what cannot be chance: neighbours. Four wide floats in a row that stand in both batches were copied.
Of numbers with few values a longer window is needed until chance is as unlikely: its length follows from how many bits
of surprise one number holds. What a recipe keeps on purpose is not looked at: structure, special values, and runs of
equal ones. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log2
from typing import Any

import numpy as np

from reprokit.layout import Layout
from reprokit.reduce import patterns
from reprokit.reduce.content import Content, take_apart
from reprokit.reduce.patterns import Array

WINDOW = 4  # numbers in a row
_CHANCE = 2.0**-20  # that noise holds some window of the original: one in a million
_WORD = 4  # characters from which on a text inside another is no coincidence
_MIX = np.uint64(0x9E3779B97F4A7C15)


def leaks(original: Any, synthetic: Any, layout: Layout) -> list[str]:
    """A line for each entry of the original of which something is in the synthetic batch; empty where nothing is."""
    content, made = take_apart(original, layout), take_apart(synthetic, layout)
    return [*_numbers(content, made), *_texts(content, made)]


def _numbers(content: Content, made: Content) -> list[str]:
    found: list[str] = []
    for dtype in dict.fromkeys(leaf.form["dtype"] for leaf in content.leaves):
        mine, theirs = (
            [leaf for leaf in one.leaves if leaf.form["dtype"] == dtype and not leaf.structure]
            for one in (content, made)
        )
        if mine and theirs:
            length = _length([leaf.array for leaf in mine], sum(leaf.array.size for leaf in theirs))
            held = _distinct(np.concatenate([_windows(leaf.array, length) for leaf in theirs]))
            for leaf in mine:
                own = _distinct(_windows(leaf.array, length))
                if count := len(np.intersect1d(own, held, assume_unique=True)):
                    found.append(f"{leaf.entry or 'the batch'}: {count} runs of {length} numbers")
    return found


def _distinct(hashes: Array) -> Array:
    """By sorting: `np.unique` fills a hash table, which for millions of hashes takes a hundred times as long."""
    ordered = np.sort(hashes)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def _length(arrays: Sequence[Array], others: int) -> int:
    """Of a window that noise with the same frequencies of values has by chance only with probability `_CHANCE`."""
    if arrays[0].dtype.kind == "f" and arrays[0].dtype.itemsize >= 4:
        return WINDOW
    line = np.concatenate([array[_ordinary(array)] for array in arrays])
    counts = np.unique(line, return_counts=True)[1]
    if len(counts) < 2:
        return WINDOW
    shares = counts / counts.sum()
    surprise = float(-np.log2((shares**2).sum()))  # of two draws being equal, in bits
    return max(WINDOW, ceil((log2(len(line)) + log2(max(others, 1)) - log2(_CHANCE)) / surprise))


def _windows(array: Array, length: int) -> Array:
    """A hash for each window of ordinary numbers, in logical order."""
    line, usual = patterns.bits(array).reshape(-1), _ordinary(array).reshape(-1)
    if len(line) < length:
        return np.empty(0, np.uint64)
    hashes = np.zeros(len(line) - length + 1, np.uint64)
    whole = np.ones(len(hashes), bool)
    for i in range(length):
        hashes = (hashes ^ line[i : i + len(hashes)]) * _MIX
        hashes ^= hashes >> np.uint64(32)
        whole &= usual[i : i + len(hashes)]
    return hashes[whole]


def _ordinary(array: Array) -> Array:
    """Numbers that a recipe has no business to keep."""
    usual = ~patterns.flat(array)
    if array.dtype.kind == "f":
        limits = np.finfo(array.dtype)
        usual &= np.isfinite(array) & (array != 0) & (array != limits.max) & (array != limits.min)
    return usual


def _texts(content: Content, made: Content) -> list[str]:
    mine = [str(text) for text in content.texts if not str(text).startswith("sample-")]
    theirs = [str(text) for text in made.texts]
    held = [text for text in mine if any(text == one or (len(text) >= _WORD and text in one) for one in theirs)]
    return [f"the text {text[:40]!r}" for text in held]
