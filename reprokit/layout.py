"""Named axes of a batch: how long they are, and how to cut or heal along them.

A layout gives the axes of each tensor in einops' notation: `{"global": "b t c h w", "local": "b v t c h w"}`. The names
s (micro-step), b (sample), v (view) and t (frame) are shared by all tensors that have them: a batch with sample 3 cut
out of one tensor and not of the other is another batch, not a smaller one. All other names belong to their tensor
(`global.h`), and so does a shared name written as `local.t`.

Cutting (`select`) changes shapes and keeps content; healing (`heal`) keeps shapes and replaces content with that of a
donor, never with zeros or means: a black frame is the very cause of many failures. Inputs are never modified, and what
the layout does not list is never cut. Pure: nothing here draws random numbers or touches a file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import torch

from reprokit.errors import BadInput

SHARED = ("s", "b", "v", "t")  # micro-step, sample, view, frame: one length over the whole batch
KEY = "key"  # the batch's entries as one more axis: it can be healed, and not cut
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}  # torch cannot index those

Spec = Mapping[str, str] | str
Indices = Mapping[str, Sequence[Any]]
"""Axis -> indices, or names of entries where the axis is `key`."""


class Unfit(BadInput):
    """The donor cannot stand in for this batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The axes of each entry. Entries are dotted paths ("views.global", "0"); a bare tensor is the entry ""."""

    spec: Spec  # as the user gave it
    entries: Mapping[str, tuple[str, ...]]  # entry -> its axes, shared ones bare, private ones as "global.h"

    @classmethod
    def parse(cls, spec: Spec) -> Layout:
        if isinstance(spec, str):
            return cls(spec=spec, entries={"": _parse(spec, "")})
        if not isinstance(spec, Mapping) or not all(isinstance(part, str) for pair in spec.items() for part in pair):
            raise BadInput(f"layout: {spec!r} is no layout; expected axes by entry, as in {{'global': 'b t c h w'}}")
        return cls(spec=dict(spec), entries={entry: _parse(axes, entry) for entry, axes in spec.items()})

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes, in order of first appearance: along each of them a batch can be cut."""
        return tuple(dict.fromkeys(axis for axes in self.entries.values() for axis in axes))

    @property
    def shared(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis in SHARED)

    @property
    def private(self) -> tuple[str, ...]:
        return tuple(axis for axis in self.axes if axis not in SHARED)

    def axes_of(self, entry: str) -> tuple[str, ...]:
        return self.entries.get(entry, ())

    def keys(self, batch: Any) -> tuple[str, ...]:
        """What the axis `key` runs over: the entries that healing can replace one by one."""
        return tuple(path for path, _ in _leaves(batch, self.entries) if path)

    def leaves(self, batch: Any) -> dict[str, Any]:
        """Tensors, lists and values of a batch by the path of their entry, listed or not."""
        return dict(_leaves(batch, self.entries))

    def changed(self, batch: Any, change: Callable[[str, Any], Any]) -> Any:
        """The batch with `change(entry, value)` in the place of each entry, listed or not; containers are new."""
        return _rebuild(batch, self.entries, change)

    def sizes(self, batch: Any) -> dict[str, int]:
        """Length of each axis, in order of first appearance. Refuses a batch that the layout does not fit."""
        found = dict(_leaves(batch, self.entries))
        lengths: dict[str, int] = {}
        owner: dict[str, str] = {}
        for entry, axes in self.entries.items():
            for axis, length in zip(axes, _shape(entry, axes, found)):
                if lengths.setdefault(axis, length) != length:
                    raise BadInput(
                        f"layout: axis {axis!r} is {lengths[axis]} long in {_title(owner[axis])} and {length} long in "
                        f"{_title(entry)}; a shared axis has one length, '{entry}.{axis}' makes it private"
                    )
                owner.setdefault(axis, entry)
        return lengths

    def select(self, batch: Any, keep: Indices) -> Any:
        """The batch with only these indices of these axes, in the order given; containers are new."""
        sizes = self.sizes(batch)
        if KEY in keep:
            raise BadInput("select: the entries of a batch (axis 'key') can be healed, not cut")
        for axis, indices in keep.items():
            _check_indices("select", axis, indices, sizes)
            if not len(indices):
                raise BadInput(f"select: nothing is kept of axis {axis!r}; keep one index at least")
        wanted = {axis: list(indices) for axis, indices in keep.items() if list(indices) != list(range(sizes[axis]))}
        cut = lambda entry, value: _cut(value, [wanted.get(axis) for axis in self.axes_of(entry)])
        return _rebuild(batch, self.entries, cut)

    def heal(self, batch: Any, donor: Any, cells: Sequence[Indices]) -> Any:
        """The batch with the donor's content where any cell says so; shapes stay, and so does all other content.

        A cell is the meeting of its index sets and touches the entries that have all its axes; the cell `{}` is the
        whole batch, entries without axes included. A donor that is shorter along a shared axis is repeated along it.
        """
        sizes, names = self.sizes(batch), self.keys(batch)
        for cell in cells:
            for axis, indices in cell.items():
                _check_names(indices, names) if axis == KEY else _check_indices("heal", axis, indices, sizes)
        donated = self._donated(donor, sizes)

        def replace(entry: str, value: Any) -> Any:
            axes = self.axes_of(entry)
            patches = [[cell.get(axis) for axis in axes] for cell in cells if _touches(cell, entry, axes)]
            if not patches:
                return value
            if entry not in donated:
                raise Unfit(f"donor: it has no entry {entry!r}; heal other entries, or leave it out of the batch")
            if entry not in self.entries:
                return _whole(entry, value, donated[entry])
            _check_alike(entry, value, donated[entry])
            return _patched(value, donated[entry], patches)

        return _rebuild(batch, self.entries, replace)

    def _donated(self, donor: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The donor's entries, if its axes can stand in for axes of these sizes."""
        try:
            lengths = self.sizes(donor)
        except BadInput as error:
            raise Unfit(f"donor: {error}") from None
        for axis, length in lengths.items():
            if not length or (axis not in SHARED and length != sizes[axis]):
                raise Unfit(f"donor: axis {axis!r} is {length} long, in the batch {sizes[axis]}; take another donor")
        return dict(_leaves(donor, self.entries))


def _parse(spec: str, entry: str) -> tuple[str, ...]:
    """The axes in "b v t c h w", named as the whole batch knows them."""
    own = f"{entry}." if entry else ""
    axes: list[str] = []
    for name in spec.split():
        bare = name.removeprefix(own)
        if not bare.isidentifier() or bare == KEY:
            raise BadInput(
                f"layout: {name!r} in the axes {spec!r} of {_title(entry)} names no axis; expected names between "
                f"spaces, as in 'b v t c h w'" + (f", or '{own}t' for a private one" if "." in name and own else "")
            )
        axis = bare if name == bare and bare in SHARED else own + bare
        if axis in axes:
            raise BadInput(f"layout: axis {name!r} stands twice in {spec!r} of {_title(entry)}; give each its own name")
        axes.append(axis)
    return tuple(axes)


def _title(entry: str) -> str:
    return repr(entry) if entry else "the batch"


def _children(node: Any) -> list[tuple[Any, Any]]:
    if isinstance(node, Mapping):
        return list(node.items())
    return list(enumerate(node)) if isinstance(node, list | tuple) else []


def _opens(node: Any, path: str, entries: Collection[str]) -> bool:
    """Whether the layout speaks of what is inside this node. The batch itself is always looked into."""
    inside = not path or any(entry.startswith(f"{path}.") for entry in entries)
    return path not in entries and inside and isinstance(node, Mapping | list | tuple)


def _leaves(node: Any, entries: Collection[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Entries with their paths: those in the layout, and beside them the largest parts that it does not list."""
    if not _opens(node, path, entries):
        yield path, node
        return
    for key, child in _children(node):
        yield from _leaves(child, entries, f"{path}.{key}" if path else str(key))


def _rebuild(node: Any, entries: Collection[str], change: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same nest in new containers, each entry changed."""
    if not _opens(node, path, entries):
        return change(path, node)
    changed = [
        (key, _rebuild(child, entries, change, f"{path}.{key}" if path else str(key))) for key, child in _children(node)
    ]
    return _like(node, changed)


def _like(node: Any, items: list[tuple[Any, Any]]) -> Any:
    """A container of the node's type with these items."""
    if isinstance(node, MutableMapping):
        new = copy.copy(node)
        new.update(items)
        return new
    if isinstance(node, Mapping):
        return dict(items)
    values = [value for _, value in items]
    return type(node)(*values) if hasattr(node, "_fields") else type(node)(values)


def _shape(entry: str, axes: Sequence[str], found: Mapping[str, Any]) -> tuple[int, ...]:
    """The lengths that go with an entry's axes."""
    if entry not in found:
        has = ", ".join(repr(path) for path in found if path) or f"only {type(found.get('')).__name__}"
        raise BadInput(f"layout: the batch has no entry {entry!r}; it has {has}")
    value, title = found[entry], _title(entry)
    if isinstance(value, torch.Tensor) and (value.layout != torch.strided or value.is_nested):
        raise BadInput(f"layout: {title} is a sparse or nested tensor, whose axes cannot be cut; leave it out")
    if isinstance(value, torch.Tensor | np.ndarray):
        shape = tuple(value.shape)
    elif isinstance(value, list | tuple):
        shape = (len(value),)
    else:
        kind = type(value).__name__
        what_next = "list what is inside" if isinstance(value, Mapping) else "leave it out of the layout"
        raise BadInput(f"layout: {title} is of type {kind}, only tensors, arrays and lists have axes; {what_next}")
    if len(shape) != len(axes):
        given = " ".join(axis.removeprefix(f"{entry}.") for axis in axes)
        raise BadInput(f"layout: {title} has {len(shape)} axes, {list(shape)}; its layout {given!r} names {len(axes)}")
    return shape


def _check_indices(verb: str, axis: str, indices: Sequence[Any], sizes: Mapping[str, int]) -> None:
    if axis not in sizes:
        raise BadInput(f"{verb}: there is no axis {axis!r}; the layout has {', '.join(sizes) or 'none'}")
    for given in indices:
        if not hasattr(given, "__index__") or not 0 <= index(given) < sizes[axis]:
            raise BadInput(f"{verb}: {given!r} is no index of axis {axis!r}; expected 0 to {sizes[axis] - 1}")


def _check_names(given: Sequence[Any], names: Sequence[str]) -> None:
    for name in given:
        if not any(_within(path, name) for path in names):
            raise BadInput(f"heal: the batch has no entry {name!r}; it has {', '.join(names) or 'none'}")


def _within(path: str, name: str) -> bool:
    return path == name or path.startswith(f"{name}.")


def _touches(cell: Indices, entry: str, axes: Collection[str]) -> bool:
    named = KEY not in cell or any(_within(entry, name) for name in cell[KEY])
    return named and all(axis == KEY or (axis in axes and len(cell[axis])) for axis in cell)


def _cut(value: Any, kept: Sequence[list[int] | None]) -> Any:
    """These indices of each axis. The order of axes in memory stays: channels-last is still channels-last."""
    if all(indices is None for indices in kept):
        return value
    if isinstance(value, torch.Tensor):
        strides = torch.empty_like(value, device="meta").stride()
        order = sorted(range(value.ndim), key=lambda axis: -strides[axis])
        cut = value.detach().permute(order)
        for place, axis in enumerate(order):
            if (indices := kept[axis]) is not None:
                cut = cut.index_select(place, torch.tensor(indices, device=value.device))
        return cut.permute([order.index(axis) for axis in range(value.ndim)]).requires_grad_(value.requires_grad)
    if isinstance(value, np.ndarray):
        return value[np.ix_(*(range(size) if some is None else some for size, some in zip(value.shape, kept)))]
    return _like(value, [(i, value[i]) for i in kept[0] or ()])


def _check_alike(entry: str, value: Any, donor: Any) -> None:
    """Refuse content that would have to be converted. Between floats only the precision may differ."""
    if (given := _kind(donor)) != (expected := _kind(value)):
        raise Unfit(f"donor: {_title(entry)} is {given}, in the batch {expected}; take another donor")


def _kind(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of {'floats' if value.is_floating_point() else value.dtype}"
    if isinstance(value, np.ndarray):
        kinds = {"f": "floats", "U": "text", "S": "bytes"}  # text is as wide as its longest, in each batch anew
        return f"an array of {kinds.get(value.dtype.kind, value.dtype)}"
    return f"a {type(value).__name__}" if isinstance(value, Mapping | list | tuple) else "a value"


def _patched(value: Any, donor: Any, patches: Sequence[Sequence[Sequence[int] | None]]) -> Any:
    """A copy of the value with the donor's content where the index sets of a patch meet."""
    if isinstance(value, list | tuple):
        taken = {i for (indices,) in patches for i in (range(len(value)) if indices is None else indices)}
        return _like(value, [(i, _owned(donor[i % len(donor)]) if i in taken else old) for i, old in enumerate(value)])
    if isinstance(value, np.ndarray):
        array = value.astype(np.promote_types(value.dtype, donor.dtype) if value.dtype.kind in "US" else value.dtype)
        for patch in patches:
            target, source = _meeting(patch, value.shape, donor.shape)
            array[target] = donor[source]
        return array
    healed = value.detach().clone()
    bits, content = (tensor.view(_SIGNED.get(tensor.dtype, tensor.dtype)) for tensor in (healed, donor.detach()))
    for patch in patches:
        target, source = _meeting(patch, value.shape, donor.shape)
        bits[target] = content[source].to(bits)
    return healed.requires_grad_(value.requires_grad)


def _meeting(patch: Sequence[Sequence[int] | None], shape: Sequence[int], donated: Sequence[int]) -> tuple[Any, Any]:
    """Where a patch lies in the value and in the donor, as indices that broadcast; axes that agree whole are slices."""
    wanted = [
        None if some is None and size == other else np.array(range(size) if some is None else some, dtype=np.int64)
        for some, size, other in zip(patch, shape, donated)
    ]
    listed = [axis for axis, indices in enumerate(wanted) if indices is not None]
    target = [
        slice(None) if indices is None else indices.reshape([-1 if other == axis else 1 for other in listed])
        for axis, indices in enumerate(wanted)
    ]
    source = [part if isinstance(part, slice) else part % size for part, size in zip(target, donated)]
    return tuple(target), tuple(source)


def _whole(entry: str, value: Any, donor: Any) -> Any:
    """The donor's content for an entry without axes, if it has the same shape."""
    _check_alike(entry, value, donor)
    if isinstance(value, Mapping):
        if value.keys() != donor.keys():
            raise Unfit(f"donor: {entry!r} has the keys {list(donor)}, in the batch {list(value)}; take another donor")
        return _like(value, [(key, _whole(f"{entry}.{key}", value[key], donor[key])) for key in value])
    if isinstance(value, torch.Tensor | np.ndarray | list | tuple):
        given, expected = ([len(x)] if isinstance(x, list | tuple) else list(x.shape) for x in (donor, value))
        if given != expected:
            raise Unfit(f"donor: {entry!r} has the shape {given}, in the batch {expected}; give it a layout")
        return _patched(value, donor, [[None] * len(expected)])
    return _owned(donor)


def _owned(value: Any) -> Any:
    """A copy that a step may write into without writing into the donor. Objects of other types are shared."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    children = _children(value)
    return _like(value, [(key, _owned(child)) for key, child in children]) if children else value
