"""Do all views of a sample show the same frames? Told from indices, never from pictures.

Two ways to say which frames a view shows, by whoever took them: the loader has a method `timed`, which yields each
batch with a mapping from its entries to the indices of their frames; or the batch itself has whole-numbered entries
whose name ends in "times" and whose layout has the axis t, as {"global_times": "b t", "local_times": "b v t"}. An entry
whose frames are its own ("local.t") is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch

from reprokit.capture.logs import one_line
from reprokit.errors import BadInput
from reprokit.layout import Layout
from reprokit.smoke.gate import Finding, Gate, Subject

SUFFIX = "times"
UNTOLD = (
    "nobody says which frames a view shows: neither a method timed() of the loader, which yields "
    "(batch, {entry: indices}), nor an entry of the batch whose name ends in times and whose layout has t"
)

Axes = tuple[str, ...]
Indices = Mapping[str, tuple[torch.Tensor, Axes]]


class Times:
    """One row for a gate."""

    def __init__(self, gate: Gate, check: str) -> None:
        self._gate, self._check = gate, check

    def look(self, subject: Subject, layout: Layout) -> Iterator[Finding]:
        gate, check = self._gate, self._check
        if not any("t" in axes for axes in layout.entries.values()):
            yield gate.not_applicable(check, "no entry has an axis of frames, t")
            return
        if not subject.batches:
            yield gate.not_applicable(check, subject.no_batches)
            return
        for lap in range(len(subject.batches)):
            if why := _unfit(subject, layout, lap):
                advice = "let timed() give the indices of an entry's frames in the order of its layout"
                yield gate.failed(check, "an index for each frame of an entry", why, advice).on(1 + lap)
                return
        told = [_told(subject, layout, i) for i in range(len(subject.batches))]
        if not all(told):
            yield gate.not_applicable(check, UNTOLD)
        elif all(len(one) == 1 and not _views(one) for one in told):
            yield gate.not_applicable(check, "there is one view")
        else:
            yield self._compared(told)

    def _compared(self, told: list[Indices]) -> Finding:
        expected, compared = "equal indices in each view of a sample", 0
        for lap, indices in enumerate(told, start=1):
            views = list(_each(indices))
            (first, reference), *others = views
            for name, view in others:
                compared += len(view)
                if view.shape != reference.shape:
                    observed = f"{first} has {list(reference.shape)} of them, {name} {list(view.shape)}"
                    return self._gate.failed(self._check, expected, observed, _ADVICE).on(lap)
                if (odd := (view != reference).any(dim=-1).nonzero()).numel():
                    sample = int(odd[0, 0])
                    shown = [" ".join(map(str, one[sample].tolist())) for one in (reference, view)]
                    observed = f"sample {sample}: {first} {shown[0]}, {name} {shown[1]}"
                    return self._gate.failed(self._check, expected, observed, _ADVICE).on(lap)
        if not compared:
            return self._gate.not_applicable(self._check, "no two views were told of")
        observed = f"equal in all {compared} compared, of {', '.join(told[0])}"
        return self._gate.passed(self._check, expected, observed, compared=compared)


_ADVICE = "draw the frames of a sample once, and take all its views from them"


def _unfit(subject: Subject, layout: Layout, lap: int) -> str:
    """Of what the loader tells, the entry whose indices are not those of its frames; empty where there is none."""
    for name, value in subject.times[lap].items() if lap < len(subject.times) else ():
        try:
            sizes, shape = layout.sizes(subject.batches[lap]), list(torch.as_tensor(value).shape)
        except (BadInput, TypeError, ValueError, RuntimeError) as error:
            return f"{name}: {one_line(error)}"
        axes = _axes(layout, name)
        if "t" in axes and shape != (expected := [sizes[axis] for axis in axes]):
            return f"{name} is told {shape} of them, and has {expected} frames ({' '.join(axes)})"
    return ""


def _axes(layout: Layout, entry: str) -> Axes:
    return tuple(axis for axis in layout.axes_of(entry) if axis in ("b", "v", "t"))


def _told(subject: Subject, layout: Layout, lap: int) -> Indices:
    """Indices by entry, and their axes."""
    leaves = layout.leaves(subject.batches[lap])
    found: dict[str, tuple[torch.Tensor, Axes]] = {}
    if lap < len(subject.times):
        for name, value in subject.times[lap].items():
            found[name] = (torch.as_tensor(value), _axes(layout, name))
    for name, axes in layout.entries.items():
        value = leaves.get(name)
        if name.endswith(SUFFIX) and "t" in axes and isinstance(value, torch.Tensor | np.ndarray):
            found[name] = (torch.as_tensor(value), axes)
    return {
        name: (value.cpu(), axes) for name, (value, axes) in found.items() if value.ndim == len(axes) and "t" in axes
    }


def _each(indices: Indices) -> Iterator[tuple[str, torch.Tensor]]:
    """Of each view the indices [B, T]."""
    for name, (value, axes) in indices.items():
        order = [i for axis in ("v", "b") if (i := _place(axes, axis)) is not None]
        value = value.permute(*order, axes.index("t"))
        value = value if "b" in axes else value.unsqueeze(-2)
        if "v" not in axes:
            yield name, value
        else:
            yield from ((f"{name} view {i}", view) for i, view in enumerate(value))


def _views(indices: Indices) -> bool:
    return any("v" in axes and value.shape[axes.index("v")] > 1 for value, axes in indices.values())


def _place(axes: Axes, axis: str) -> int | None:
    return axes.index(axis) if axis in axes else None
