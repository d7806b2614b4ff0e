"""One entry drawn onto a sheet: its cells, what is marked in them, and what a person should know of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from reprokit._canvas import BLACK, GREY, PALE, Colour
from reprokit.report import reductions
from reprokit.report.figures import parts, thumbs
from reprokit.report.figures.marks import Axis, Mark, Marks, bare
from reprokit.report.figures.paper import BAD, GUILTY, HEALED, KEPT, WHITE, Paper
from reprokit.report.figures.parts import Spans
from reprokit.report.figures.plan import GAP, STRIP, Panel
from reprokit.report.figures.thumbs import Scale, Thumb

LEFT, RIGHT = 176, 250  # pixels for the names of the rows, and for what is said of them
JUMP = 12  # more between cells that are no neighbours
LINE = 16  # height of a line of text
DIM = 0.22  # what is left of the contrast of what was dropped: enough to see what it was
INSIDE = 12  # pixels that a cell must have for an outline inside it
BAR = 6  # height of the bar under a cell with NaN or Inf

WORDS = {"s": "step", "b": "sample", "v": "view", "t": "frame"}
COLOURS: Mapping[Mark, tuple[Colour, int]] = {
    Mark.GUILTY: (GUILTY, 4), Mark.BLAMED: (GUILTY, 4), Mark.KEPT: (KEPT, 2), Mark.HEALED: (HEALED, 2)
}  # fmt: skip
DASHED = (Mark.BLAMED, Mark.HEALED)  # what the failure does not need
Labels = Mapping[str, Sequence[int]]
"""Axis -> the original indices, where the batch is a part of another one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """An entry, read and ready to be put on paper."""

    panel: Panel
    thumbs: tuple[tuple[Thumb, ...], ...]  # by row and column
    marks: tuple[tuple[Mark, ...], ...]
    parts: tuple[tuple[Sequence[tuple[bool, Spans]], ...], ...]  # of each cell: whether guilty, and where
    scale: Scale

    @property
    def width(self) -> int:
        xs = _places(self.panel.columns, self.panel.size[1] + GAP)
        return xs[-1] + self.panel.size[1]

    @property
    def odd(self) -> bool:
        """Whether something is said beside a row."""
        return any(_oddity(thumb, self.panel.image) for row in self.thumbs for thumb in row)

    @property
    def boxes(self) -> bool:
        """Whether a part of a cell is marked."""
        return any(found for row in self.parts for found in row)

    def has(self, mark: Mark) -> bool:
        return any(mark in row for row in self.marks)


def read(panel: Panel, marks: Marks) -> Drawn:
    """Look at every cell that is shown."""
    found = tuple(
        tuple(thumbs.thumb(*panel.part(cell), size=panel.size) for cell in panel.cells(row)) for row in panel.rows
    )
    of_cells = tuple(tuple(marks.cell(panel.entry, cell) for cell in panel.cells(row)) for row in panel.rows)
    return Drawn(
        panel=panel,
        thumbs=found,
        marks=of_cells,
        parts=tuple(
            tuple(parts.of(panel, marks, cell) if mark > Mark.DROPPED else [] for cell, mark in zip(cells, line))
            for cells, line in zip(map(panel.cells, panel.rows), of_cells)
        ),
        scale=thumbs.scale([one for row in found for one in row], panel.value.dtype, panel.image),
    )


