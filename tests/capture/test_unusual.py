"""Modules, tensors and loaders that are not plain, captured and replayed bit for bit."""

from contextlib import suppress
from itertools import count

import pytest
import torch

import reprokit
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

COUNT = count()
TRAIN = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
import reprokit


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x)).mean((1, 2, 3))


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6).T)  # columns first

    def forward(self, x):
        return (x @ self.weight.T).mean((1, 2, 3))


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.net(x.to(memory_format=torch.channels_last)).mean((1, 2, 3))


class Again(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 4))

    def forward(self, x):
        return checkpoint(self.net, x, use_reentrant=False).mean((1, 2, 3))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 7).nan_to_num(0).long().clamp(0, 7)).mean((1, 2, 3, 4)) + x.mean((1, 2, 3))


class Compiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.compile(nn.Linear(4, 4), backend="aot_eager")

    def forward(self, x):
        return self.net(x).mean((1, 2, 3))


class Loader:
    def __init__(self):
        self.at = 0

    def state_dict(self):
        return {"at": self.at, "epoch": 1}

    def load_state_dict(self, state):
        self.at = state["at"]

    def __iter__(self):
        return iter(())


def build(config):
    torch.manual_seed(0)
    net = globals()[config["net"]]()
    if config["whole"]:
        net = torch.compile(net, backend="aot_eager")
    make = torch.optim.SparseAdam if config["net"] == "Rows" else torch.optim.AdamW
    options = {} if config["net"] == "Rows" else {"fused": config["fused"]}
    return reprokit.Harness(
        modules={"net": net}, optimizer=make(net.parameters(), lr=0.01, **options),
        step=lambda batch: net(batch["x"]).pow(2).mean(), layout={"x": "b c h w", "name": "b"}, loader=Loader(),
    )
"""


def run(tmp_path, net, *, fused=False, whole=False):
    name = f"train_unusual_{next(COUNT)}"
    source = tmp_path / name
    source.mkdir()
    (source / f"{name}.py").write_text(TRAIN)
    build = load_entrypoint(f"{name}:build", source)
    config = {"net": net, "fused": fused, "whole": whole}
    harness = build(config)
    recorder = reprokit.Recorder(harness, build=build, config=config, out=tmp_path / "out", rehearse=False)
    generator = torch.Generator().manual_seed(0)
    with suppress(reprokit.IncidentCaptured), recorder:
        for step in range(5):
            x = torch.randn(2, 3, 4, 4, generator=generator)
            if step == 4:
                x[1, 0, 2, 3] = float("nan")
            harness.loader.at = step
            recorder.step({"x": x.to(memory_format=torch.channels_last), "name": ["clips/a.mp4", "clips/b.mp4"]})
    return Incident.open(recorder.incidents[0])


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("net", ["Tied", "Turned", "Picture", "Again", "Rows", "Compiled"])
def test_what_is_not_plain_replays_bit_for_bit(tmp_path, net, fused):
    incident = run(tmp_path, net, fused=fused)
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint
    assert incident.batch()["x"].is_contiguous(memory_format=torch.channels_last)
    assert incident.batch()["name"] == ["clips/a.mp4", "clips/b.mp4"] and incident.manifest.left_out == ()


def test_a_module_that_is_compiled_as_a_whole_has_the_names_of_what_it_wraps(tmp_path):
    incident = run(tmp_path, "Tied", whole=True)
    assert set(incident.state()["parameters"]) == {"net.a.weight", "net.a.bias", "net.b.bias"}


def test_a_loader_that_can_say_where_it_is_is_asked(tmp_path):
    assert run(tmp_path, "Tied").loader() == {"at": 4, "epoch": 1}
