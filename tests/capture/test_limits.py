"""What detectors find beyond non-finite values is captured, and comes again in a replay that has no steps before it."""

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import torch

import reprokit
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

ZOO = Path(__file__).parents[1] / "zoo"
COUNT = count()
TRAIN = """
import torch
from torch import nn
import reprokit


def build(config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(batch):
        out = net(batch["x"]) * batch["x"].abs().mean()
        if batch["x"].mean() > 100:  # adds nothing but a gradient that overflows once it is scaled
            out = out + 3e38 * (net[3].weight - net[3].weight.detach()).sum()
        return {"loss": (out - 1).pow(2).clamp(max=1e6).mean(), "out": out.detach().mean()}

    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"},
                            features=lambda batch: net[1](net[0](batch["x"])).round(decimals=2),
                            scaler=torch.amp.GradScaler("cpu") if config["overflow"] else None)
"""


@pytest.fixture
def record(tmp_path):
    """record(steps): train on batches of these, until one is captured."""

    def run(batches, *, overflow=False, **options):
        name = f"train_limits_{next(COUNT)}"
        (tmp_path / f"{name}.py").write_text(TRAIN)
        build = load_entrypoint(f"{name}:build", tmp_path)
        config = {"overflow": overflow}
        recorder = reprokit.Recorder(
            build(config), build=build, config=config, out=tmp_path / "out", rehearse=False, **options
        )
        for batch in batches:
            with suppress(reprokit.IncidentCaptured):
                recorder.step(batch)
            if recorder.incidents:
                return Incident.open(recorder.incidents[0])
        return None

    return run


def batch_of(step, factor=1.0):
    return {"x": torch.rand(5, 4, generator=torch.Generator().manual_seed(step)) * factor}


def comes_again(incident):
    """In a new session; with what healing it and not running all of it come to."""
    with Session(incident) as session:
        case = lambda **change: session.evaluate(Case(incident=incident.path, **change))
        again = case()
        assert again.status is Status.FAIL, again.detail
        assert (again.signature, again.fingerprint) == (incident.manifest.signature, incident.manifest.fingerprint)
        told = lambda symptoms: [(s.kind, s.where, s.evidence["value"], s.evidence["threshold"]) for s in symptoms]
        assert told(again.symptoms) == told(incident.manifest.symptoms)
        assert case(content="donor").status is Status.PASS
        assert case(heal=({},)).status is Status.PASS
        short = case(thorough=False)
        assert short.status is Status.FAIL
        return short, case


def test_a_spike_over_the_runs_own_past_is_captured_and_replayed_by_its_threshold(record):
    steps = [*(batch_of(i) for i in range(45)), batch_of(45)]
    steps[-1]["x"][3] *= 300
    incident = record(steps)
    [symptom] = incident.manifest.symptoms[:1]
    assert (symptom.kind, incident.manifest.step) == (Kind.LOSS_SPIKE, 46)
    assert symptom.evidence["value"] > symptom.evidence["threshold"] > symptom.evidence["mean"]
    short, case = comes_again(incident)
    assert set(short.fingerprint) == {"losses"}  # a loss needs no backward pass
    assert case(heal=({"b": (3,)},)).status is Status.PASS and case(heal=({"b": (0, 1, 2, 4)},)).status is Status.FAIL
    assert case(keep={"b": (1, 3)}).status is Status.FAIL and case(keep={"b": (0, 1)}).status is Status.PASS
    assert case(rewind=incident.rewindable()).fingerprint == incident.manifest.fingerprint


def test_a_norm_of_gradients_above_its_bound_is_captured_and_replayed(record):
    steps = [batch_of(1), batch_of(2)]
    steps[-1]["x"][0] *= 100
    incident = record(steps, limits=reprokit.Limits(grad_norm_above=30))
    assert incident.manifest.signature.kind is Kind.GRAD_SPIKE
    short, _ = comes_again(incident)
    assert "parameters/net" not in short.fingerprint  # no optimizer step