def draw(paper: Paper, drawn: Drawn, marks: Marks, labels: Labels) -> None:
    """All of an entry, below what is on the paper already."""
    panel = drawn.panel
    _caption(paper, drawn, marks)
    xs = [LEFT + x for x in _places(panel.columns, panel.size[1] + GAP)]
    _column_names(paper, panel, marks, labels, xs)
    for number, row in enumerate(panel.rows):
        if number and _jumps(panel.rows[number - 1], row):
            paper.space(JUMP)
        y = paper.space(panel.size[0] + GAP)
        name = " · ".join(named(axis, index, labels) for axis, index in row.items())
        row_name(paper, y + panel.size[0] // 2, name, max(drawn.marks[number]))
        for x, mark, thumb, found in zip(xs, drawn.marks[number], drawn.thumbs[number], drawn.parts[number]):
            _cell(paper, x, y, drawn, thumb, mark)
            for guilty, spans in found:
                rectangles(paper, x, y, spans, guilty=guilty)
        _notes(paper, xs[-1] + panel.size[1] + 2 * GAP, y, drawn, drawn.thumbs[number], labels)
    if hidden := more(panel):
        paper.write(LEFT, paper.space(LINE + 4) + LINE // 2, hidden, colour=GREY)
    paper.space(GAP)


def named(axis: str, index: int, labels: Labels) -> str:
    """An index for people: "sample 2"."""
    found = labels.get(axis)
    return f"{WORDS.get(bare(axis), bare(axis))} {index if found is None else found[index]}"


def row_name(paper: Paper, y: int, name: str, mark: Mark) -> None:
    """Left of a row: what it is, and whether it is guilty or kept."""
    colour = COLOURS[mark][0] if mark in COLOURS else GREY
    if mark.guilty and name:
        paper.cross(14, y - 6, 13, GUILTY)
    paper.write(32, y, name, size=12, colour=colour, bold=mark.guilty, room=LEFT - 44)


def framed(paper: Paper, x: int, y: int, size: tuple[int, int], mark: Mark) -> None:
    """The outline of a cell, around it; what is guilty and kept has that of the kept ones inside its own."""
    colour, thick = COLOURS.get(mark, (PALE, 1))
    paper.outline(x, y, size[1], size[0], colour, thick, dash=4 if mark in DASHED else None)
    if mark is Mark.GUILTY and min(size) >= INSIDE:
        paper.outline(x + 2, y + 2, size[1] - 4, size[0] - 4, KEPT, 2)
    if mark.guilty:
        paper.cross(x - 4, y - 4, 15 if size[0] > 2 * STRIP else 9, GUILTY)


def bar(cell: NDArray[np.uint8]) -> None:
    """Stripes at the bottom of a cell's pixels: it holds NaN or Inf, even if only one."""
    place = cell[-min(BAR, max(3, len(cell) // 4)) :]
    striped = np.add.outer(np.arange(place.shape[0]), np.arange(place.shape[1])) // 4 % 2 == 0
    place[:] = np.where(striped[..., None], np.array(BAD, np.uint8), np.array(BLACK, np.uint8))


def more(panel: Panel) -> str:
    """What is not shown: "+ 80 more samples"."""
    parts = []
    for axis, count, matter in panel.hidden:
        word = WORDS.get(bare(axis), bare(axis)) + "s" * (count > 1 and bare(axis) in WORDS)
        parts.append(f"{count:,} more {word}" + (f" ({matter:,} of them kept or guilty)" if matter else ""))
    if len(panel.down) > 1 and panel.hidden_rows:
        parts.append(f"{panel.hidden_rows:,} more rows in all")
    return f"+ {', '.join(parts)}" if parts else ""


def words(axis: str, indices: str) -> str:
    """Indices for people: "frames 6-7"."""
    if bare(axis) not in WORDS:
        return indices
    return f"{WORDS[bare(axis)]}{'s' * (not indices.isdecimal())} {indices}"


def _caption(paper: Paper, drawn: Drawn, marks: Marks) -> None:
    panel = drawn.panel
    y = paper.space(LINE + 12) + LINE // 2 + 4
    kind = f"{str(panel.value.dtype).removeprefix('torch.')} {list(panel.value.shape)}"
    axes = " ".join(bare(axis) for axis in panel.axes)
    paper.write(14, y, f"{panel.entry or 'batch'}", size=15, bold=True, room=LEFT - 24)
    found = [kind, axes, drawn.scale.name]
    for axis in panel.inner:
        found += _channels(panel, axis, marks) if panel.image and bare(axis) == "c" else []
    paper.write(LEFT, y, " · ".join(found), colour=GREY)


def _channels(panel: Panel, axis: str, marks: Marks) -> list[str]:
    """What a picture of all channels in one does not show."""
    count, one = panel.value.shape[panel.axes.index(axis)], marks.axes.get(axis, Axis())
    found = [f"mean of {count} channels"] if count not in (1, 3) else []
    if one.kept and len(one.kept) < count:
        found.append(f"channels kept {reductions.indices(sorted(one.kept))}")
    return [*found, f"guilty {reductions.indices(sorted(one.guilty))}"] if one.guilty else found


def _column_names(paper: Paper, panel: Panel, marks: Marks, labels: Labels, xs: Sequence[int]) -> None:
    if panel.across is None:
        return
    y = paper.space(LINE + 4) + LINE // 2
    paper.write(LEFT - 16, y, WORDS.get(bare(panel.across), bare(panel.across)), size=12, colour=GREY, align="right")
    for x, column in zip(xs, panel.columns):
        name = named(panel.across, column, labels).rpartition(" ")[2]
        guilty = marks.index(panel.across, column).guilty
        middle = x + panel.size[1] // 2
        paper.write(middle, y, name, size=12, colour=GUILTY if guilty else GREY, bold=guilty, align="center")


def _cell(paper: Paper, x: int, y: int, drawn: Drawn, thumb: Thumb, mark: Mark) -> None:
    height, width = drawn.panel.size
    picture = painted(thumb, drawn.scale, (height, width), dim=mark is Mark.DROPPED, image=drawn.panel.image)
    paper.paste(x, y, picture)
    framed(paper, x, y, (height, width), mark)
    if thumb.constant and drawn.panel.image and height >= 28 and width >= 36:
        light = picture[height // 2, width // 2].mean() > 110
        middle = (x + width // 2, y + height // 2)
        said = f"= {thumb.low:.3g}" if thumb.low == thumb.high else "constant"
        paper.write(*middle, said, size=12, colour=BLACK if light else WHITE, align="center", room=width)


def painted(thumb: Thumb, scale: Scale, size: tuple[int, int], *, dim: bool, image: bool) -> NDArray[np.uint8]:
    """A cell as it is seen. The colour of what is not finite is in it only where something is not finite."""
    shown = scale.shown(thumb.pixels)
    if shown.shape[2] != 3 or not image:
        shown = np.repeat(shown.mean(axis=2, keepdims=True), 3, axis=2)
    pixels: NDArray[np.uint8] = np.round((1 - (1 - shown) * DIM if dim else shown) * 255).astype(np.uint8)
    pixels[(pixels == BAD).all(axis=2)] = (254, 0, 254)
    pixels[thumb.bad] = BAD
    down, across = (np.arange(wanted) * held // wanted for wanted, held in zip(size, pixels.shape))
    pixels = pixels[down][:, across]
    if thumb.nan or thumb.inf:
        bar(pixels)
    return pixels


def rectangles(paper: Paper, x: int, y: int, spans: Spans, *, guilty: bool) -> None:
    """Around each meeting of a run of rows and a run of columns."""
    for top, bottom in spans[0]:
        for left, right in spans[1]:
            place = (x + left, y + top, right - left, bottom - top)
            paper.outline(*place, WHITE, 3)
            paper.outline(*place, GUILTY if guilty else KEPT, 2)
            if guilty and bottom - top > 12 and right - left > 12:
                paper.cross(x + right - 9, y + top, 9, GUILTY)


def _notes(paper: Paper, x: int, y: int, drawn: Drawn, row: Sequence[Thumb], labels: Labels) -> None:
    """What is odd about the cells of a row, beside it."""
    panel = drawn.panel
    found: dict[str, list[int]] = {}
    for column, thumb in zip(panel.columns, row):
        if said := _oddity(thumb, panel.image):
            found.setdefault(said, []).append(column)
    known = labels.get(panel.across or "")
    lines = []
    for said, columns in found.items():
        shown = reductions.indices([column if known is None else known[column] for column in columns])
        lines.append(said if panel.across is None else f"{words(panel.across, shown)}: {said}")
    room = max(1, (panel.size[0] + GAP) // (LINE - 1))
    if len(lines) > room:
        lines = [*lines[: room - 1], f"{lines[room - 1]}; and more"]
    top = y + panel.size[0] // 2 - (len(lines) - 1) * (LINE - 1) // 2
    for number, line in enumerate(lines):
        paper.write(x, top + number * (LINE - 1), line, size=12, room=paper.width - x - 8)


def _oddity(thumb: Thumb, image: bool) -> str:
    parts = [_share(share, name) for share, name in ((thumb.nan, "NaN"), (thumb.inf, "Inf")) if share]
    if thumb.constant and image:
        parts.append(f"constant {', '.join(f'{one:.3g}' for one in dict.fromkeys(thumb.constant))}")
    return ", ".join(parts)


def _share(share: float, what: str) -> str:
    return f"all {what}" if share == 1 else f"{100 * share:.2g}% {what}"


def _places(indices: Sequence[int], step: int) -> list[int]:
    """Where columns begin; there is a wider gap where indices are left out."""
    jumps = np.cumsum([0, *(JUMP * (after != before + 1) for before, after in pairwise(indices))])
    return [number * step + int(jump) for number, jump in enumerate(jumps)]


def _jumps(before: Mapping[str, int], after: Mapping[str, int]) -> bool:
    """Whether something is left out between two rows, or another sample begins."""
    moved = [axis for axis in after if after[axis] != before[axis]]
    return moved[0] != list(after)[-1] or after[moved[0]] != before[moved[0]] + 1
