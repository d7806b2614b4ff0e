"""What the machine did while an attempt ran: lines by their time, numbers by their names."""

import time
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from reprokit.capture.telemetry import Telemetry
from reprokit.replay.engines.base import Engine
from reprokit.replay.gauges import Observed, between, means
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status


def line(seconds, **numbers):
    return {"time": datetime.fromtimestamp(seconds, UTC).isoformat(), **numbers}


def test_lines_of_a_time_or_the_last_before_its_end():
    lines = [line(second, load=second) for second in (1, 2, 3, 9)]
    assert [one["load"] for one in between(lines, 2, 3.5)] == [2, 3]
    assert [one["load"] for one in between(lines, 4, 5)] == [3]
    assert between(lines, 0, 0.5) == [] and between([{"load": 3}, {"time": 3}, {"time": "x"}], 0, 9) == []


def test_means_of_numbers_and_what_was_added_of_counts():
    gpus = [{"index": 0, "temperature": 60, "ecc_corrected": 5}, {"index": 1, "xid": [79]}]
    later = [{"index": 0, "temperature": 80, "ecc_corrected": 7}, "nonsense"]
    found = means([line(1, load=1.0, gpus=gpus, up=True), line(2, load=3.0, gpus=later)])
    assert found == {"load": 2.0, "gpu0.temperature": 70.0, "gpu0.ecc_corrected": 2.0, "gpu1.xid": 1.0}
    assert means([]) == {}


class Playing(Engine):
    name, capacity = "playing", 3

    def __init__(self, *answers):
        self.answers = list(answers)

    def submit(self, case):
        future, answer = Future(), self.answers.pop(0)
        future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)
        return future


def test_outcomes_get_it_and_errors_go_through(tmp_path):
    told = Outcome(status=Status.PASS, evidence={"modules": []}, total_seconds=1.0)
    inner = Playing(told, Outcome(status=Status.FAIL), RuntimeError("broke"), CancelledError())
    with Observed(inner, Telemetry(every=0.01)) as engine:
        assert (engine.name, engine.capacity) == ("playing", 3)
        first, second = (engine.submit(Case(incident=tmp_path)).result() for _ in range(2))
        for error in (RuntimeError, CancelledError):
            with pytest.raises(error):
                engine.submit(Case(incident=tmp_path)).result()
    assert first.evidence["modules"] == [] and first.evidence["host"]["memory_total"] > 0
    assert set(second.evidence) == {"host"}


def test_the_first_attempt_is_told_of_where_a_driver_answers_late(tmp_path):
    nvml = SimpleNamespace(nvmlInit=lambda: time.sleep(0.5), nvmlDeviceGetCount=lambda: 0)
    with Observed(Playing(Outcome(status=Status.PASS)), Telemetry(nvml=nvml)) as engine:
        assert engine.submit(Case(incident=tmp_path)).result().evidence["host"]["memory_total"] > 0