def test_a_scaler_that_stalls_is_captured_with_the_last_batch_that_it_did_not_skip(record):
    steps = [batch_of(1), *[batch_of(2, 1000.0)] * 5]
    incident = record(steps, overflow=True, limits=reprokit.Limits(scaler_skips=4))
    signature = incident.manifest.signature
    assert (signature.kind, signature.where, incident.manifest.step) == (Kind.SCALER_STALL, "optimizer", 5)
    assert incident.state()["loop"] == {"micro": 0, "skips": 3}
    assert torch.equal(incident.donor()["x"], steps[0]["x"])
    _, case = comes_again(incident)
    for back in range(1, incident.rewindable() + 1):
        assert case(rewind=back).fingerprint == incident.manifest.fingerprint, back
    assert case(rewind=3, heal=({"s": (2,)},)).status is Status.PASS  # the row of skips is broken


def test_single_skips_are_no_failure_and_neither_is_their_batch_a_donor(record):
    steps = [batch_of(i, 1000.0 if i % 2 else 1.0) for i in range(12)]
    assert record(steps, overflow=True, limits=reprokit.Limits(scaler_skips=2)) is None
    steps = [batch_of(1), batch_of(2, 1000.0), {"x": torch.full((5, 4), float("nan"))}]
    incident = record(steps, overflow=True)
    assert torch.equal(incident.donor()["x"], steps[0]["x"])
    assert torch.equal(incident.history()[-1]["batch"]["x"], steps[1]["x"])


def test_a_collapse_is_captured_and_replayed(record):
    steps = [batch_of(1), {"x": torch.full((5, 4), 0.5)}]
    incident = record(steps, limits=reprokit.Limits(collapse_every=2))
    assert incident.manifest.signature.kind is Kind.COLLAPSE
    short, _ = comes_again(incident)
    assert set(short.fingerprint) == {"losses"}
    about = json.loads((incident.path / "ranks/00/inputs.json").read_text())
    assert about["x"]["notes"] == ["constant 0.5"]


def test_a_collapse_that_is_seen_late_comes_again_at_its_step_from_the_steps_before(record):
    """Nobody had looked at those: in a replay nobody does either."""
    steps = [{"x": torch.full((5, 4), 0.1 * i)} for i in range(1, 9)]
    incident = record(steps, limits=reprokit.Limits(collapse_every=3))
    assert incident.manifest.step == 3 and incident.rewindable() == 2
    with Session(incident) as session:
        again = session.evaluate(Case(incident=incident.path, rewind=2))
    assert again.status is Status.FAIL and again.fingerprint == incident.manifest.fingerprint


@pytest.mark.slow
@pytest.mark.parametrize(("name", "times"), [("z13", 2), ("z15", 1), ("z44", 1)])
def test_known_mechanisms_are_captured_with_their_kind_and_replay(name, times, tmp_path):
    for file in ("adapter.py", f"{name}.py"):
        shutil.copy(ZOO / file, tmp_path)
    (tmp_path / "go.py").write_text(
        f"import adapter\nadapter.main({name!r}, 'incidents', times={times}, rehearse=False)\n"
    )
    subprocess.run([sys.executable, "go.py"], cwd=tmp_path, check=True, timeout=120)
    [path] = (tmp_path / "incidents").iterdir()
    incident = Incident.open(path)
    expected = {"z13": Kind.SCALER_STALL, "z15": Kind.LOSS_SPIKE, "z44": Kind.OOM}[name]
    assert expected in [symptom.kind for symptom in incident.manifest.symptoms]
    with Worker(incident) as worker:
        again = worker.evaluate(Case(incident=path), "process", timeout=120)
        donor = worker.evaluate(Case(incident=path, content="donor"), "process", timeout=120)
    assert again.status is Status.FAIL and again.signature == incident.manifest.signature
    assert again.fingerprint == incident.manifest.fingerprint
    assert donor.status is Status.PASS, donor.detail
