"""Nested data to JSON and safetensors, and back; no pickle.

A pickle runs code when it is read, and an incident travels between people who do not know each other. So data is
written in a closed language: what JSON has is written as itself, everything else as an object with the key "$" that
names its type, and what has no name here is refused by the path of its entry, when it is written. A dict of the user's
that has the key "$" is written as pairs, so nothing in the data can be taken for a tag. Reading builds only the types
below; a name from the file never reaches an import.

What comes back equals what went in, type by type, within these limits. A namedtuple is rebuilt from its name and
fields: it is not the class of the user's module. A defaultdict keeps its factory if that is a builtin type, else it is
a dict. A memmap comes back as an array. A container that is in two places becomes two; tensors and arrays go on sharing
memory. Tensors are detached: values and `requires_grad` survive, graphs, hooks and `.grad` do not.
"""

from __future__ import annotations

import json
import reprlib
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reprokit import _leaves, _storage, _windows
from reprokit._storage import Block, Placed
from reprokit._windows import digest
from reprokit.errors import BadInput

__all__ = ["MISSING", "Packed", "Unstorable", "digest", "load", "pack", "refer", "save", "unpack"]

FORMAT = 1
MAX_DEPTH = 100  # of nesting: each level costs up to five of the interpreter's thousand frames, and callers need theirs

OnUnstorable = Callable[[str, object], None]


class Unstorable(BadInput):
    """An entry of a type that has no form here."""

    def __init__(self, entry: str, type_name: str) -> None:
        remedy = "make it tensors, numbers, strings or containers of them, or leave it out"
        super().__init__(f"{entry}: a {type_name} cannot be stored; {remedy}")
        self.entry, self.type_name = entry, type_name


class _Missing:
    """In the place of an entry that was left out. There is one, so `is` finds it."""

    def __repr__(self) -> str:
        return "MISSING"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A snapshot: later changes to the data do not reach it, and it holds no graph."""

    data: Any  # as JSON has it
    blocks: tuple[Block, ...]

    @property
    def nbytes(self) -> int:
        return sum(block.memory.numel() for block in self.blocks)

    def copied(self) -> Packed:
        """The same in memory of its own."""
        return replace(self, blocks=tuple(block.copied() for block in self.blocks))


def pack(data: object, *, name: str = "data", on_unstorable: OnUnstorable | None = None) -> Packed:
    """Copy data, on the devices where it is. `on_unstorable` is told of what cannot be kept, which becomes MISSING."""
    return refer(data, name=name, on_unstorable=on_unstorable).copied()


def refer(data: object, *, name: str = "data", on_unstorable: OnUnstorable | None = None) -> Packed:
    """Like `pack`, without the copy: keeps the data's memory alive, and is changed by whoever writes into that."""
    return _describe(data, name, on_unstorable)


def unpack(packed: Packed) -> Any:
    """The data, new each time: aliases, strides and addresses modulo 64 as they were."""
    return _Decoder({block.name: _storage.duplicate(block) for block in packed.blocks}).decode(packed.data)


