"""Memory as blocks: written once however many tensors look at it, and put back where it was.

A tensor is a window on memory, and two things about that memory outlive its values. Windows may overlap: a change
through one is seen through the other, and copies of both would behave differently. And its address matters to the last
bit: vectorised kernels start where memory is aligned, so the same numbers at another address modulo 64 are summed in
another order. Hence the unit here is the block: the union of spans that overlap in memory, with its address modulo 64.
Windows on disjoint parts of one storage are blocks of their own, so a slice of a large buffer does not bring it along.

Blocks live in a safetensors file, written from where they lie and copied from the mapped file straight into their
place: one copy each way. The library judges the header; our caller says what must be there. The writer is ours because
the library wants all tensors in host memory at once, while this one brings them there from their device one by one.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from reprokit.errors import BadInput

ALIGN = 64  # bytes: a cache line, the widest vector register, and what torch's CPU allocator aligns to

ITEMSIZE = {
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}
CODES = {  # name of a dtype, in torch and in NumPy -> its code; only those that every reader of the format knows
    **{f"float{bits}": f"F{bits}" for bits in (16, 32, 64)},
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "BOOL",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
PAIRS = {"complex32": "F16", "complex64": "F32", "complex128": "F64"}  # stored as real and imaginary part


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """The bytes that one tensor or array uses, from its lowest to its highest."""

    owner: torch.Tensor | np.ndarray[Any, Any]  # keeps the memory alive
    label: str  # where it was found: names the block
    start: int  # address
    nbytes: int
    dtype: str  # code
    shape: tuple[int, ...] | None  # for other readers; None where the bytes are not its elements in order

    @property
    def pool(self) -> str:
        """Where addresses can be compared. On the CPU tensors and arrays share memory across storages."""
        if isinstance(self.owner, np.ndarray) or self.owner.is_cpu:
            return "cpu"
        return f"{self.owner.device} {self.owner.untyped_storage()._cdata}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Bytes that belong together, and what must be true of them when they are put back."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int  # modulo ALIGN
    memory: torch.Tensor  # one-dimensional, uint8, on its device
    owners: tuple[object, ...] = ()  # keep `memory` alive where it is not its own

    def copied(self) -> Block:
        return replace(self, memory=self.memory.clone(), owners=())

    def spec(self) -> dict[str, Any]:
        device = str(self.memory.device)
        return {"dtype": self.dtype, "shape": list(self.shape), "address": self.address, "device": device}


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """Fresh memory in which a block lies from `start` on, at the captured address modulo ALIGN."""

    memory: torch.Tensor  # one-dimensional, uint8
    start: int
    nbytes: int

    @property
    def bytes(self) -> torch.Tensor:
        return self.memory[self.start : self.start + self.nbytes]


def extent(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Lowest and highest position of an element, relative to the first; strides and answer in the same unit."""
    reach = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    return sum(min(0, r) for r in reach), sum(max(0, r) for r in reach)


def group(spans: Sequence[Span]) -> tuple[list[Block], list[tuple[str, int]]]:
    """The blocks, and for each span the name of its block and where in it the span starts."""
    blocks: list[Block] = []
    homes: list[tuple[str, int]] = [("", 0)] * len(spans)
    taken = {"__metadata__"}
    for cluster in sorted(_clusters(spans), key=min):
        block = _block(_free_name(spans[min(cluster)].label, taken), [spans[i] for i in cluster])
        blocks.append(block)
        for i in cluster:
            homes[i] = (block.name, spans[i].start - spans[cluster[0]].start)
    return blocks, homes


def _clusters(spans: Sequence[Span]) -> list[list[int]]:
    """Indices of spans that overlap, directly or through others, each by rising address."""
    pools = [span.pool for span in spans]
    clusters: list[list[int]] = [[i] for i, span in enumerate(spans) if not span.nbytes]
    pool, end = "", 0
    for i in sorted((i for i, span in enumerate(spans) if span.nbytes), key=lambda i: (pools[i], spans[i].start)):
        if pools[i] == pool and spans[i].start < end:
            clusters[-1].append(i)
        else:
            clusters.append([i])
            pool, end = pools[i], 0
        end = max(end, spans[i].start + spans[i].nbytes)
    return clusters


