"""A capture that somebody asked for, in a step and between two, by a call and by a signal; training goes on."""

import os
import signal
import sys
import types

import pytest
import torch

from reprokit.capture.entrypoint import name_of
from reprokit.capture.recorder import Recorder
from reprokit.cli.main import run as cli
from reprokit.errors import BadInput
from reprokit.harness import take_state
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

TRAIN = """
import torch
from torch import nn
import reprokit


def build(config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1))

    def step(batch):
        loss = net(batch["x"]).square().mean()
        hook()
        return {"loss": loss}

    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={"x": "b d"})


hook = lambda: None
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("by-hand")
    (folder / "train_by_hand.py").write_text(TRAIN)
    load_entrypoint("train_by_hand:build", folder)
    return sys.modules["train_by_hand"]


@pytest.fixture
def recorder(train, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "hook", lambda: None)
    config = {"seed": 0}
    harness = train.build(config)
    return Recorder(harness, build=train.build, config=config, out=tmp_path / "out", rehearse=False)


def batch(step):
    return {"x": torch.rand(5, 3, generator=torch.Generator().manual_seed(step))}


def reason(incident):
    return (incident.path / "logs/reason.txt").read_text()


def test_between_two_steps_it_is_of_what_comes_next(recorder):
    for step in (1, 2, 3):
        recorder.step(batch(step))
    path = recorder.capture("the loss looks odd")
    now = take_state(recorder._harness)
    recorder.step(batch(4))
    incident = Incident.open(path)
    manifest = incident.manifest
    assert (manifest.signature, manifest.symptoms, manifest.step) == (None, (), 4) and recorder.incidents == [path]
    assert reason(incident) == "the loss looks odd"
    assert all(torch.equal(incident.state()["parameters"][name], value) for name, value in now["parameters"].items())
    assert torch.equal(incident.batch()["x"], batch(3)["x"]) and [s["step"] for s in incident.history()] == [1, 2, 3]
    assert any(line.startswith("batch: of the step after 3, which nobody has seen") for line in manifest.left_out)
    with Session(incident) as session:
        direct, back = (session.evaluate(Case(incident=path, rewind=rewind)) for rewind in (0, 3))
    assert direct.status is back.status is Status.PASS and direct.fingerprint == back.fingerprint


def test_in_a_step_it_is_of_that_step(recorder, train, monkeypatch):
    start = []
    for step in (1, 2):
        recorder.step(batch(step))
    made = []
    monkeypatch.setattr(train, "hook", lambda: made.append(recorder.capture("look")) if not made else None)
    start.append(take_state(recorder._harness))
    result = recorder.step(batch(3))
    incident = Incident.open(made[0])
    assert incident.manifest.step == 3 and torch.equal(incident.batch()["x"], batch(3)["x"])
    named = start[0]["parameters"].items()
    assert all(torch.equal(incident.state()["parameters"][name], value) for name, value in named)
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
    assert outcome.status is Status.PASS and outcome.losses["loss"] == result["loss"].item()


def test_before_any_step_there_is_nothing_to_capture(recorder):
    with pytest.raises(BadInput, match="no step has ended yet"):
        recorder.capture("too early")
    assert recorder.incidents == []


def test_a_signal_asks_for_one_at_the_end_of_the_step(recorder, train, monkeypatch):
    with recorder:
        recorder.step(batch(1))
        monkeypatch.setattr(train, "hook", lambda: os.kill(os.getpid(), signal.SIGUSR1))
        recorder.step(batch(2))
        monkeypatch.setattr(train, "hook", lambda: None)
        recorder.step(batch(3))
    [path] = recorder.incidents
    incident = Incident.open(path)
    assert (incident.manifest.step, reason(incident)) == (3, "SIGUSR1")
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_what_cannot_be_written_is_a_line_and_stops_nothing(train, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    config = {"seed": 0}
    recorder = Recorder(train.build(config), build=train.build, config=config, out=tmp_path / "file", rehearse=False)
    recorder.step(batch(1))
    assert recorder.capture("why") is None
    recorder.step(batch(2))
    assert "no incident could be written" in caplog.text


def test_show_says_what_was_asked_for_and_reduce_that_there_is_nothing(recorder, tmp_path, capsys):
    recorder.step(batch(1))
    path = recorder.capture("the loss looks odd")
    for words, code, says in (
        (["show", path], 0, "the loss looks odd"),
        (["reduce", path, "-o", tmp_path / "reduced"], 2, "nothing failed"),
    ):
        with pytest.raises(SystemExit) as end:
            cli(list(map(str, words)))
        said = capsys.readouterr()
        assert end.value.code == code and says in said.out + said.err, said


def test_a_build_of_a_notebook_cell_is_refused_in_one_line(monkeypatch):
    cell = types.ModuleType("__main__")  # as a kernel has it: without a file
    exec(compile("def build(config): ...", "<ipython-input-3-abc>", "exec"), cell.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", cell)
    with pytest.raises(BadInput, match=r"__main__, which has no file \(a notebook or a prompt\?\).*import it") as told:
        name_of(cell.build)
    assert "\n" not in str(told.value)