def save(
    data: object,
    folder: Path,
    name: str,
    *,
    on_unstorable: OnUnstorable | None = None,
    without: Collection[str] = (),
) -> None:
    """Write NAME.json, and NAME.safetensors if there are tensors, from where they lie. Takes a Packed as well.

    without: blocks of a Packed whose bytes are kept elsewhere, for `load` to be handed.
    """
    packed = data if isinstance(data, Packed) else _describe(data, name, on_unstorable)
    tensors = folder / f"{name}.safetensors"
    tensors.unlink(missing_ok=True)
    if own := [block for block in packed.blocks if block.name not in without]:
        _storage.write(own, tensors)
    blocks = {block.name: block.spec() for block in packed.blocks}
    document = {"reprokit_tree": FORMAT, "data": packed.data, "blocks": blocks}
    (folder / f"{name}.json").write_text(json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")


def load(folder: Path, name: str, elsewhere: Mapping[str, torch.Tensor] | None = None) -> Any:
    """What `save` wrote. Tensors go to the device that they were on, or to the CPU where that is missing.

    elsewhere: the bytes of blocks that `save` was told to leave out.
    """
    path = folder / f"{name}.json"
    try:
        document = json.loads(path.read_bytes(), parse_constant=_refuse)
        version, blocks = document["reprokit_tree"], document["blocks"]
        if type(version) is int and version > FORMAT:
            raise BadInput(f"{path}: written by a newer reprokit; upgrade reprokit")
        if version != FORMAT:
            raise ValueError("another format")
        held = elsewhere or {}
        own = {block: spec for block, spec in blocks.items() if block not in held}
        placed = _storage.read(folder / f"{name}.safetensors", own) if own else {}
        placed |= {block: _storage.placed(held[block], spec) for block, spec in blocks.items() if block in held}
        return _Decoder(placed).decode(document["data"])
    except OSError as error:
        reason = "missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise BadInput(f"{path}: {reason}; fetch or capture the incident again") from error
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise BadInput(f"{path}: not a tree that reprokit wrote; fetch or capture the incident again") from error


def _describe(data: object, name: str, on_unstorable: OnUnstorable | None) -> Packed:
    """The tree as JSON, and the memory that it needs, where it lies."""
    encoder = _Encoder(name, on_unstorable)
    tree = encoder.encode(data)
    return Packed(data=tree, blocks=_windows.settle(encoder.found))


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_LEFT_OUT: dict[str, Any] = {"$": "missing"}
_FACTORIES = {
    kind.__name__: kind for kind in (list, dict, set, tuple, int, float, bool, str, bytes, Counter, OrderedDict)
}


class _Encoder:
    """One walk over the data. Windows on memory are collected on the way and become blocks when all are known."""

    def __init__(self, name: str, on_unstorable: OnUnstorable | None) -> None:
        self.name, self.on_unstorable = name, on_unstorable
        self.steps: list[tuple[str, object]] = []  # from the root to here: how a step is written, and its key
        self.open: set[int] = set()  # ids of the containers on that way
        self.found: _windows.Found = []

    def encode(self, value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind in _leaves.ENCODE:
            return _leaves.ENCODE[kind](value)
        if value is MISSING:
            return {"$": "missing"}
        if kind in _CONTAINERS or (isinstance(value, tuple) and hasattr(kind, "_fields")):
            return self._inside(value, _CONTAINERS.get(kind, _Encoder._namedtuple))
        if kind in (torch.Tensor, torch.nn.Parameter, np.ndarray, np.memmap):
            try:
                return _windows.describe(value, self._label(), self.found)
            except _windows.NoForm as found:
                return self._unstorable(value, str(found))
        if _leaves.is_number(value):
            return _leaves.encode_number(value)
        return self._unstorable(value, f"{kind.__module__}.{kind.__qualname__}")

    def _inside(self, value: Any, encode: Callable[[_Encoder, Any], Any]) -> Any:
        if id(value) in self.open:
            raise BadInput(f"{self._entry()}: contains itself, which cannot be stored; leave it out")
        if len(self.open) == MAX_DEPTH:
            raise BadInput(f"{self._entry()}: nested over {MAX_DEPTH} deep, which cannot be stored; flatten it")
        self.open.add(id(value))
        try:
            return encode(self, value)
        finally:
            self.open.remove(id(value))

    def _at(self, form: str, key: object, value: object) -> Any:
        self.steps.append((form, key))
        encoded = self.encode(value)
        self.steps.pop()
        return encoded

    def items(self, values: Collection[Any]) -> list[Any]:
        return list(values) if _leaves.flat(values) else [self._at("[{}]", i, value) for i, value in enumerate(values)]

    def pairs(self, value: Mapping[Any, Any]) -> list[Any]:
        """Keys and values. Where a key cannot be stored the pair is left out, since two keys MISSING would be one."""
        keyed = [(self._at(".keys()[{}]", i, key), key) for i, key in enumerate(value)]
        kept = [(encoded, key) for encoded, key in keyed if encoded is not _LEFT_OUT]
        return [[encoded, self._at("[{}]", key, value[key])] for encoded, key in kept]

    def mapping(self, value: Mapping[Any, Any]) -> Any:
        if "$" not in value and set(map(type, value)) <= {str} and _leaves.clean("".join(value)):
            return {key: self._at("[{}]", key, item) for key, item in value.items()}
        return {"$": "dict", "items": self.pairs(value)}

    def default(self, value: defaultdict[Any, Any]) -> Any:
        factory: Any = value.default_factory
        if factory is not None and factory not in _FACTORIES.values():
            return self.mapping(value)
        return {"$": "defaultdict", "factory": factory and factory.__name__, "items": self.pairs(value)}

    def _namedtuple(self, value: Any) -> Any:
        kind = type(value)
        try:
            if _namedtuple_class(kind.__name__, kind._fields) and len(kind._fields) != len(value):
                raise ValueError("more than its fields")
        except (ValueError, TypeError):
            return self._unstorable(value, f"{kind.__module__}.{kind.__qualname__}")
        items = [self._at(".{}", field, item) for field, item in zip(kind._fields, value)]
        return {"$": "namedtuple", "name": kind.__name__, "fields": list(kind._fields), "items": items}

    def _unstorable(self, value: object, type_name: str) -> Any:
        error = Unstorable(self._entry(), type_name)
        if self.on_unstorable is None:
            raise error
        self.on_unstorable(error.entry, value)
        return _LEFT_OUT

    def _entry(self) -> str:
        """As one would write it: batch['meta'][0]."""
        shown = (form.format(key if form == ".{}" else reprlib.repr(key)) for form, key in self.steps)
        return self.name + "".join(shown)

    def _label(self) -> str:
        """As a state_dict would name it: encoder.weight."""
        label = ".".join(str(key) for _, key in self.steps) or self.name
        return label.encode("utf-8", "backslashreplace").decode()


@lru_cache(maxsize=256)
def _namedtuple_class(name: str, fields: tuple[str, ...]) -> Any:
    """No code of the file runs: collections insists on identifiers. `rename` admits the _0 that it makes itself."""
    rebuilt = namedtuple(name, fields, rename=True)  # type: ignore[misc]
    if rebuilt._fields != fields:
        raise ValueError("not the fields of a namedtuple")
    return rebuilt


_CONTAINERS: dict[type, Callable[[_Encoder, Any], Any]] = {
    list: _Encoder.items,
    tuple: lambda encoder, value: {"$": "tuple", "items": encoder.items(value)},
    set: lambda encoder, value: {"$": "set", "items": encoder.items(value)},
    frozenset: lambda encoder, value: {"$": "frozenset", "items": encoder.items(value)},
    dict: _Encoder.mapping,
    OrderedDict: lambda encoder, value: {"$": "OrderedDict", "items": encoder.pairs(value)},
    Counter: lambda encoder, value: {"$": "Counter", "items": encoder.pairs(value)},
    defaultdict: _Encoder.default,
}


class _Decoder:
    """The way back. Values of the wrong kind raise what Python raises; `load` says it in one line."""

    def __init__(self, placed: Mapping[str, Placed]) -> None:
        self.placed = placed

    def decode(self, node: Any) -> Any:
        if type(node) is list:
            return [self.decode(item) for item in node] if {list, dict} & set(map(type, node)) else node.copy()
        if type(node) is not dict:
            return node
        if "$" not in node:
            return {key: self.decode(item) for key, item in node.items()}
        tag = node["$"]
        return _leaves.DECODE[tag](node) if tag in _leaves.DECODE else _DECODE[tag](self, node)

    def items(self, node: Mapping[str, Any]) -> list[Any]:
        return [self.decode(item) for item in node["items"]]

    def pairs(self, node: Mapping[str, Any]) -> dict[Any, Any]:
        return {self.decode(key): self.decode(item) for key, item in node["items"]}

    def default(self, node: Mapping[str, Any]) -> defaultdict[Any, Any]:
        name = node["factory"]
        return defaultdict(None if name is None else _FACTORIES[name], self.pairs(node))

    def namedtuple(self, node: Mapping[str, Any]) -> Any:
        return _namedtuple_class(node["name"], tuple(node["fields"]))(*self.items(node))


_DECODE: dict[str, Callable[[_Decoder, Mapping[str, Any]], Any]] = {
    "missing": lambda *_: MISSING,
    "tuple": lambda decoder, node: tuple(decoder.items(node)),
    "set": lambda decoder, node: set(decoder.items(node)),
    "frozenset": lambda decoder, node: frozenset(decoder.items(node)),
    "dict": _Decoder.pairs,
    "OrderedDict": lambda decoder, node: OrderedDict(decoder.pairs(node)),
    "Counter": lambda decoder, node: Counter(decoder.pairs(node)),
    "defaultdict": _Decoder.default,
    "namedtuple": _Decoder.namedtuple,
    **dict.fromkeys(("tensor", "sparse", "array"), lambda decoder, node: _windows.rebuild(node, decoder.placed)),
}