def _block(name: str, spans: Sequence[Span]) -> Block:
    """One span alone keeps its shape; several are the line of elements, or of bytes, that they share."""
    start = spans[0].start
    nbytes = max(span.start + span.nbytes for span in spans) - start
    dtype, shape = spans[0].dtype, spans[0].shape if len(spans) == 1 else None
    if shape is None:
        size = ITEMSIZE[dtype]
        if nbytes % size or any(span.dtype != dtype or (span.start - start) % size for span in spans):
            dtype, size = "U8", 1
        shape = (nbytes // size,)
    owners = tuple(span.owner for span in spans)
    memory = _memory(spans[0], nbytes)
    return Block(name=name, dtype=dtype, shape=shape, address=start % ALIGN, memory=memory, owners=owners)


def _memory(span: Span, nbytes: int) -> torch.Tensor:
    """The bytes themselves, not a copy. On the CPU by address: no one storage need cover what several windows share."""
    if isinstance(span.owner, np.ndarray) or span.owner.is_cpu:
        if not nbytes:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer((ctypes.c_ubyte * nbytes).from_address(span.start), dtype=torch.uint8)
    line = torch.empty(0, dtype=torch.uint8, device=span.owner.device)
    if not nbytes:
        return line
    storage = span.owner.untyped_storage()
    return line.set_(storage, span.start - storage.data_ptr(), (nbytes,), (1,))


def _free_name(label: str, taken: set[str]) -> str:
    name, count = label, 1
    while name in taken:
        count += 1
        name = f"{label}~{count}"
    taken.add(name)
    return name


def place(nbytes: int, address: int, device: torch.device) -> Placed:
    """Memory of our own, not yet filled. torch's allocators align to 64 or more; where one does not, there is slack."""
    for slack in (0, ALIGN):
        memory = torch.empty(address + nbytes + slack, dtype=torch.uint8, device=device)
        start = (address - memory.data_ptr()) % ALIGN
        if start + nbytes <= len(memory):
            break
    return Placed(memory=memory, start=start, nbytes=nbytes)


def duplicate(block: Block) -> Placed:
    placed = place(block.memory.numel(), block.address, block.memory.device)
    placed.bytes.copy_(block.memory)
    return placed


def placed(memory: torch.Tensor, spec: Mapping[str, Any]) -> Placed:
    """A block whose bytes come from elsewhere, on its device or on the CPU where that is missing."""
    if type(spec["address"]) is not int or not 0 <= spec["address"] < ALIGN:
        raise ValueError("no address modulo the alignment")
    there = place(memory.numel(), spec["address"], torch.device("cpu"))
    there.bytes.copy_(memory)
    return _moved(there, spec)


def write(blocks: Iterable[Block], path: Path) -> None:
    """A safetensors file. Wide elements first, so that every tensor in a mapped file is aligned for its type."""
    ordered = sorted(blocks, key=lambda block: -ITEMSIZE[block.dtype])
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for block in ordered:
        begin, end = end, end + block.memory.numel()
        header[block.name] = {"dtype": block.dtype, "shape": list(block.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for block in ordered:
            file.write(block.memory.cpu().numpy().data)


def read(path: Path, specs: Mapping[str, Mapping[str, Any]]) -> dict[str, Placed]:
    """Every block that `specs` names, each in memory of its own, on its device or on the CPU where that is missing."""
    try:
        str(path).encode()  # the library refuses other names
        with safe_open(path, framework="pt") as file:
            if set(file.keys()) != specs.keys():
                raise ValueError("other names")
            return {name: placed(_block_in(file, name, spec), spec) for name, spec in specs.items()}
    except FileNotFoundError as error:
        raise BadInput(f"{path}: missing; fetch or capture the incident again") from error
    except OSError as error:
        raise BadInput(f"{path}: cannot be read; fetch or capture the incident again") from error
    except SafetensorError as error:
        raise BadInput(f"{path}: truncated or altered; fetch or capture the incident again") from error
    except UnicodeEncodeError as error:
        raise BadInput(f"{str(path)!a}: a name that is not UTF-8; move the incident to another folder") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadInput(f"{path}: not the tensors that its .json names; fetch or capture the incident again") from error


def _block_in(file: Any, name: str, spec: Mapping[str, Any]) -> torch.Tensor:
    """One block's bytes in the mapped file. Headers agree with specs to the letter, or somebody lies."""
    header = file.get_slice(name)
    if (header.get_dtype(), header.get_shape()) != (spec["dtype"], spec["shape"]):
        raise ValueError("another dtype or shape")
    mapped: torch.Tensor = file.get_tensor(name)
    return mapped.reshape(-1).view(torch.uint8)


def _moved(placed: Placed, spec: Mapping[str, Any]) -> Placed:
    try:
        device = torch.device(spec["device"])
    except RuntimeError as error:
        raise ValueError("no device") from error
    if device.type == "cpu" or not _available(device):
        return placed
    there = place(placed.nbytes, spec["address"], device)
    there.bytes.copy_(placed.bytes)
    return there


def _available(device: torch.device) -> bool:
    """Whether this machine has it; asks torch.cuda, torch.xpu and their like, which agree on two functions."""
    module = getattr(torch, device.type, None)
    known = module is not None and hasattr(module, "is_available") and hasattr(module, "device_count")
    return known and module.is_available() and (device.index or 0) < module.device_count()  # type: ignore[union-attr]
