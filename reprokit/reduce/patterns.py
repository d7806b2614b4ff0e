"""What of an array is pattern and no content: special values, flat areas, repeats, and where they are.

Places are boxes, few and the largest first: sixteen of them say where frames are padded, and cannot draw what was in a
picture. What does not fit into them is only counted. Pure arithmetic on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Place = tuple[int, tuple[int, ...]]
"""A slice of an array: which one, and the indices of its leading axes."""

MOST_BOXES = 16  # of a special value, or of all flat areas of an entry
MOST_COPIES = 64
FLAT = 4  # equal neighbours that are no coincidence, also among 256 values
_TRIES = 256  # boxes that are grown before the largest are taken
_MIX = np.uint64(0x9E3779B97F4A7C15)  # odd, bits spread: 2**64 over the golden ratio


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Start and stop along each axis."""

    at: tuple[tuple[int, int], ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(start, stop) for start, stop in self.at)

    @property
    def size(self) -> int:
        return prod(stop - start for start, stop in self.at)


def boxes(mask: Array, least: int = 1) -> tuple[list[Box], int]:
    """Boxes of at least this size that hold nothing but the mask's elements; and how many elements are in none."""
    left = mask.copy()
    found: list[Box] = []
    for start in _starts(mask, left):
        if len(found) == _TRIES:
            break
        box = _grown(left, start)
        left[box.slices] = False
        found.append(box)
    best = sorted((box for box in found if box.size >= least), key=lambda box: -box.size)[:MOST_BOXES]
    return best, int(mask.sum()) - sum(box.size for box in best)


def _starts(mask: Array, left: Array) -> Iterator[tuple[int, ...]]:
    """Where runs of the mask begin in logical order, the longest first, so that large boxes are grown whole; then what
    is left. Places that a box has taken meanwhile are passed over."""
    edges = np.diff(np.concatenate(([0], mask.reshape(-1).astype(np.int8), [0])))
    starts, stops = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    for place in starts[np.argsort(starts - stops, kind="stable")]:
        if left[start := _index(place, mask.shape)]:
            yield start
    while left.any():
        yield _index(left.argmax(), mask.shape)


def _index(place: Any, shape: tuple[int, ...]) -> Any:
    return tuple(int(i) for i in np.unravel_index(place, shape))


def _grown(mask: Array, start: tuple[int, ...]) -> Box:
    """From one element on, as far as the mask goes: along the last axis first."""
    at = [(i, i + 1) for i in start]
    for axis in reversed(range(mask.ndim)):
        first, stop = at[axis]
        while stop < mask.shape[axis]:
            slab = [slice(*one) for one in at]
            slab[axis] = slice(stop, stop + 1)
            if not mask[tuple(slab)].all():
                break
            stop += 1
        at[axis] = (first, stop)
    return Box(at=tuple(at))


def flat(array: Array, least: int = FLAT) -> Array:
    """Which elements stand among this many equal ones in a row, in logical order. NaN equals nothing."""
    line = array.reshape(-1)
    same = np.concatenate(([False], line[1:] == line[:-1]))
    run = np.cumsum(~same)  # the number of the run that an element is in
    return (np.bincount(run)[run] >= least).reshape(array.shape) if line.size else np.zeros(array.shape, bool)


def bits(array: Array) -> Array:
    """The elements as uint64, equal where their bits are."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}").astype(np.uint64).reshape(array.shape)


def copies(arrays: Sequence[Array]) -> list[tuple[Place, Place]]:
    """Slices that equal an earlier one: (to, from), to be copied in this order. Flat slices are left out."""
    sizes = [(prod(array.shape[depth:]), i, depth) for i, array in enumerate(arrays) for depth in range(array.ndim + 1)]
    seen: dict[Any, Place] = {}
    covered = [np.zeros(array.shape, bool) for array in arrays]
    found: list[tuple[Place, Place]] = []
    for size, i, depth in sorted(sizes, key=lambda one: (-one[0], one[1], one[2])):
        if not size or size < _least(arrays[i], depth):
            continue
        rows = bits(arrays[i]).reshape(-1, size)
        known = covered[i].reshape(-1, size)[:, 0] | _plain(arrays[i].reshape(-1, size))
        hashes = _hashes(rows)
        for row in np.flatnonzero(~known):
            key = (arrays[i].dtype.str, arrays[i].shape[depth:], int(hashes[row]))
            place = (i, _index(row, arrays[i].shape[:depth]))
            origin = seen.setdefault(key, place)
            if origin != place and np.array_equal(bits(arrays[origin[0]][origin[1]]), bits(arrays[i][place[1]])):
                covered[i][place[1]] = True
                found.append((place, origin))
    return found[:MOST_COPIES][::-1]  # small ones first: a large slice is copied with the repeats inside it


def _least(array: Array, depth: int) -> int:
    """From which size on equal slices are no coincidence: two wide floats, eight of what has few values."""
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= 4
    return (1 if array.ndim == depth == 1 else 2) if wide else 8


def _plain(rows: Array) -> Array:
    """Rows of one value, which are flat areas; of single numbers the special ones."""
    if rows.shape[1] == 1:
        return np.asarray(~np.isfinite(rows[:, 0]) | (rows[:, 0] == 0))
    return np.asarray((rows == rows[:, :1]).all(1) | (rows != rows).all(1))


def _hashes(rows: Array) -> Array:
    """One number a row; equal rows have equal ones."""
    weights = (np.arange(1, rows.shape[1] + 1, dtype=np.uint64) * _MIX) | np.uint64(1)
    mixed = (rows ^ (rows >> np.uint64(29))) * _MIX
    return np.asarray((mixed * weights).sum(1, dtype=np.uint64))
