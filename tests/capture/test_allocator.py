"""Where memory went, when there was none left."""

import json
import sys

import pytest
import torch

from reprokit.capture import allocator
from reprokit.capture.recorder import Recorder
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.load import load_entrypoint

SNAPSHOT = {
    "segments": [
        {
            "device": 0, "total_size": 100, "allocated_size": 60,
            "blocks": [
                {"size": 40, "state": "active_allocated"},
                {"size": 20, "state": "active_allocated"},
                {"size": 30, "state": "inactive"},
                {"size": 10, "state": "active_pending_free"},
            ],
        },
        {"device": 0, "total_size": 50, "allocated_size": 0, "blocks": [{"size": 50, "state": "inactive"}]},
        {"device": 1, "total_size": 8, "allocated_size": 8, "blocks": [{"size": 8, "state": "active_allocated"}] * 9},
    ]
}  # fmt: skip
TRAIN = """
import torch
import reprokit


def build(config):
    net = torch.nn.Linear(1, 1)

    def step(batch):
        if batch["x"].max() > 2:
            torch.empty(2 ** 50)
        return net(batch["x"]).square().mean()

    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), step=step,
                            layout={"x": "b d"})
"""


def test_a_snapshot_in_a_few_numbers_a_device():
    found = allocator.summary(SNAPSHOT)
    assert found["0"] == {"segments": 2, "reserved": 150, "allocated": 60, "largest_free": 50, "largest": [40, 20]}
    assert found["1"]["largest"] == [8] * allocator.LARGEST


def test_the_host_is_always_described():
    host = allocator.evidence()["host"]
    assert 0 < host["resident"] < host["total"] and host["available"] <= host["total"]


def test_what_cannot_be_asked_is_left_out(monkeypatch):
    monkeypatch.setattr(allocator, "_host", lambda: 1 / 0)
    assert "host" not in allocator.evidence() and allocator.text({}) == "{}\n"


def test_out_of_memory_is_captured_with_it(tmp_path):
    (tmp_path / "train_oom.py").write_text(TRAIN)
    build = load_entrypoint("train_oom:build", tmp_path)
    recorder = Recorder(build({}), build=build, config={}, out=tmp_path / "out", rehearse=False)
    recorder.step({"x": torch.ones(2, 1)})
    with pytest.raises(RuntimeError, match="memory"):
        recorder.step({"x": torch.full((2, 1), 3.0)})
    incident = Incident.open(recorder.incidents[0])
    [symptom] = incident.manifest.symptoms
    assert incident.manifest.signature.kind is symptom.kind is Kind.OOM
    assert symptom.evidence["host"]["resident"] > 0 and symptom.evidence["type"] == "RuntimeError"
    written = json.loads((incident.path / "logs/memory.txt").read_text())
    assert written["host"] == symptom.evidence["host"]
    assert "train_oom.py" in (incident.path / "logs/traceback.txt").read_text()
    sys.modules.pop("train_oom")
