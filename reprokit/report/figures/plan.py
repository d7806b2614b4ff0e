"""Which cells of which entries go onto a contact sheet, and how large.

One rule for every entry: an image has cells of h x w, with frames (t) from left to right and all other axes from top
to bottom; what is no image has cells of one strip, all its own axes in a row. Large axes are thinned out, so that a
sheet stays one that a person reads: what is guilty, what is kept, its neighbours, and a few of the rest. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from torch import Tensor

from reprokit.report.figures.marks import Marks, bare

COLUMNS = 16  # frames side by side: more would be too small to see
ROWS = 16  # of one entry
CONTEXT = 5  # rows to compare with, beside those that matter
WIDTH = 920  # pixels for the cells of a row
LARGEST, SMALLEST = 128, 40  # pixels of the side of an image
STRIP = 16  # pixels of the height of a strip
GAP = 10  # between cells: room for outlines


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """One entry."""

    entry: str
    value: Tensor
    axes: tuple[str, ...]
    image: bool
    down: tuple[str, ...]  # axes from top to bottom
    across: str | None  # the axis from left to right
    inner: tuple[str, ...]  # axes inside a cell: a subset of c, h, w; or any, in a strip
    rows: tuple[Mapping[str, int], ...]  # indices of `down`
    columns: tuple[int, ...]  # of `across`; (0,) where there is none
    hidden: tuple[tuple[str, int, int], ...]  # axis, how many of its indices are not shown, how many of those matter
    size: tuple[int, int]  # of a cell on paper, height and width

    @property
    def hidden_rows(self) -> int:
        """How many rows are not shown."""
        return prod(self.value.shape[self.axes.index(axis)] for axis in self.down) - len(self.rows)

    def cells(self, row: Mapping[str, int]) -> list[Mapping[str, int]]:
        """The cells of a row, as indices of all axes but the inner ones."""
        return [row if self.across is None else {**row, self.across: column} for column in self.columns]

    def part(self, cell: Mapping[str, int]) -> tuple[Tensor, tuple[str, ...]]:
        """The values of a cell, and its axes among c, h and w."""
        found = self.value[tuple(cell.get(axis, slice(None)) for axis in self.axes)]
        if self.image:
            return found, tuple(bare(axis) for axis in self.inner)
        return found.reshape(-1), ("w",)


def panel(entry: str, value: Tensor, axes: tuple[str, ...], marks: Marks) -> Panel:
    """How to show an entry that holds at least one value."""
    lengths = dict(zip(axes, value.shape))
    image = is_image(axes)
    own = [axis for axis in axes if (bare(axis) in ("c", "h", "w") if image else "." in axis and bare(axis) != "t")]
    down = [axis for axis in axes if axis not in own]
    across = next((axis for axis in down if bare(axis) == "t"), None)
    if across is None and down and (image or not own):
        across = down[-1]
    if across is not None:
        down.remove(across)
    rows = _rows({axis: lengths[axis] for axis in down}, marks)
    columns = choose(lengths[across], marks.important(across), COLUMNS, COLUMNS) if across is not None else [0]
    shown = {axis: {row[axis] for row in rows} for axis in down}
    if across is not None:
        shown[across] = set(columns)
    return Panel(
        entry=entry,
        value=value,
        axes=axes,
        image=image,
        down=tuple(down),
        across=across,
        inner=tuple(own),
        rows=tuple(rows),
        columns=tuple(columns),
        hidden=tuple(
            (axis, lengths[axis] - len(found), len(set(marks.important(axis)) - found))
            for axis, found in shown.items()
            if lengths[axis] > len(found)
        ),
        size=_size(len(columns), [lengths[axis] for axis in own], image, [bare(axis) for axis in own]),
    )


def is_image(axes: Iterable[str]) -> bool:
    """Whether an entry with these axes is one, or holds some."""
    return {"h", "w"} <= {bare(axis) for axis in axes}


def choose(size: int, first: Sequence[int], limit: int, context: int) -> list[int]:
    """At most `limit` of range(size), in order: `first` in their order, then up to `context` others, the neighbours of
    `first` before any, and of those some that are evenly spaced."""
    if size <= limit:
        return list(range(size))
    chosen = dict.fromkeys(first[:limit])
    room = min(limit, len(chosen) + context)
    for index in _others(list(chosen), size, room):
        if len(chosen) < room:
            chosen.setdefault(index)
    return sorted(chosen)


def _others(first: Sequence[int], size: int, room: int) -> Iterable[int]:
    yield from (near for index in first for near in (index - 1, index + 1) if 0 <= near < size)
    yield from (place * (size - 1) // max(1, room - 1) for place in range(room))
    yield from range(min(size, 2 * room))  # half of them may be chosen already


def _rows(lengths: Mapping[str, int], marks: Marks) -> list[dict[str, int]]:
    """Where the reduction speaks of these axes, the rows that matter and a few to compare with; else as many as fit."""
    first = {axis: marks.important(axis) for axis in lengths}
    found = {axis: choose(size, first[axis], ROWS, CONTEXT) for axis, size in lengths.items()}
    rows = [dict(zip(found, indices)) for indices in product(*found.values())]
    if not any(0 < len(first[axis]) < size for axis, size in lengths.items()):
        return [rows[place] for place in choose(len(rows), [], ROWS, ROWS)]
    strange = [tuple(bool(first[axis]) and index not in first[axis] for axis, index in row.items()) for row in rows]
    ranked = sorted(range(len(rows)), key=lambda place: (any(strange[place]), strange[place]))
    matter = sum(not any(one) for one in strange)
    return [rows[place] for place in sorted(ranked[: min(ROWS, matter + CONTEXT)])]


def _size(columns: int, lengths: Sequence[int], image: bool, names: Sequence[str]) -> tuple[int, int]:
    """Height and width of a cell on paper."""
    room = WIDTH // columns - GAP
    if not image:
        values = prod(lengths)
        return STRIP, max(STRIP, min(room, max(2 * STRIP, 4 * values))) if values > 1 else 2 * STRIP
    height, width = lengths[names.index("h")], lengths[names.index("w")]
    side = max(SMALLEST, min(room, LARGEST))
    tall = round(side * height / width)
    return max(STRIP, min(tall, 2 * side)), side
