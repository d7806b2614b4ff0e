"""What an escalated attempt collects of its step: what each module put out, what the step cost, and what ran when.

All of it is small data in the outcome, so that it comes through whatever an attempt runs in. It brings every module's
output to the host and records every operation, so it is for a few attempts that are looked at, and not for those that
are counted. Nothing here may end the step: what cannot be had is a note.
"""

from __future__ import annotations

import base64
import faulthandler
import gzip
import json
import os
import resource
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter, process_time
from types import TracebackType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from reprokit.harness import Harness, named_modules
from reprokit.tree import digest

MOST = 5_000  # outputs of modules that are told: one megabyte
TRACE = 2 << 20  # bytes of a packed trace: an outcome, with all that is in it, is read up to sixteen megabytes
_READ = 128 << 20  # bytes of a trace that are parsed to make it smaller
_TOP = 20  # operations that are told by the time they took
_SHORT = 16  # characters of a hash: two outputs that differ are taken for equal once in 2**64


class Evidence:
    """A context around a step; after it `collected` has all that there is. stuck_after: seconds, after which a step
    that has not ended prints where all its threads are."""

    def __init__(self, harness: Harness, *, stuck_after: float | None = None) -> None:
        self._stuck_after = stuck_after
        self._modules = dict(named_modules(harness))
        self._hooks: list[Any] = []
        self._calls: dict[str, int] = {}
        self._outputs: list[dict[str, Any]] = []
        self._left_out = 0
        self._before: dict[str, float] = {}
        self._counters: dict[str, float] = {}
        self._profiler: Any = None
        self._profile: dict[str, Any] = {}
        self._own_handler = False
        self.notes: list[str] = []

    def __enter__(self) -> Evidence:
        if (seconds := self._stuck_after) is not None:  # first: its deadline runs already, and a profiler starts slowly
            self._try("stacks of a hang", lambda: faulthandler.dump_traceback_later(seconds))
        self._own_handler = not faulthandler.is_enabled()
        self._try("stacks of a crash", faulthandler.enable)
        self._hooks = [
            module.register_forward_hook(lambda _module, _inputs, output, name=name: self._look(name, output))
            for name, module in self._modules.items()
        ]
        self._try("profiler", self._start_profiler)
        self._before = _counters()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._counters = {name: value - self._before.get(name, 0) for name, value in _counters().items()}
        self._counters |= _levels()
        if self._stuck_after is not None:
            faulthandler.cancel_dump_traceback_later()
        for hook in self._hooks:
            hook.remove()
        self._try("profiler", self._stop_profiler)
        if self._own_handler:
            self._try("stacks of a crash", faulthandler.disable)

    def collected(self) -> dict[str, Any]:
        """As an outcome has it: strict JSON."""
        if self._left_out:
            self.notes.append(f"modules: {self._left_out} more outputs are not told")
        return {"modules": self._outputs, "counters": self._counters, **self._profile, "notes": self.notes}

    def _try(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            self.notes.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}")

    def _look(self, name: str, output: Any) -> None:
        with suppress(Exception):  # whatever a module returns, its step goes on as without us
            call = self._calls[name] = self._calls.get(name, 0) + 1
            for index, tensor in enumerate(one for one in tree_leaves(output) if isinstance(one, torch.Tensor)):
                if len(self._outputs) >= MOST:
                    self._left_out += 1
                    continue
                self._outputs.append({"module": name, "call": call, "output": index, **statistics(tensor)})

    def _start_profiler(self) -> None:
        from torch import profiler  # imports what only this needs

        kinds = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            kinds.append(profiler.ProfilerActivity.CUDA)
        started = profiler.profile(activities=kinds, record_shapes=True, profile_memory=True)
        started.__enter__()
        self._profiler = started

    def _stop_profiler(self) -> None:
        if self._profiler is None:
            return
        self._profiler.__exit__(None, None, None)
        averages = sorted(self._profiler.key_averages(), key=lambda one: -one.self_cpu_time_total)
        self._profile["top"] = [
            {
                "operation": str(one.key),
                "count": int(one.count),
                "cpu_us": float(one.self_cpu_time_total),
                "device_us": float(getattr(one, "self_device_time_total", 0.0)),
            }
            for one in averages[:_TOP]
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profiler.export_chrome_trace(str(path))
            if path.stat().st_size > _READ:
                self.notes.append(f"trace: {path.stat().st_size >> 20} MiB, more than is kept")
                return
            packed, note = packed_trace(path.read_bytes())
        self._profile["trace"] = base64.b64encode(packed).decode("ascii")
        self.notes += [note] if note else []


def statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Of the finite values, how many are not, and a hash of all."""
    plain = tensor.detach()
    known: dict[str, Any] = {"shape": list(plain.shape), "dtype": str(plain.dtype).removeprefix("torch.")}
    known |= {"min": None, "max": None, "mean": None, "std": None, "nonfinite": 0, "hash": ""}
    if plain.layout is not torch.strided or plain.is_quantized or plain.is_meta:
        return known
    known["hash"] = digest(plain)[:_SHORT]
    if not plain.numel() or plain.is_complex():
        return known
    values = plain.double() if plain.dtype is not torch.float32 else plain
    good = values[values.isfinite()]
    known["nonfinite"] = values.numel() - good.numel()
    if good.numel():
        mean = float(good.mean(dtype=torch.float64))
        spread = float(((good - mean) ** 2).mean(dtype=torch.float64)) ** 0.5
        known |= {"min": float(good.min()), "max": float(good.max()), "mean": mean, "std": spread}
    return {name: None if value != value or value in (_INF, -_INF) else value for name, value in known.items()}


_INF = float("inf")  # a mean or a spread of finite values may be too large for their type


def packed_trace(text: bytes, most: int = TRACE) -> tuple[bytes, str]:
    """A trace as it is kept: gzip, in at most so many bytes; of a larger one the longest events, and a note."""
    packed = gzip.compress(text, mtime=0)
    if len(packed) <= most:
        return packed, ""
    data = json.loads(text)
    events = data["traceEvents"]
    timed = sorted((one for one in events if "dur" in one), key=lambda one: -one["dur"])
    names = [one for one in events if one.get("ph") == "M"]
    kept = len(timed)
    while len(packed) > most and kept:
        kept //= 2
        data["traceEvents"] = names + timed[:kept]
        packed = gzip.compress(json.dumps(data).encode(), mtime=0)
    return packed, f"trace: the {kept} longest of {len(events)} events are kept"


def _counters() -> dict[str, float]:
    """What has been counted of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    found: dict[str, float] = {
        "seconds": perf_counter(),
        "cpu_seconds": process_time(),
        "system_seconds": used.ru_stime,
        "page_faults": used.ru_minflt,
        "page_faults_from_disk": used.ru_majflt,
        "waits": used.ru_nvcsw,
        "interruptions": used.ru_nivcsw,
    }
    with suppress(OSError, ValueError):  # Linux alone
        lines = dict(line.split(": ", 1) for line in Path("/proc/self/io").read_text().splitlines())
        found |= {"bytes_read": float(lines["rchar"]), "bytes_written": float(lines["wchar"])}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        stats = torch.cuda.memory_stats()
        found |= {f"gpu_{name}": stats.get(key, 0) for name, key in _OF_CUDA.items()}
    return found


_OF_CUDA = {
    "allocations": "allocation.all.allocated",
    "allocation_retries": "num_alloc_retries",
    "out_of_memory": "num_ooms",
}


def _levels() -> dict[str, float]:
    """What is so now, and not counted."""
    found: dict[str, float] = {"peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}
    with suppress(OSError):
        found["load"] = os.getloadavg()[0]
    with suppress(OSError):
        found["threads"] = float(len(os.listdir("/proc/self/task")))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found |= {
            "gpu_peak_memory": float(torch.cuda.max_memory_allocated()),
            "gpu_reserved": float(torch.cuda.memory_reserved()),
        }
    return found
