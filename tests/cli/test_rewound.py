"""A reduction that went back in history is replayed with its history, by every command that is suggested for it."""

import json
import os
import shlex
import subprocess
import sys
from contextlib import suppress

import pytest
import torch

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import evaluate
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

pytestmark = pytest.mark.slow

SCRIPT = """
import torch
from torch import nn
import reprokit


class Center:
    def __init__(self):
        self.mean = torch.zeros(2)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


def build(config):
    torch.manual_seed(0)
    net, center = nn.Linear(3, 2), Center()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(batch):
        out, before = net(batch["x"].nan_to_num()), center.mean.clone()
        with torch.no_grad():
            center.mean.lerp_(batch["x"].mean(0)[:2], 0.1)
        return {"loss": (out - (before if optimizer.param_groups[0]["use"] else 0.0)).pow(2).mean()}

    optimizer.param_groups[0]["use"] = False
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"},
                            extra_state={"center": center})
"""


@pytest.fixture
def poisoned(tmp_path):
    (tmp_path / "train_rewound.py").write_text(SCRIPT)
    build = load_entrypoint("train_rewound:build", tmp_path)
    harness = build({})
    recorder = Recorder(harness, build=build, config={}, out=tmp_path / "out", rehearse=False, history=3)
    for step in range(1, 7):
        harness.optimizer.param_groups[0]["use"] = step == 6
        x = torch.rand(3, 3, generator=torch.Generator().manual_seed(step))
        if step == 4:
            x[1, 0] = float("nan")
        with suppress(IncidentCaptured):
            recorder.step({"x": x})
    [path] = recorder.incidents
    return Incident.open(path)


def test_what_is_suggested_works_and_goes_back(cli, poisoned, tmp_path):
    back = poisoned.rewindable()
    code, said, err = cli("reduce", poisoned.path, "-o", tmp_path / "small er", "--rewind", back, "--verify", 1)
    assert code == 0, err
    verb = shlex.split(said.splitlines()[-1].removeprefix("next: "))
    assert verb[:2] == ["reprokit", "replay"]
    smaller = Incident.open(verb[2])
    code, said, err = cli(*verb[1:], "--engine", "process", "-n", 2, "--json")
    found = json.loads(said)
    assert (code, found["fail"]) == (0, 2), err
    assert found["attempts"][0]["fingerprint"] == smaller.manifest.fingerprint  # of the run with its history
    alone = evaluate(Case(incident=smaller.path), smaller)
    assert alone.status is Status.FAIL and alone.fingerprint != smaller.manifest.fingerprint  # it fails, but otherwise

    file, unpacked = tmp_path / "b.tar.zst", tmp_path / smaller.path.name
    assert cli("bundle", smaller.path, "-o", file)[0] == 0
    subprocess.run(["tar", "--zstd", "-xf", file], cwd=tmp_path, check=True)
    done = subprocess.run(
        [sys.executable, "-I", str(unpacked / "reproduce.py"), "-n", "1", "--json"], cwd="/", text=True,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["attempts"][0]["fingerprint"] == smaller.manifest.fingerprint


def test_a_reduction_is_reduced_again_with_its_history(cli, poisoned, tmp_path):
    assert cli("reduce", poisoned.path, "-o", tmp_path / "small", "--rewind", 3, "--verify", 1)[0] == 0
    [smaller] = (tmp_path / "small").iterdir()
    for options, steps in ([], 3), (["--rewind", 0], 0):
        out = tmp_path / f"smaller by {steps}"
        code, said, err = cli("reduce", smaller, "-o", out, "--verify", 1, "--json", *options)
        assert code == 0, err
        assert Incident.open(json.loads(said)["path"]).manifest.certificate["rewind"] == steps
