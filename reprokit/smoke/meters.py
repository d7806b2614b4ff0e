"""How much memory a step takes, and what it leaves behind.

A device counts what is allocated on it. A CPU does not, so two things stand in: of the peak the resident size of the
process, looked at every few milliseconds; and of what stays the storages that the step's operations read or made and
that are still alive after it, wherever they are held: an output that is kept with its graph holds activations that no
Python object names. What Python and NumPy hold is counted by tracemalloc beside it. All of it is exact but the peak, so
that a leak of some kilobytes a step is seen in six steps, and no cache of an allocator is taken for one. Not seen: what
libraries allocate for themselves, as nodes of a graph whose activations were freed.
"""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import psutil
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from reprokit.smoke.bench import eager

COARSE = 1_000_000  # bytes: the resident size of a process moves by less whatever it does
_LOOK = 0.002  # seconds between two looks at the memory of a process: operations of a step take longer together


def synchronize(device: torch.device) -> None:
    """Wait until the device has done what it was asked to."""
    wait = getattr(_module(device), "synchronize", None)
    if wait and device.type != "cpu":
        wait()


class Peak:
    """A context: after it, the most memory that was in use within it, in bytes, and where. On a CPU it may miss what
    lasts under two milliseconds, and is that of the whole process."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, _module(device)
        self._counts = hasattr(self._module, "max_memory_allocated")  # by itself
        self.where = "the host" if device.type == "cpu" else str(device)
        self.fine = COARSE if allocated(device) is None else 1  # bytes that are told apart
        self.before = self.most = 0

    def __enter__(self) -> Peak:
        synchronize(self._device)
        self.before = self.most = self._now()
        if self._counts:
            self._module.reset_peak_memory_stats(self._device)
            return self
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._counts:
            self.most = int(self._module.max_memory_allocated(self._device))
            return
        self._done.set()
        self._thread.join()
        self.most = max(self.most, self._now())

    def _watch(self) -> None:
        while not self._done.wait(_LOOK):
            self.most = max(self.most, self._now())

    def _now(self) -> int:
        counted = allocated(self._device)
        return int(psutil.Process().memory_info().rss) if counted is None else counted


def allocated(device: torch.device) -> int | None:
    """Bytes that are allocated on a device; None where it does not count them."""
    module: Any = None if device.type == "cpu" else _module(device)
    if hasattr(module, "memory_allocated"):
        return int(module.memory_allocated(device))
    return int(module.current_allocated_memory()) if hasattr(module, "current_allocated_memory") else None  # MPS


def kept(step: Callable[[], object], device: torch.device, times: int) -> list[Mapping[str, int]]:
    """Run a step so many times; bytes that are alive after each: of tensors, and of Python's own objects."""
    found: list[Mapping[str, int]] = []
    counted = None if allocated(device) is None else device
    alive: dict[int, tuple[StorageWeakRef, int]] = {}
    with _traced():
        for _ in range(times):
            with eager(), Births(counted) as births:
                step()
            synchronize(device)
            gc.collect()
            known = births.found | alive  # those that are known stay as they are: new ones would count as growth
            alive = {key: one for key, one in known.items() if not one[0].expired()}
            del births, known
            tensors = (allocated(device) or 0) + sum(size for _, size in alive.values())
            found.append({"tensors": tensors, "objects": tracemalloc.get_traced_memory()[0]})
    return found


class Births(TorchDispatchMode):
    """A context: the storages that operations within it read or made, forward and backward, by identity; held weakly.
    Costs as much as a small operation does, for each. counted: not those of this device."""

    def __init__(self, counted: torch.device | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counted = counted.type if counted else "meta"
        self.found: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note(args)
        self._note((result,))
        return result

    def _note(self, values: Iterable[Any]) -> None:
        for one in values:
            if isinstance(one, list | tuple):
                self._note(one)
            elif isinstance(one, torch.Tensor) and one.layout == torch.strided:
                storage = one.untyped_storage()
                new = storage._cdata not in self.found  # held weakly, it is given to no other storage
                if new and one.device.type not in ("meta", self._counted):
                    self.found[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())


@contextmanager
def _traced() -> Iterator[None]:
    """With tracemalloc on; as it was afterwards. What is there already is out of the collector's way, or each of its
    runs would cost more than a small step."""
    ours = not tracemalloc.is_tracing()
    gc.collect()
    gc.freeze()
    if ours:
        tracemalloc.start()
    try:
        yield
    finally:
        if ours:
            tracemalloc.stop()
        gc.unfreeze()


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
