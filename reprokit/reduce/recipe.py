"""What is left of a batch when its content is taken away: enough to make another one that fails in the same way.

A recipe is plain JSON that `generate` understands. Structure (see `content`) is kept as it is. Of floats, and of
integers that are content (pictures, tokens), it holds shape, dtype, the range and the mean with three digits, and what
`patterns` finds: special values, flat areas, repeats. Text becomes "sample-0", equal text equal names. Keys of mappings
stay: they are words of the training code.

A recipe comes in levels, from pure noise to all of the above: the least that still fails tells most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import floor, isfinite, log10, prod
from typing import Any

import numpy as np
import torch

from reprokit.layout import Layout
from reprokit.reduce import patterns
from reprokit.reduce.content import KINDS, LABELS, Leaf, take_apart
from reprokit.reduce.patterns import Array, Place

Recipe = dict[str, Any]
"""{"level", "leaves": [...], "copies": [...], "batch": nest of references to leaves}, all of it plain JSON."""

LEVELS: dict[str, tuple[str, ...]] = {
    "noise": (),
    "statistics": ("statistics",),
    "special": ("statistics", "special"),
    "flat": ("statistics", "flat"),
    "repeats": ("statistics", "repeats"),
    "everything": ("statistics", "special", "flat", "repeats"),
}
"""What a recipe of each level holds beside shapes, dtypes and structure."""

_FAR = 100  # times the middle half's width from the median: no bell reaches there, so these values are extreme
_EXACT = 2**53  # integers up to here are drawn exactly
_MODERATE = {"low": 0.0, "high": 1.0}  # noise of the first level: safe for roots and logarithms


def describe(batch: Any, layout: Layout) -> Recipe:
    """Everything that a recipe can hold. Raises BadInput for an entry that cannot be made from noise."""
    content = take_apart(batch, layout)
    arrays = [leaf.array for leaf in content.leaves if not leaf.structure]
    places = [i for i, leaf in enumerate(content.leaves) if not leaf.structure]

    def named(place: Place) -> list[Any]:
        return [places[place[0]], list(place[1])]

    copies = [{"to": named(to), "from": named(origin)} for to, origin in patterns.copies(arrays)]
    leaves = [_described(leaf) for leaf in content.leaves]
    return {"level": "everything", "leaves": leaves, "copies": copies, "batch": content.nest}


def levels(batch: Any, layout: Layout) -> Iterator[Recipe]:
    """From the coarsest description to the finest; those that say no more than one before are left out."""
    whole = describe(batch, layout)
    seen: list[Recipe] = []
    for name in LEVELS:
        recipe = at_level(whole, name)
        if recipe | {"level": ""} not in seen:
            seen.append(recipe | {"level": ""})
            yield recipe


def at_level(recipe: Recipe, level: str) -> Recipe:
    """What a recipe that holds everything holds at a lower level."""
    features = LEVELS[level]
    leaves = [leaf if "runs" in leaf else _lowered(leaf, features) for leaf in recipe["leaves"]]
    return {**recipe, "level": level, "leaves": leaves, "copies": recipe["copies"] if "repeats" in features else []}


def kept(recipe: Recipe) -> tuple[str, ...]:
    """Entries that are as they were: "valid (bool)"."""
    return tuple(f"{leaf['entry'] or 'the batch'} ({leaf['dtype']})" for leaf in recipe["leaves"] if "runs" in leaf)


def _lowered(leaf: dict[str, Any], features: tuple[str, ...]) -> dict[str, Any]:
    noise = leaf["noise"]
    if "statistics" not in features and "float" in leaf["dtype"]:
        noise = _MODERATE
    elif "statistics" not in features and leaf["dtype"] == "uint8":
        noise = {"low": 0, "high": 255}
    boxes = [box for box in leaf["boxes"] if box["why"] in features]
    return {**leaf, "noise": noise, "boxes": boxes, "scattered": leaf["scattered"] if "special" in features else []}


def _described(leaf: Leaf) -> dict[str, Any]:
    head = {"entry": leaf.entry, **leaf.form}
    if leaf.structure:
        line = leaf.array.reshape(-1).astype(np.int64)
        edges = [0, *(np.flatnonzero(line[1:] != line[:-1]) + 1).tolist(), len(line)]
        return head | {"runs": [[int(line[a]), b - a] for a, b in pairwise(edges) if b > a]}
    boxes: list[dict[str, Any]] = []
    scattered: list[dict[str, Any]] = []
    usual = np.ones(leaf.array.shape, bool)
    for value, why, where in _parts(leaf):
        mask = where & usual
        found, rest = patterns.boxes(mask, least=1 if why == "special" else patterns.FLAT)
        boxes += [{"at": [list(side) for side in box.at], "value": _json(value), "why": why} for box in found]
        if rest and why == "special":
            scattered.append({"value": _json(value), "share": _digits(rest / mask.size)})
        usual &= ~mask
    flat = sorted((box for box in boxes if box["why"] == "flat"), key=_size, reverse=True)
    boxes = [box for box in boxes if box["why"] != "flat"] + flat[: patterns.MOST_BOXES]
    return head | {"noise": _statistics(leaf, usual), "boxes": boxes, "scattered": scattered}


def _size(box: dict[str, Any]) -> int:
    return prod(stop - start for start, stop in box["at"])


def _parts(leaf: Leaf) -> Iterator[tuple[Any, str, Array]]:
    """Values with what they are and where: special ones first, then those of flat areas, the largest first."""
    array = leaf.array
    if array.dtype.kind == "f":
        yield from ((value, "special", mask) for value, mask in _special_floats(leaf) if mask.any())
    elif leaf.form["dtype"] not in ("uint8", "bool"):
        limits = np.iinfo(array.dtype)
        ends = {int(limits.max), int(limits.min)} - {0}
        yield from ((end, "special", array == end) for end in sorted(ends) if (array == end).any())
    level = patterns.flat(array)
    values, counts = np.unique(array[level], return_counts=True)
    for i in np.argsort(-counts, kind="stable")[:KINDS]:
        yield values[i], "flat", level & (array == values[i])


def _special_floats(leaf: Leaf) -> Iterator[tuple[Any, Array]]:
    array, limits = leaf.array, torch.finfo(getattr(torch, leaf.form["dtype"]))
    yield "nan", np.isnan(array)
    yield "inf", array == np.inf
    yield "-inf", array == -np.inf
    yield 0.0, array == 0
    for end in (limits.max, limits.min):
        yield end, array == end
    finite = array[np.isfinite(array)].astype(np.float64)
    if not finite.size:
        return
    low, middle, high = np.percentile(finite, [25, 50, 75])
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.isfinite(array) & (np.abs(array.astype(np.float64) - middle) > _FAR * (high - low)) & (high > low)
    rounded = np.array([_digits(float(one)) for one in np.unique(array[far])[-KINDS:]])
    for value in dict.fromkeys(rounded.tolist()):
        near = np.abs(array.astype(np.float64) - value) <= 0.01 * abs(value)
        yield max(min(value, limits.max), limits.min), far & near


def _statistics(leaf: Leaf, usual: Array) -> dict[str, Any]:
    """Of the values that are neither special nor flat; of all finite ones where there are no others."""
    array = leaf.array[usual]
    if leaf.array.dtype.kind == "f":
        return _of_floats(array.astype(np.float64), leaf)
    whole = leaf.array.reshape(-1) if not array.size else array
    if leaf.form["dtype"] == "uint8":
        return {"low": 0, "high": 255} if not array.size else _of_bytes(array)
    if not whole.size:
        return {"low": 0, "high": 0}
    low, high = int(whole.min()), int(whole.max())
    if len(np.unique(whole)) < KINDS:  # few large numbers may be names of somebody: only how large they are is said
        low, high = (end if abs(end) < LABELS else _towards_zero(end) for end in (low, high))
    return {"low": max(min(low, 0), -_EXACT), "high": max(0, min(high, _EXACT))}


def _of_bytes(array: Array) -> dict[str, Any]:
    return {
        "low": int(array.min()),
        "high": int(array.max()),
        "mean": _digits(float(array.mean())),
        "std": _digits(float(array.std())),
    }


def _of_floats(values: Array, leaf: Leaf) -> dict[str, Any]:
    limits = torch.finfo(getattr(torch, leaf.form["dtype"]))
    if not values.size:
        return dict(_MODERATE)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = [_digits(float(values.min()), -1), _digits(float(values.max()), 1)]
        mean, std = _digits(float(values.mean())), _digits(float(values.std()))
    low, high = (max(min(one, limits.max), limits.min) for one in numbers)
    inside = max(low, min(high, mean)) if isfinite(mean) else 0.0
    return {"low": low, "high": high, "mean": inside, "std": std if isfinite(std) else limits.max}


def _digits(number: float, towards: int = 0) -> float:
    """Three of them: the size of a number, and not the number. towards: -1 down, 1 up, 0 to the nearest."""
    if not number or not isfinite(number):
        return number
    shown = float(f"{number:.2e}")
    if towards and (shown - number) * towards < 0:
        shown = float(f"{shown + towards * 10.0 ** (floor(log10(abs(number))) - 2):.2e}")
    return shown


def _towards_zero(number: int) -> int:
    size = int(10 ** (len(str(abs(number))) - 1))
    return (abs(number) // size) * size * (1 if number > 0 else -1)


def _json(value: Any) -> Any:
    """Strict JSON has no NaN."""
    plain = value.item() if isinstance(value, np.generic) else value
    return str(plain) if isinstance(plain, float) and not isfinite(plain) else plain
