"""A line a second about the machine. No GPU is needed: NVML is a stand-in with the real functions' names."""

import json
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.capture.telemetry import Telemetry

pynvml = pytest.importorskip("pynvml")


class Nvml:
    """Two GPUs in memory. Anything else that is asked of it comes from the real module, and is a constant there."""

    def __init__(self):
        self.up, self.lost, self.events, self.calls = 0, set(), [], []
        self.unsupported = {(1, "nvmlDeviceGetTotalEccErrors")}

    def __getattr__(self, name):
        found = getattr(pynvml, name)  # a name that NVML does not have fails here
        if not callable(found) or isinstance(found, type):
            return found
        return lambda *args: self._answer(name, *args)

    def _answer(self, name, *args):
        self.calls.append(name)
        index = args[0] if args and isinstance(args[0], int) else None
        if index in self.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        if (index, name) in self.unsupported:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        clocks = {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 2619}
        answers = {
            "nvmlInit": lambda: setattr(self, "up", self.up + 1),
            "nvmlShutdown": lambda: setattr(self, "up", self.up - 1),
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda i: i,
            "nvmlDeviceGetIndex": lambda handle: handle,
            "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=5 << 30, total=80 << 30),
            "nvmlDeviceGetPowerUsage": lambda handle: 312_500,
            "nvmlDeviceGetTemperature": lambda handle, sensor: 61 + handle,
            "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=97, memory=40),
            "nvmlDeviceGetClockInfo": lambda handle, kind: clocks[kind],
            "nvmlDeviceGetTotalEccErrors": lambda handle, kind, counter: kind,
            "nvmlEventSetCreate": lambda: "events",
            "nvmlDeviceRegisterEvents": lambda handle, kinds, events: None,
            "nvmlEventSetWait_v2": lambda events, milliseconds: self._event(),
        }
        return answers[name](*args)

    def _event(self):
        if not self.events:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_TIMEOUT)
        device, xid = self.events.pop(0)
        return SimpleNamespace(device=device, eventType=pynvml.nvmlEventTypeXidCriticalError, eventData=xid)


@pytest.fixture
def on_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)


def test_a_line_has_what_host_and_gpus_say():
    telemetry = Telemetry(clock=lambda: 1_700_000_000.25, nvml=Nvml())
    telemetry.sample()
    [line] = telemetry.lines()
    assert line["time"] == "2023-11-14T22:13:20.250+00:00"
    assert all(0 < line[name] <= line["memory_total"] for name in ("rss", "memory_used"))
    assert line["load"] >= 0
    first, second = line["gpus"]
    assert first == {
        "index": 0, "memory_used": 5 << 30, "memory_total": 80 << 30, "power_watts": 312.5, "temperature": 61,
        "utilization": 97, "memory_utilization": 40, "sm_mhz": 1755, "memory_mhz": 2619, "ecc_corrected": 0,
        "ecc_uncorrected": 1,
    }  # fmt: skip
    assert "ecc_corrected" not in second and "error" not in second and second["temperature"] == 62
    assert json.loads(json.dumps(line, allow_nan=False)) == line


def test_an_xid_is_on_the_next_line_and_on_no_other():
    nvml = Nvml()
    telemetry = Telemetry(nvml=nvml)
    telemetry.sample()
    nvml.events = [(1, 79), (1, 48)]
    telemetry.sample()
    telemetry.sample()
    assert [[gpu.get("xid") for gpu in line["gpus"]] for line in telemetry.lines()] == [
        [None, None], [None, [79, 48]], [None, None],
    ]  # fmt: skip


def test_a_gpu_that_is_lost_is_said_and_the_other_goes_on():
    nvml = Nvml()
    telemetry = Telemetry(nvml=nvml)
    telemetry.sample()
    nvml.lost = {0}
    telemetry.sample()
    lost, other = telemetry.lines()[-1]["gpus"]
    assert "GPU is lost" in lost["error"] and lost.keys() == {"index", "error"}
    assert other["power_watts"] == 312.5


@given(st.integers(1, 20), st.integers(0, 60))
def test_the_ring_keeps_the_last(ring, samples):
    ticks = iter(range(samples))
    telemetry = Telemetry(ring, clock=lambda: float(next(ticks)), nvml=Nvml())
    for _ in range(samples):
        telemetry.sample()
    times = [line["time"][17:19] for line in telemetry.lines()]
    assert times == [f"{second:02}" for second in range(samples)][-ring:]


def test_without_nvml_there_are_no_gpus_and_one_note(on_gpu, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    telemetry = Telemetry()
    telemetry.sample(); telemetry.sample()
    assert [line.keys() & {"gpus"} for line in telemetry.lines()] == [set(), set()]
    [note] = telemetry.notes()
    assert note == "telemetry: no GPU was sampled: nvidia-ml-py is not installed; pip install 'reprokit[gpu]'"


def test_an_nvml_that_does_not_start_is_asked_once(on_gpu):
    class Broken(Nvml):
        def _answer(self, name, *args):
            self.calls.append(name)
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    nvml = Broken()
    telemetry = Telemetry(nvml=nvml)
    telemetry.sample(); telemetry.sample()
    assert nvml.calls == ["nvmlInit"] and len(telemetry.lines()) == 2
    [note] = telemetry.notes()
    assert "Driver Not Loaded" in note


def test_who_trains_on_the_cpu_is_told_nothing_of_gpus(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    telemetry = Telemetry()
    telemetry.sample()
    assert telemetry.notes() == []


def test_the_thread_samples_and_ends_and_shuts_nvml_down():
    nvml, enough = Nvml(), threading.Event()

    def clock():
        if len(telemetry.lines()) > 3:
            enough.set()
        return 0.0

    with (telemetry := Telemetry(every=0.001, clock=clock, nvml=nvml)):
        assert enough.wait(30)
        thread = telemetry._thread
    thread.join(30)  # who leaves waits a second at most
    assert not thread.is_alive() and nvml.up == 0
    taken = len(telemetry.lines())
    assert taken > 3 and telemetry.notes() == []


def test_who_comes_again_while_the_thread_before_is_in_a_driver_has_one_of_its_own(monkeypatch):
    monkeypatch.setattr("reprokit.capture.telemetry._LAST", 0.01)
    nvml, inside, go_on = Nvml(), threading.Event(), threading.Event()

    def clock():
        if threading.current_thread() is first:
            inside.set()
            go_on.wait(30)
        return 0.0

    first = None
    telemetry = Telemetry(every=0.001, clock=clock, nvml=nvml)
    with telemetry:
        first = telemetry._thread
        assert inside.wait(30)
    with telemetry:
        second = telemetry._thread
        assert second is not first and first.is_alive()
        go_on.set()
        first.join(30)
        assert not first.is_alive()
    second.join(30)
    assert not second.is_alive() and nvml.up == 0 and telemetry.notes() == []


def test_a_thread_that_dies_leaves_its_lines_and_a_note():
    ticks = iter([1.0, 2.0])
    with Telemetry(every=0.001, clock=lambda: next(ticks), nvml=Nvml()) as telemetry:
        telemetry._thread.join(30)
    assert len(telemetry.lines()) == 2
    [note] = telemetry.notes()
    assert note.startswith("telemetry: it ended: ")
