"""Parts of a cell that a reduction speaks of, as rectangles of its pixels on paper. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reprokit.report.figures.marks import Axis, Marks, bare
from reprokit.report.figures.plan import Panel

Spans = Sequence[Sequence[tuple[int, int]]]
"""Runs of rows and runs of columns of a cell, each as the pixels from and to."""
RUNS = 16  # along one side: more could not be told apart, and are one


def of(panel: Panel, marks: Marks, cell: Mapping[str, int]) -> list[tuple[bool, Spans]]:
    """Parts of a cell, as whether they are guilty and where they lie: what is kept or guilty along its own axes, and
    the regions. In a strip of several axes a part of one is no rectangle, so there are none."""
    own = {bare(axis): axis for axis in panel.inner if bare(axis) in ("h", "w") or not panel.image}
    if not panel.image and len(own) != 1:
        return []
    lengths = {name: panel.value.shape[panel.axes.index(axis)] for name, axis in own.items()}
    along = {name: marks.axes.get(axis, Axis()) for name, axis in own.items()}
    found: list[tuple[bool, Mapping[str, frozenset[int]]]] = [
        (False, {name: one.kept for name, one in along.items() if one.kept and len(one.kept) < lengths[name]}),
        (True, {name: one.guilty for name, one in along.items() if one.guilty}),
    ]
    for region in marks.regions_of(panel.entry, cell):
        found.append((region.guilty, {name: indices for name, indices in region.at.items() if name in own and indices}))
    names = ("h", "w") if panel.image else ("", *own)
    sides = list(zip(names, panel.size))
    return [
        (guilty, [_spans(part.get(name), lengths.get(name, 1), side) for name, side in sides])
        for guilty, part in found
        if part
    ]


def _spans(part: Iterable[int] | None, length: int, side: int) -> list[tuple[int, int]]:
    """Runs of indices as pixels from and to; at most as many as can be told apart."""
    runs: list[list[int]] = []
    for index in sorted(part if part is not None else range(length)):
        if runs and index == runs[-1][1]:
            runs[-1][1] += 1
        else:
            runs.append([index, index + 1])
    if len(runs) > RUNS:
        runs = [[runs[0][0], runs[-1][1]]]
    return [(first * side // length, max(first * side // length + 2, -(-end * side // length))) for first, end in runs]
