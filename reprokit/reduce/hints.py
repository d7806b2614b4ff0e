"""Where to look first: what stands out in a batch before anything is evaluated.

A search that asks the right element first ends after one question in place of log2 n, and a wrong guess costs that one
question. So nothing here decides anything. An element (a sample, a view, a frame) stands out for what the donor, which
is healthy, has nowhere: values that are not finite, a mask that is all False, an empty text, numbers far outside of the
donor's range, no contrast at all, averages 6 sigma away, the very same content twice. A sign that marks all elements of
an axis, or none, tells nothing about it.

Contents are read once: each entry is reduced to the least and largest value of each of its cells, one for each sample,
view and frame, and to a thin sample of the values inside. All else happens on those. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from reprokit.errors import BadInput
from reprokit.layout import SHARED, Layout
from reprokit.step.outcome import Outcome

Grid = npt.NDArray[Any]

FAR = 10  # times the donor's largest value, or a tenth of its smallest: another scale, where a batch differs by factors
SIGMAS = 6  # of the donor's cells, for their mean: once in 10^9 by chance
_SAMPLE = 2048  # values of a cell that stand for it, at most: enough for a mean, and to tell two frames apart
_LISTED = 16  # distinct integers in a donor, at most, for an unseen one to mean something: flags, not labels


@np.errstate(all="ignore")  # comparisons with NaN are False, as they should be
def suspects(batch: Any, donor: Any, layout: Layout) -> dict[str, tuple[int, ...]]:
    """By axis the elements that stand out, the most telling first; only axes on which some do and others do not.

    donor: None where there is none: then elements are compared with their own kind. Regions (axes of an entry's own)
    are named only for values that are not finite.
    """
    try:
        layout.sizes(batch)
    except BadInput:
        return {}
    mine, healthy = _cells(batch, layout), _cells(donor, layout)
    found: dict[str, dict[int, tuple[int, float]]] = {}
    for entry, cells in mine.items():
        for rank, sign in enumerate(_SIGNS):
            for axis, share in sign(cells, healthy.get(entry)).items():
                if 0 < np.count_nonzero(share) < len(share):
                    ranked = found.setdefault(axis, {})
                    for index in share.nonzero()[0].tolist():
                        ranked[index] = min(ranked.get(index, (len(_SIGNS), 0.0)), (rank, -float(share[index])))
    return {axis: tuple(sorted(ranked, key=lambda one: (ranked[one], one))) for axis, ranked in found.items()}


def from_rows(outcome: Outcome) -> tuple[int, ...]:
    """Samples that were seen to go bad in a watched evaluation, by their place in the batch that was evaluated."""
    return outcome.bad_rows or ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Cells:
    """Of one entry. Grids have one value for each cell: its axes are samples, views, frames and steps."""

    axes: tuple[str, ...]  # of the grids
    inner: tuple[str, ...]  # of the content of a cell
    content: torch.Tensor  # axes of the grid first
    lo: Grid
    hi: Grid
    mean: Grid
    mask: bool  # True and False, as 1 and 0
    whole: bool  # integers

    @property
    def size(self) -> int:
        """Values in a cell."""
        return prod(self.content.shape[len(self.axes) :])

    @property
    def magnitude(self) -> Grid:
        largest: Grid = np.maximum(abs(self.lo), abs(self.hi))
        return largest


Sign = Callable[[_Cells, "_Cells | None"], dict[str, Grid]]
"""By axis, for each element the share of its cells that have this sign; nothing where the healthy ones have it too."""


def _cells(batch: Any, layout: Layout) -> dict[str, _Cells]:
    """By entry; nothing for a batch that does not fit its layout, as None does not."""
    try:
        layout.sizes(batch)
    except BadInput:
        return {}
    leaves = layout.leaves(batch)
    numbers = {entry: _numbers(leaves[entry]) for entry in layout.entries}
    return {
        entry: _reduced(tensor, layout.axes_of(entry))
        for entry, tensor in numbers.items()
        if tensor is not None and tensor.numel()
    }


def _numbers(value: Any) -> torch.Tensor | None:
    """As a tensor with an order; texts and lists by their lengths."""
    if isinstance(value, list | tuple):
        if all(isinstance(one, str | bytes | list | tuple) for one in value):
            return torch.tensor([bool(len(one)) for one in value])  # a mask: False is empty
        if not all(isinstance(one, bool | int | float) for one in value):
            return None
        value = np.array(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biuf":
            return None
        value = torch.from_numpy(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("="), copy=False)))
    tensor: torch.Tensor = value.detach()
    if tensor.is_complex():
        return tensor.abs()
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        return tensor.long()  # torch has no order for those
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _reduced(tensor: torch.Tensor, axes: Sequence[str]) -> _Cells:
    outer = [place for place, axis in enumerate(axes) if axis.rpartition(".")[2] in SHARED]
    inner = [place for place in range(len(axes)) if place not in outer]
    content = tensor.permute(outer + inner)
    values = content.view(torch.uint8) if tensor.dtype is torch.bool else content
    inside = list(range(len(outer), len(axes)))
    lo, hi = (values.amin(inside), values.amax(inside)) if inside else (values, values)
    return _Cells(
        axes=tuple(axes[place] for place in outer),
        inner=tuple(axes[place] for place in inner),
        content=content,
        lo=_grid(lo.double()),
        hi=_grid(hi.double()),
        mean=_grid(_thin(values, len(outer)).double().mean(-1)),
        mask=tensor.dtype is torch.bool,
        whole=not tensor.is_floating_point() and tensor.dtype is not torch.bool,
    )


def _grid(tensor: torch.Tensor) -> Grid:
    grid: Grid = tensor.cpu().numpy()
    return grid


def _thin(content: torch.Tensor, outer: int) -> torch.Tensor:
    """Some of the values of each cell, in one last axis: every k-th along the long axes."""
    steps = [1] * content.ndim
    lengths = list(content.shape[outer:])
    while prod(lengths) > _SAMPLE:
        place = outer + lengths.index(max(lengths))
        steps[place] *= 2
        lengths[place - outer] = -(-content.shape[place] // steps[place])
    return content[tuple(slice(None, None, step) for step in steps)].reshape(*content.shape[:outer], prod(lengths))


def _shares(cells: _Cells, marked: Grid) -> dict[str, Grid]:
    """Of marked cells, along each axis of the grid."""
    return {axis: _over(marked, place, np.mean) for place, axis in enumerate(cells.axes)}


def _over(grid: Grid, place: int, reduce: Callable[..., Any]) -> Grid:
    """All axes but one reduced."""
    found: Grid = reduce(grid, axis=tuple(axis for axis in range(grid.ndim) if axis != place))
    return found


def _unless(healthy: _Cells | None, cells: _Cells, mark: Callable[[_Cells], Grid]) -> dict[str, Grid]:
    return {} if healthy and mark(healthy).any() else _shares(cells, mark(cells))


def _not_finite(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    marked = _bad(cells)
    if not marked.any() or (healthy and _bad(healthy).any()):
        return {}
    bad = _grid(~cells.content[torch.from_numpy(marked)].isfinite())
    regions = {axis: _over(bad, place + 1, np.mean) for place, axis in enumerate(cells.inner)}
    return _shares(cells, marked) | regions


def _bad(cells: _Cells) -> Grid:
    return np.asarray(~(np.isfinite(cells.lo) & np.isfinite(cells.hi)))


def _empty(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    """A mask with nothing in it, a text of no letters: all of an element, for masks are False in places."""
    empty = lambda some, place: 1.0 - _over(some.hi, place, np.max)
    return _slices(cells, healthy, empty) if cells.mask else {}


def _slices(cells: _Cells, healthy: _Cells | None, mark: Callable[[_Cells, int], Grid]) -> dict[str, Grid]:
    """A sign of whole elements, axis by axis."""
    healthy = healthy if healthy and healthy.axes == cells.axes else None
    return {
        axis: mark(cells, place)
        for place, axis in enumerate(cells.axes)
        if not (healthy and mark(healthy, place).any())
    }


def _far(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    """Numbers of another scale; integers below zero, or past twice the range."""
    if cells.mask:
        return {}
    reference = healthy.magnitude.max() if healthy else np.median(cells.magnitude)
    marked = cells.magnitude > (2 * max(reference, 1.0) if cells.whole else FAR * reference)
    if cells.whole and healthy and healthy.lo.min() >= 0:
        marked |= cells.lo < 0
    return _shares(cells, marked) if reference > 0 else {}


def _flat(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    """One value throughout: of a cell, or of all cells of an element."""
    if cells.mask:
        return {}
    if cells.size > 1:
        return _unless(healthy, cells, lambda some: some.lo == some.hi)

    def mark(some: _Cells, place: int) -> Grid:
        same: Grid = _over(some.lo, place, np.min) == _over(some.hi, place, np.max)
        several = some.hi.size > 3 * some.hi.shape[place]  # of two or three numbers, equal ones are no surprise
        return np.asarray(same & several)

    return _slices(cells, healthy, mark)


def _unusual(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    """Outside of what the donor's cells are like: their means, their contrast, their smallness, their integers."""
    if healthy is None or cells.mask:
        return {}
    if cells.whole and cells.size == 1:
        return _shares(cells, _unseen(cells.lo, healthy.lo))
    samples = healthy.lo.shape[healthy.axes.index("b")] if "b" in healthy.axes else 0
    middle, far = healthy.mean.mean(), SIGMAS * healthy.mean.std()
    marked = np.asarray(abs(cells.mean - middle) > far)
    if samples < 4 or not far or (abs(healthy.mean - middle) > far).any():  # of few, sigma is too small
        marked = np.zeros(cells.lo.shape, dtype=bool)
    if cells.size > 1:
        marked |= (cells.hi - cells.lo) * FAR < (healthy.hi - healthy.lo).min()
        marked |= cells.magnitude * FAR < healthy.magnitude.min()
    return _shares(cells, marked)


def _unseen(given: Grid, healthy: Grid) -> Grid:
    """Integers that do not fit among the donor's: too far out, zero where it has none, not on its short list.

    The largest of n labels is a step of range / n from the end, on average, and four steps by a chance of e^-4.
    """
    least, most = healthy.min(), healthy.max()
    margin = 4 * (most - least) / healthy.size
    marked = (given < least - margin) | (given > most + margin) | ((given == 0) & (least > 0))
    known = np.unique(healthy)
    listed = len(known) <= min(_LISTED, healthy.size // 4)
    return np.asarray(marked | (~np.isin(given, known) if listed else False))


def _repeated(cells: _Cells, healthy: _Cells | None) -> dict[str, Grid]:
    """The same content as another cell that differs from it along one axis: a frozen frame, a sample twice."""
    return {} if cells.size < 4 else _unless(healthy, cells, _twins)


def _twins(cells: _Cells) -> Grid:
    group = _groups(cells)
    marked = np.zeros(group.shape, dtype=bool)
    for place in range(group.ndim):
        order = np.argsort(group, axis=place, kind="stable")
        ranked = np.moveaxis(np.take_along_axis(group, order, place), place, -1)
        same = ranked[..., 1:] == ranked[..., :-1]
        twin = np.zeros(ranked.shape, dtype=bool)
        twin[..., 1:] |= same
        twin[..., :-1] |= same
        found = np.zeros(group.shape, dtype=bool)
        np.put_along_axis(found, order, np.moveaxis(twin, -1, place), place)
        marked |= found
    return marked


def _groups(cells: _Cells) -> Grid:
    """A number for each cell, equal for contents that agree in what stands for them."""
    thin = _thin(cells.content, cells.lo.ndim).reshape(cells.lo.size, -1).contiguous()
    numbers: dict[bytes, int] = {}
    group = [numbers.setdefault(row.tobytes(), len(numbers)) for row in _grid(thin.view(torch.uint8))]
    return np.array(group).reshape(cells.lo.shape)


_SIGNS: tuple[Sign, ...] = (_not_finite, _empty, _far, _flat, _unusual, _repeated)  # the most telling first
