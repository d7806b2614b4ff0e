"""Many questions in one forward pass: which samples' values go bad, and batches that hold one sample again and again.

A non-finite value stays in its sample until something mixes samples: a BatchNorm, a contrastive loss, the mean over the
batch. So the first tensor in which some samples are bad and others are not names the culprits, whatever the loss says
later. NaN is looked for first, and infinities only where no NaN tells samples apart: a mask of -inf is no fault.

A stack asks about one sample under many changes. There the first tensor is not enough: a change may heal what fails
first and leave what fails next. A sample is then bad if the output of any module is, and outputs in which samples were
mixed make all of them bad, which tells the asker that they cannot be told apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from itertools import combinations
from math import prod
from types import TracebackType
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook

from reprokit.errors import BadInput
from reprokit.layout import KEY, Layout
from reprokit.step.case import Cell

_DEPTH = 4  # of containers in a module's output: more is no data, and a cycle has no end


def stacked(layout: Layout, batch: Any, donor: Any, keep: Mapping[str, Sequence[int]], cells: Sequence[Cell]) -> Any:
    """The kept part once for each cell, healed by it, along axis b. Raises BadInput.

    Indices are those of the whole batch. What has no axis b is there once: a cell that would heal it is refused. A cell
    with an empty index set, as in `{"b": ()}`, heals nothing.
    """
    sizes, lengths = layout.sizes(batch), layout.sizes(donor)
    if "b" not in sizes:
        raise BadInput("stack: the layout has no axis 'b', along which parts could be put one after the other")
    for cell in cells:
        _check(layout, batch, sizes, cell)
    samples = list(keep.get("b", range(sizes["b"])))
    keep = {**keep, "b": samples * len(cells)}
    lent = {axis: [one % max(lengths[axis], 1) for one in indices] for axis, indices in keep.items() if axis in lengths}
    heal = [_moved(cell, keep, samples, place * len(samples)) for place, cell in enumerate(cells)]
    return layout.heal(layout.select(batch, keep), layout.select(donor, lent), heal)


class Watch:
    """A context around one step; `bad` tells afterwards which samples had bad values, None where nothing tells.

    everywhere: bad in the output of any module, not only in the first tensor in which samples differ. Costs a reduction
    of every output, read after the step; what the step computes stays the same.
    """

    def __init__(self, layout: Layout, batch: Any, *, everywhere: bool = False) -> None:
        self.bad: tuple[int, ...] | None = None
        self._everywhere = everywhere
        self._worst: list[torch.Tensor] = []  # largest absolute value of each sample, tensor by tensor
        self._hook: Any = None
        self._samples, self._flat = 0, frozenset[int]()
        with suppress(BadInput):  # a batch that does not fit its layout: nothing tells where its samples are
            sizes = layout.sizes(batch)
            self._samples = sizes.pop("b", 0)
            some = [n for n in sizes.values() if n > 1]
            self._flat = frozenset(prod(part) for k in range(1, 4) for part in combinations(some, k))
        if self._samples > 1 and not everywhere:
            for entry, value in layout.leaves(batch).items():
                self._look(value, layout.axes_of(entry))

    def __enter__(self) -> Watch:
        if self._samples > 1:  # a hook for all modules: those on a module of its own would turn fast paths off
            self._hook = register_module_forward_hook(self._after)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._hook:
            self._hook.remove()
        self.bad = self._judge([read for one in self._worst if (read := _read(one)) is not None])

    def _after(self, _module: Any, _inputs: Any, output: Any) -> None:
        for tensor in _tensors(output):
            self._look(tensor)

    @torch.no_grad()
    def _look(self, value: Any, axes: Sequence[str] | None = None) -> None:
        with suppress(Exception):  # whatever a module returns, its step goes on as without us
            tensor = _numbers(value)
            if tensor is None:
                return
            place, repeats = self._place(tensor.shape) if axes is None else (axes.index("b"), 1)
            others = [axis for axis in range(tensor.ndim) if axis != place]
            largest = torch.linalg.vector_norm(tensor, float("inf"), dim=others) if others else tensor.abs()
            self._worst.append(largest.reshape(self._samples, repeats).amax(1).float())

    def _place(self, shape: Sequence[int]) -> tuple[int, int]:
        """The axis of the samples, and how many neighbours along it belong to one. Raises where nobody can tell."""
        if shape[0] == self._samples:
            return 0, 1
        if shape[0] % self._samples == 0 and shape[0] // self._samples in self._flat:
            return 0, shape[0] // self._samples
        (place,) = (axis for axis, length in enumerate(shape) if length == self._samples)
        return place, 1

    def _judge(self, worst: Sequence[torch.Tensor]) -> tuple[int, ...] | None:
        nan, inf = [one.isnan() for one in worst], [one.isinf() for one in worst]
        differ = [[bad for bad in tensors if bad.any() and not bad.all()] for tensors in (nan, inf)]
        if not self._everywhere:
            return next((_indices(tensors[0]) for tensors in differ if tensors), None)
        everywhere = nan if any(bad.any() for bad in nan) else differ[1]
        return _indices(torch.stack(everywhere).any(0)) if everywhere else None


def _read(worst: torch.Tensor) -> torch.Tensor | None:
    """On the CPU; None for what holds no values: of a lost device, a fake tensor, one that lived in a transform."""
    with suppress(Exception):
        return torch.tensor(worst.tolist())
    return None


def _indices(bad: torch.Tensor) -> tuple[int, ...]:
    return tuple(bad.nonzero().flatten().tolist())


def _numbers(value: Any) -> torch.Tensor | None:
    """A tensor that can hold bad values, in a form that has a norm."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel() or not value.ndim:
        return None
    tensor = value.detach()
    if tensor.is_complex():
        tensor = tensor.abs()
    if not tensor.is_floating_point():
        return None
    return tensor.float() if tensor.itemsize == 1 else tensor  # float8 has no kernels of its own for this


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part, depth - 1)
    elif depth and isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part, depth - 1)
    elif depth and is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors(vars(value).get(field.name), depth - 1)


def _check(layout: Layout, batch: Any, sizes: Mapping[str, int], cell: Cell) -> None:
    """Refuse what cannot differ between the parts of a stack."""
    for axis, indices in cell.items():
        if axis != KEY and (axis not in sizes or not all(0 <= index < sizes[axis] for index in indices)):
            raise BadInput(f"stack: {list(indices)} are no indices of an axis {axis!r}; the layout has {dict(sizes)}")
    index_sets = {axis: indices for axis, indices in cell.items() if axis != KEY}
    for entry in layout.leaves(batch):
        axes = layout.axes_of(entry)
        named = KEY not in cell or any(entry == name or entry.startswith(f"{name}.") for name in cell[KEY])
        if "b" not in axes and named and all(axis in axes and indices for axis, indices in index_sets.items()):
            raise BadInput(f"stack: the cell {dict(cell)} heals {entry!r}, which has no axis 'b'; ask it by itself")


def _moved(cell: Cell, keep: Mapping[str, Sequence[int]], samples: Sequence[int], start: int) -> dict[str, Any]:
    """A cell of the whole batch as one of its part in the stack, which starts there."""
    moved: dict[str, Any] = {
        axis: [place for place, index in enumerate(keep[axis]) if index in indices] if axis in keep else indices
        for axis, indices in cell.items()
        if axis != "b"
    }
    wanted = cell.get("b", samples)
    return {"b": [start + place for place, index in enumerate(samples) if index in wanted], **moved}
