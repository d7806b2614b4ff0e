"""What the machine was doing while a run went wrong: a line about once a second, the last ten minutes kept.

A failure may come from a GPU that throttles, leaks memory, corrupts it or falls off the bus, and none of that is in a
tensor. A daemon thread asks NVML and psutil, whose calls wait outside the interpreter, so a sample costs training a
fraction of a millisecond. Everything is asked inside that thread, NVML's initialisation too: a sick driver may take
seconds to answer. Fields that a machine does not have are absent; a GPU that no longer answers is a line that says so;
a thread that dies leaves what it had, and a note.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from types import TracebackType
from typing import Any, Self

import psutil
import torch

from reprokit.capture.logs import one_line

RING = 600  # lines: ten minutes, under 2 MB with eight GPUs
EVERY = 1.0  # seconds: what drivers refresh their counters at, more or less
_LAST = 1.0  # seconds that leaving may wait for the thread; it is a daemon, and may be inside a driver
_UNSUPPORTED = ("NotSupported", "FunctionNotFound", "NoPermission")  # a field that this GPU or driver does not have

Ask = Callable[[], Any]


class Telemetry:
    """Samples in a bounded ring. A context manager around training; `sample` takes one by hand.

    clock: seconds since the epoch. nvml: in place of the module `pynvml`, which is imported where it is installed.
    """

    def __init__(
        self, ring: int = RING, every: float = EVERY, *, clock: Callable[[], float] = time.time, nvml: Any = None
    ) -> None:
        self._ring: deque[dict[str, Any]] = deque(maxlen=ring)
        self._every, self._clock, self._nvml = every, clock, nvml
        self._process = psutil.Process()
        self._gpus: _Gpus | None = None
        self._why_none = ""  # no GPU is sampled
        self._ended = ""  # why the thread did
        self._leave = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._thread is None:
            self._leave = threading.Event()  # its own: one before it may be inside a driver yet, and is to leave
            self._thread = threading.Thread(
                target=self._run, args=(self._leave,), name="reprokit telemetry", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._leave.set()
        if self._thread is not None:
            self._thread.join(_LAST)
            self._thread = None

    def lines(self) -> list[dict[str, Any]]:
        """The samples that are kept, oldest first. From any thread."""
        return list(self._ring)

    def notes(self) -> list[str]:
        """Why there is less than there could be; nothing of GPUs where training uses none."""
        gpus = [f"no GPU was sampled: {self._why_none}"] if self._why_none and torch.cuda.is_initialized() else []
        ended = [f"it ended: {self._ended}"] if self._ended else []
        return [f"telemetry: {note}" for note in gpus + ended]

    def sample(self) -> None:
        """Add a line about this moment."""
        known = self._gpus
        if known is None:
            known = self._gpus = self._open()
        when = datetime.fromtimestamp(self._clock(), UTC).isoformat(timespec="milliseconds")
        gpus = {"gpus": found} if (found := known.sample()) else {}
        self._ring.append({"time": when, **self._host(), **gpus})

    def _run(self, leave: threading.Event) -> None:
        try:
            while not leave.is_set():
                self.sample()
                leave.wait(self._every)
        except Exception as trouble:
            self._ended = one_line(trouble)
        finally:
            gpus, self._gpus = self._gpus, None  # who enters again asks anew
            if gpus is not None:
                gpus.close()

    def _open(self) -> _Gpus:
        try:
            nvml = self._nvml or import_module("pynvml")
        except ImportError:
            self._why_none = "nvidia-ml-py is not installed; pip install 'reprokit[gpu]'"
            return _Gpus(None)
        try:
            return _Gpus(nvml)
        except Exception as trouble:
            self._why_none = one_line(trouble)
            return _Gpus(None)

    def _host(self) -> dict[str, Any]:
        memory = psutil.virtual_memory()
        fields: dict[str, Ask] = {
            "load": lambda: round(psutil.getloadavg()[0], 2),  # of the last minute, in processes
            "cpu_percent": lambda: psutil.cpu_percent(),  # of all cores, since the line before
            "memory_used": lambda: memory.total - memory.available,
            "memory_total": lambda: memory.total,
            "swap_used": lambda: psutil.swap_memory().used,
            "rss": lambda: self._process.memory_info().rss,  # of this process
        }
        return _answered(fields)[0]


class _Gpus:
    """All GPUs that NVML shows, by its own indices; none without it. Raises what `nvmlInit` raises."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._handles: list[Any] = []
        self._events: Any = None
        if nvml is None:
            return
        nvml.nvmlInit()
        self._handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        with suppress(Exception):  # in some containers, and on some systems, no events are to be had
            events = nvml.nvmlEventSetCreate()
            for handle in self._handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def sample(self) -> list[dict[str, Any]]:
        xids = self._xids()
        found = []
        for index, handle in enumerate(self._handles):
            fields, trouble = _answered(self._fields(handle))
            told = {"xid": xids[index]} if index in xids else {}
            found.append({"index": index, **fields, **told, **({"error": trouble} if trouble else {})})
        return found

    def close(self) -> None:
        if self._nvml is not None:
            with suppress(Exception):
                self._nvml.nvmlShutdown()

    def _fields(self, handle: Any) -> Mapping[str, Ask]:
        nvml = self._nvml
        return {
            "memory_used": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used,
            "memory_total": lambda: nvml.nvmlDeviceGetMemoryInfo(handle).total,
            "power_watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
            "utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_utilization": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
            "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
            "ecc_corrected": lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": lambda: self._ecc(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        }

    def _ecc(self, handle: Any, kind: Any) -> Any:
        """Since the driver was loaded."""
        return self._nvml.nvmlDeviceGetTotalEccErrors(handle, kind, self._nvml.NVML_VOLATILE_ECC)

    def _xids(self) -> dict[int, list[int]]:
        """Index of a GPU -> the errors (Xid) that its driver has reported since the sample before."""
        found: dict[int, list[int]] = {}
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
                index = self._nvml.nvmlDeviceGetIndex(event.device)
            except Exception:  # most often the timeout: there is none
                break
            found.setdefault(index, []).append(event.eventData)
        return found


def _answered(fields: Mapping[str, Ask]) -> tuple[dict[str, Any], str]:
    """The fields that could be had, and the last trouble that was no lack of support."""
    found, trouble = {}, ""
    for name, ask in fields.items():
        try:
            found[name] = ask()
        except Exception as error:
            if not any(kind in type(error).__name__ for kind in _UNSUPPORTED):
                trouble = one_line(error)
    return found, trouble
