"""A batch from its description: noise where the content was, and no content.

A recipe says what is left of a batch when its content is taken away: shapes, dtypes, the range of the numbers, where
NaN, infinities, zeros and flat areas lie, and which parts equal which others. Equal arguments give equal bits on every
machine: only uniform numbers are drawn, on the CPU, and they meet nothing but sums and products in float64.
This needs plain torch, and NumPy for what was an array.
"""

import collections
import math
import pathlib
from typing import Any

import torch


def generate(recipe: Any, seed: int) -> Any:
    """The batch that a recipe describes."""
    draw = torch.Generator().manual_seed(seed)
    made = [_values(leaf, draw) for leaf in recipe["leaves"]]
    for copy in recipe["copies"]:
        (target, place), (source, origin) = copy["to"], copy["from"]
        made[target][tuple(place)] = made[source][tuple(origin)].clone()
    return _nest(recipe["batch"], [_finished(leaf, values) for leaf, values in zip(recipe["leaves"], made)])


def _values(leaf: Any, draw: torch.Generator) -> torch.Tensor:
    """The numbers of one entry, in float64 or int64."""
    floats = "float" in leaf["dtype"]
    if "runs" in leaf:
        line = [value for value, times in leaf["runs"] for _ in range(times)]
        return torch.tensor(line, dtype=torch.int64).reshape(leaf["shape"])
    values: torch.Tensor = _noise(leaf["noise"], leaf["shape"], floats, draw)
    number = float if floats else int
    for some in leaf["scattered"]:
        chosen = torch.rand(leaf["shape"], generator=draw, dtype=torch.float64) < some["share"]
        values.masked_fill_(chosen, number(some["value"]))
    for box in leaf["boxes"]:
        values[tuple(slice(start, stop) for start, stop in box["at"])] = number(box["value"])
    return values


def _noise(noise: Any, shape: Any, floats: bool, draw: torch.Generator) -> Any:
    """Bell-shaped where a mean is given, flat where it is not or where the bell leaves the range."""
    low, high = noise["low"], noise["high"]
    flat, *four = (torch.rand(shape, generator=draw, dtype=torch.float64) for _ in range(5))
    values = low * (1 - flat) + high * flat if floats else (low + flat * (high - low + 1)).floor().clamp(max=high)
    if "mean" in noise:
        bell = noise["mean"] + noise["std"] * (four[0] + four[1] + four[2] + four[3] - 2) * math.sqrt(3)
        bell = bell if floats else bell.round()
        values = torch.where((bell >= low) & (bell <= high), bell, values)
    return values if floats else values.long()


def _finished(leaf: Any, values: torch.Tensor) -> Any:
    """As the step is used to getting it."""
    if leaf["kind"] == "array":
        import numpy

        array = values.numpy().astype(numpy.dtype(leaf["dtype"]).newbyteorder(leaf["byteorder"]))
        return numpy.ascontiguousarray(array.transpose(leaf["order"])).transpose(_inverse(leaf["order"]))
    tensor = values.to(getattr(torch, leaf["dtype"]))
    if leaf["kind"] == "number":
        return tensor.item()
    if leaf["kind"] != "tensor":
        return tensor.tolist() if leaf["kind"] == "list" else tuple(tensor.tolist())
    tensor = tensor.permute(leaf["order"]).contiguous().permute(_inverse(leaf["order"]))
    there = leaf["device"] if torch.cuda.is_available() else "cpu"
    return tensor.to(there).requires_grad_(leaf["requires_grad"])


def _inverse(order: Any) -> list[int]:
    return [order.index(axis) for axis in range(len(order))]


def _nest(node: Any, made: list[Any]) -> Any:
    """The containers of the batch, with what was made in them."""
    if node is None:
        return None
    [(kind, inside)] = node.items()
    if kind == "leaf":
        return made[inside]
    if kind == "dict":
        return {key: _nest(child, made) for key, child in inside}
    if kind == "namedtuple":
        name, fields, children = inside
        return collections.namedtuple(name, fields)(*[_nest(child, made) for child in children])
    if kind in ("list", "tuple"):
        children = [_nest(child, made) for child in inside]
        return children if kind == "list" else tuple(children)
    if kind == "words":
        import numpy

        return numpy.array([f"sample-{number}" for number in inside[1]], dtype=str).reshape(inside[0])
    text = f"sample-{inside}"
    return text if kind == "text" else text.encode() if kind == "bytes" else pathlib.PurePosixPath(text)
