"""A contact sheet: the whole batch at a glance, with what a reduction found marked in it.

Rows are samples and views, columns are frames. Colours never speak alone: what is guilty has a cross, what is dropped
is pale, what is there for its shape alone has a broken outline, and a cell with NaN or Inf in it has a striped bar.
Whatever the batch is, there is a picture: what cannot be drawn is named in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit._canvas import BLACK, GREY, require
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.report import texts
from reprokit.report.figures import cells, marks, plan, thumbs, values
from reprokit.report.figures.cells import LEFT, LINE, RIGHT, Drawn, Labels
from reprokit.report.figures.head import head, legend, title_of
from reprokit.report.figures.marks import Json, Marks
from reprokit.report.figures.paper import Paper

NARROWEST = 900  # pixels of a sheet: the lines of its head fit
PANELS = 8  # entries that are drawn
SAMPLES = 8  # whose small entries are listed
LINES = 16  # of a list of entries
UNREADABLE = (BadInput, RuntimeError, TypeError, ValueError, OverflowError)
"""What layouts and tensors of odd kinds raise. A picture is never a reason to lose a result."""


def contact_sheet(batch: Any, layout: Layout, reduction: Json | None, out: Path) -> Path:
    """Draw a batch as a PNG file. reduction: the JSON of one, whose indices are those of this batch."""
    return _draw(batch, layout, _Told(title=title_of(reduction), head=reduction, marks=reduction), out)


def sheet_of(incident: Incident, parent: Incident | None, out: Path) -> Path:
    """Draw the batch of an incident. Of a reduction the whole batch, if its parent is given; else what is left of it,
    under its original indices. Raises BadInput where `parent` is not what the incident was reduced from."""
    certificate, title = incident.manifest.certificate, texts.headline(incident)
    layout = Layout.parse((parent or incident).manifest.layout)
    told = _Told(title=title, head=certificate, marks=certificate)
    if parent is not None:
        if parent.manifest.id != incident.manifest.parent:
            raise BadInput(f"{parent.path}: {incident.path} was not reduced from it; give the incident that it was")
        return _draw(parent.batch(), layout, told, out)
    batch = incident.batch()
    if certificate is not None:
        moved, labels = marks.of_reduced(certificate, _sizes(layout, batch)[0])
        told = _Told(title=f"{title}: what is left of the batch", head=certificate, marks=moved, labels=labels)
    return _draw(batch, layout, told, out)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """What is said about a batch."""

    title: str
    head: Json | None  # a reduction as it was found, for the text
    marks: Json | None  # the same in indices of the batch that is drawn
    labels: Labels = field(default_factory=dict)


def _draw(batch: Any, layout: Layout, told: _Told, out: Path) -> Path:
    require()
    sizes, why = _sizes(layout, batch)
    leaves = layout.leaves(batch)
    found = Marks.read(told.marks, sizes)
    drawn, undrawn = _panels(layout, leaves, found) if not why else ([], [why])
    paper = Paper(max([NARROWEST, *(LEFT + one.width + (RIGHT if one.odd else 20) for one in drawn)]))
    head(paper, told.title, sizes, told.head)
    legend(paper, drawn, told.head)
    for one in drawn:
        cells.draw(paper, one, found, told.labels)
    if not why:
        _samples(paper, layout, leaves, sizes.get("b", 0), found, told.labels)
    rest = [entry for entry in leaves if why or not layout.axes_of(entry)]
    _list(paper, "Entries" if why else "Without axes", [_line(entry, leaves[entry]) for entry in rest])
    _list(paper, "Not drawn", undrawn)
    paper.space(14)
    return paper.save(out)


def _sizes(layout: Layout, batch: Any) -> tuple[dict[str, int], str]:
    """Of the batch, or why the layout does not fit it."""
    try:
        return layout.sizes(batch), ""
    except UNREADABLE as error:
        return {}, str(error)


def _panels(layout: Layout, leaves: Mapping[str, Any], found: Marks) -> tuple[list[Drawn], list[str]]:
    """Entries that are drawn, images first, and why others are not."""
    drawn: list[Drawn] = []
    undrawn: list[str] = []
    for entry, axes in sorted(layout.entries.items(), key=lambda item: not plan.is_image(item[1])):
        try:
            value = thumbs.numbers(leaves[entry])
            if value is None or not axes or (drawn and not plan.is_image(axes) and _in_words(value, axes)):
                continue
            if not value.numel():
                undrawn.append(f"{entry or 'batch'}:  it is empty, its shape is {list(value.shape)}")
            elif len(drawn) == PANELS:
                undrawn.append(f"{entry or 'batch'}: {PANELS} others are above")
            else:
                drawn.append(cells.read(plan.panel(entry, value, axes, found), found))
        except UNREADABLE as error:
            undrawn.append(f"{_line(entry, leaves[entry])} ({type(error).__name__})")
    return drawn, undrawn


def _line(entry: str, value: Any) -> str:
    return f"{entry or 'batch'}: {values.text(value)}"


def _in_words(value: Any, axes: tuple[str, ...]) -> bool:
    return "b" in axes and values.small(value, axes)


def _samples(
    paper: Paper, layout: Layout, leaves: Mapping[str, Any], size: int, found: Marks, labels: Labels
) -> None:
    """The small entries of the samples that matter, in words."""
    named = [(entry, axes.index("b")) for entry, axes in layout.entries.items() if _in_words(leaves[entry], axes)]
    first = found.important("b")[:SAMPLES]
    chosen = sorted(first) or plan.choose(size, [], SAMPLES, SAMPLES)
    if not named or not chosen:
        return
    _title(paper, "Small entries")
    for index in chosen:
        mark = found.index("b", index)
        words = [f"{entry or 'batch'} {values.text(values.sample(leaves[entry], at, index))}" for entry, at in named]
        y = paper.space(LINE + 4) + LINE // 2
        cells.row_name(paper, y, cells.named("b", index, labels), mark)
        paper.write(LEFT, y, " · ".join(words[:LINES]), size=12)
    if size > len(chosen):
        paper.write(LEFT, paper.space(LINE + 4) + LINE // 2, f"+ {size - len(chosen):,} more samples", colour=GREY)


def _list(paper: Paper, title: str, lines: Iterable[str]) -> None:
    """A heading with lines below it; nothing where there are none."""
    lines = list(lines)
    if not lines:
        return
    _title(paper, title)
    for line in [*lines[:LINES], *[f"+ {len(lines) - LINES:,} more"][: len(lines) > LINES]]:
        paper.write(32, paper.space(LINE + 3) + LINE // 2, line, size=12)


def _title(paper: Paper, title: str) -> None:
    paper.write(14, paper.space(LINE + 16) + LINE // 2 + 8, title, size=15, bold=True, colour=BLACK)
