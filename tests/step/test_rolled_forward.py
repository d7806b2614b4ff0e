"""An incident that holds an anchor and steps, and not the failing step's own start: that is made by running them."""

import json
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.cli.main import run as cli
from reprokit.failure import Kind
from reprokit.incident import Draft, Incident
from reprokit.reduce.publish import publish
from reprokit.reduce.reducer import reduce
from reprokit.step.case import Case, Variant
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

TRAIN = """
import torch
from torch import nn
import reprokit


def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.3), nn.Linear(6, 1))
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), accumulate=2,
                            step=lambda batch: {"loss": net(batch["x"]).square().mean()}, layout={"x": "b d"})
"""
FAILS, REPLAYED = 6, {"verdict": "REPRODUCIBLE", "n": 3, "fail": 3}


def batch(step):
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(step))
    if step == FAILS:
        x[2] = float("nan")
    return {"x": x}


def rolled(incident, out, *, keep=None):
    """The same incident without its state, and with the last `keep` steps alone."""
    manifest, state = incident.manifest, incident.state()
    gone = [] if keep is None else [f"ranks/00/history/{step['step']}" for step in incident.history()[: -keep or None]]
    with Draft(out) as draft:
        incident.copy_into(draft, except_=("state/state.json", "state/state.safetensors", *gone))
        draft.write_json("state/loop.json", state["loop"])
        if keep == 0:
            draft.write_tree("state", "anchor", state)
        return draft.publish(
            f"rolled{'' if keep is None else keep}",
            signature=manifest.signature,
            symptoms=manifest.symptoms,
            step=manifest.step,
            entrypoint=manifest.entrypoint,
            layout=manifest.layout,
            fingerprint=dict(manifest.fingerprint),
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("rolled")


@pytest.fixture(scope="module")
def whole(folder):
    (folder / "train_rolled.py").write_text(TRAIN)
    build = load_entrypoint("train_rolled:build", folder)
    config = {"seed": 1}
    recorder = Recorder(build(config), build=build, config=config, out=folder / "out", rehearse=False, history=4)
    for step in range(1, FAILS + 1):
        with suppress(IncidentCaptured):
            recorder.step(batch(step))
    return Incident.open(recorder.incidents[0])


@pytest.fixture(scope="module")
def incident(whole, folder):
    return rolled(whole, folder)


def test_the_start_is_made_by_running_the_steps_and_is_the_captured_one(whole, incident):
    assert incident.rolls_forward and not whole.rolls_forward and incident.state() is None
    with Session(incident) as session:
        made = session._state_before(Case(incident=incident.path), "restore")
    state = whole.state()
    assert all(torch.equal(made["parameters"][name], value) for name, value in state["parameters"].items())
    assert all(torch.equal(made["buffers"][name], value) for name, value in state["buffers"].items())
    assert all(torch.equal(made["gradients"][name], value) for name, value in state["gradients"].items())
    memory = [one["optimizers"]["optimizer"]["state"] for one in (made, state)]
    assert all(torch.equal(memory[0][name][key], value[key]) for name, value in memory[1].items() for key in value)


@pytest.mark.parametrize("isolation", ["restore", "rebuild"])
def test_it_fails_as_captured_whatever_was_asked_before(whole, incident, isolation):
    with Session(incident) as session:
        for change in ({}, {"rewind": 1}, {"heal": ({},)}, {"keep": {"b": (2, 3)}}, {"rewind": 4}, {}):
            outcome = session.evaluate(Case(incident=incident.path, **change), isolation)
            assert outcome.status is (Status.PASS if "heal" in change else Status.FAIL), outcome.detail
    assert outcome.fingerprint == whole.manifest.fingerprint


def test_another_config_starts_from_the_state_that_the_captured_one_makes(incident):
    with Session(incident) as session:
        changed = session.evaluate(Case(incident=incident.path, variant=Variant(config={"seed": 2}), heal=({},)))
        plain = session.evaluate(Case(incident=incident.path, heal=({},)))
    assert changed.status is Status.PASS and changed.losses == plain.losses


def test_an_anchor_of_the_very_step_is_its_state(whole, folder):
    incident = rolled(whole, folder, keep=0)
    assert (incident.rewindable(), incident.rolls_forward) == (0, True)
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
    assert outcome.status is Status.FAIL and outcome.fingerprint == whole.manifest.fingerprint


@pytest.mark.parametrize("rewind", [0, 2])
def test_a_reduction_keeps_the_steps_that_lead_to_it(incident, tmp_path, rewind):
    with Session(incident) as session:
        found = reduce(incident, session.evaluate, rewind=rewind)
    assert found.axes["b"].guilty == (2,)
    smaller = Incident.open(publish(incident, replace(found, verified=REPLAYED), tmp_path).path)
    assert smaller.rolls_forward and smaller.rewindable() == incident.rewindable()
    with Session(smaller) as session:
        outcome = session.evaluate(Case(incident=smaller.path, rewind=rewind))
    assert outcome.status is Status.FAIL and outcome.fingerprint == smaller.manifest.fingerprint


def test_a_step_that_fails_on_the_way_is_named(whole, tmp_path):
    bad, says = rolled(whole, tmp_path), ("signature", "step", "entrypoint", "layout")
    step = bad.history()[0]["step"]
    folder = f"ranks/00/history/{step}"
    with Draft(tmp_path) as draft:
        bad.copy_into(draft, except_=(f"{folder}/batch.json", f"{folder}/batch.safetensors"))
        draft.write_tree(folder, "batch", batch(FAILS))
        made = draft.publish("broken", **{name: getattr(bad.manifest, name) for name in says})
    with Session(made) as session:
        outcome = session.evaluate(Case(incident=made.path))
    assert outcome.status is Status.INVALID and "\n" not in outcome.detail
    assert f"history: step {step} was healthy at capture and fails here" in outcome.detail


def test_show_and_replay_take_it(incident, capsys):
    for words in (["show", incident.path], ["replay", incident.path, "-n", 2, "--engine", "inline", "--json"]):
        with pytest.raises(SystemExit) as end:
            cli(list(map(str, words)))
        said = capsys.readouterr().out
        assert end.value.code == 0
        if words[0] == "show":
            assert f"made by running the {incident.rewindable()} steps before" in said
        else:
            assert json.loads(said)["fail"] == 2


@pytest.mark.slow
def test_a_fresh_process_runs_it(whole, incident):
    with Worker(incident) as worker:
        outcome = worker.evaluate(Case(incident=incident.path), "process", timeout=120)
    assert outcome.status is Status.FAIL and outcome.fingerprint == whole.manifest.fingerprint
    assert outcome.signature.kind is Kind.NONFINITE_LOSS
