"""The top of a sheet: what failed, what the reduction found, and what the marks mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from reprokit._canvas import GREY
from reprokit.report import reductions, texts
from reprokit.report.figures import cells
from reprokit.report.figures.cells import LEFT, LINE, Drawn
from reprokit.report.figures.marks import Json, Mark
from reprokit.report.figures.paper import BAD, GUILTY, KEPT, Paper

LINES = 12  # of axes
FEW = 4  # groups, values and variants that are named


def head(paper: Paper, title: str, sizes: Mapping[str, int], reduction: Json | None) -> None:
    """Title, sizes, a line for each axis that the reduction made smaller or blames, and what else it found."""
    reduction = reduction if isinstance(reduction, Mapping) else {}
    paper.write(14, paper.space(40) + 22, title, size=19, bold=True)
    shared = {axis: length for axis, length in sizes.items() if "." not in axis}
    notes = " ".join(reductions.notes(reduction))
    about = " · ".join(filter(None, [texts.shape(shared) if shared else "", notes]))
    for line in filter(None, [about, *_facts(reduction)]):
        paper.write(14, paper.space(LINE + 3) + LINE // 2, line, colour=GREY)
    for axis in _axes(reduction):
        y = paper.space(LINE + 3) + LINE // 2
        paper.write(14, y, axis["name"], bold=True, room=LEFT - 24)
        paper.write(LEFT, y, axis["size"], room=80)
        paper.write(LEFT + 90, y, f"kept {cells.words(axis['name'], axis['kept']) or 'all'}", colour=KEPT, room=300)
        guilty = axis["guilty"].removesuffix(" together")
        told = guilty if guilty in ("none alone", reductions.UNKNOWN) else cells.words(axis["name"], guilty)
        paper.write(LEFT + 400, y, f"guilty {told}{axis['guilty'][len(guilty):]}", colour=GUILTY)


def legend(paper: Paper, drawn: Sequence[Drawn], reduction: Json | None) -> None:
    """The marks that are on this sheet, and no others."""
    x, y = 14, 0
    for sample, text in _legend(drawn, reduction):
        wide = 56 + round(6.7 * len(text))
        if not y or x + wide > paper.width:
            x, y = 14, paper.space(26) + 14
        sample(paper, x + 4, y - 6)
        paper.write(x + 34, y, text, size=12)
        x += wide
    paper.space(8)


def title_of(reduction: Json | None) -> str:
    """What failed, from the JSON of a reduction."""
    signature = reduction.get("signature") if isinstance(reduction, Mapping) else None
    if not isinstance(signature, Mapping):
        return "Batch"
    return f"{signature.get('exception') or signature.get('kind', 'failure')} at {signature.get('where', '?')}"


def _legend(
    drawn: Sequence[Drawn], reduction: Json | None
) -> list[tuple[Callable[[Paper, int, int], None], str]]:
    axes = reduction.get("axes") if isinstance(reduction, Mapping) else None
    together = any(isinstance(one, Mapping) and one.get("together") for one in _values(axes))
    guilty = "all that is guilty" if together else "it alone"
    marks = {
        Mark.GUILTY: f"guilty and kept: healing {guilty} heals the whole batch",
        Mark.BLAMED: "guilty, not in the smallest case: another one is enough to fail",
        Mark.KEPT: "kept in the smallest case",
        Mark.HEALED: "kept for its shape alone",
        Mark.DROPPED: "dropped",
    }
    found = [(_swatch(mark), text) for mark, text in marks.items() if any(one.has(mark) for one in drawn)]
    if any(one.boxes for one in drawn):
        found.append((_box, "a part of a cell: kept or guilty, in their colours"))
    if any(cell.nan or cell.inf for one in drawn for row in one.thumbs for cell in row):
        found.append((_bad, "NaN or Inf (bar: somewhere in this cell)"))
    return found


def _swatch(mark: Mark) -> Callable[[Paper, int, int], None]:
    def draw(paper: Paper, x: int, y: int) -> None:
        grey = 120 if mark is not Mark.DROPPED else round(255 - 135 * cells.DIM)
        paper.fill(x, y, 20, 12, (grey, grey, grey))
        cells.framed(paper, x, y, (12, 20), mark)

    return draw


def _box(paper: Paper, x: int, y: int) -> None:
    paper.fill(x, y, 20, 12, (120, 120, 120))
    cells.rectangles(paper, x, y, [[(3, 9)], [(4, 16)]], guilty=False)


def _bad(paper: Paper, x: int, y: int) -> None:
    cell = np.zeros((12, 20, 3), np.uint8)
    cell[:] = BAD
    cells.bar(cell)
    paper.paste(x, y, cell)


def _axes(reduction: Json) -> list[dict[str, str]]:
    """Those that the reduction made smaller, or blames."""
    axes = reduction.get("axes")
    given = {str(name): one for name, one in axes.items()} if isinstance(axes, Mapping) else {}
    told = {name: one for name, one in given.items() if isinstance(one, Mapping) and _changed(one)}
    return [_counted(axis, given) for axis in reductions.axes({}, {"axes": told})[:LINES]]


def _counted(axis: dict[str, str], given: Mapping[str, Json]) -> dict[str, str]:
    """With its size before and after: "8 → 1"."""
    kept = given[axis["name"]].get("kept")
    return {**axis, "size": f"{axis['size']} → {len(kept)}" if isinstance(kept, list | tuple) else axis["size"]}


def _changed(axis: Json) -> bool:
    kept = axis.get("kept")
    return bool(axis.get("guilty")) or (isinstance(kept, list | tuple) and len(kept) != axis.get("size"))


def _facts(reduction: Json) -> list[str]:
    """What was found beside the indices."""
    found = []
    groups = [one for one in _values(reduction.get("groups")) if isinstance(one, Mapping)]
    if len(groups) > 1:
        shown = [" ".join(f"{axis} {reductions.indices(kept)}" for axis, kept in one.items()) for one in groups[:FEW]]
        found.append(f"{len(groups)} groups, each fails by itself: {'; '.join(shown)}")
    kinds = reduction.get("values")
    if isinstance(kinds, Mapping) and kinds:
        shown = [f"{reductions.entry_name(entry)} {kind}" for entry, kind in kinds.items()]
        found.append("Values that are enough: " + ", ".join(shown[:FEW]))
    return found


def _values(found: Any) -> list[Any]:
    if isinstance(found, Mapping):
        return list(found.values())
    return list(found) if isinstance(found, list | tuple) else []
