"""`locate` where the state was bad before the step began: what made it bad is told, not its victims."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.cli.main import run
from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Incident
from reprokit.reduce.isolation import NotReproduced
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Outcome, Status
from reprokit.triage.locate import locate

SCRIPT = """
import torch
from torch import nn
import reprokit


class Center:  # no module: nobody looks for bad values in it
    def __init__(self):
        self.mean, self.best = torch.zeros(2), float("inf")

    def state_dict(self):
        return {"mean": self.mean, "best": self.best}

    def load_state_dict(self, state):
        self.mean, self.best = state["mean"], state["best"]


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    net.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))
    center = Center()

    def step(batch):
        out = net(batch["x"])
        with torch.no_grad():
            if config["how"] == "torch":
                scaled = batch["x"] / batch["x"].std(1, keepdim=True)
                center.mean.lerp_(scaled[:, :2].mean(0), 0.1)
            elif not batch["x"].std(1).all():
                center.mean.numpy()[:] = float("nan")
        use = optimizer.param_groups[0]["use"]
        return {"loss": (net.mask + 1).softmax(1).sum() + (out - (center.mean if use else 0.0)).pow(2).mean()}

    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.param_groups[0]["use"] = False
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"},
                            extra_state={"center": center})
"""
FAILS, POISONED = 7, 4
ENTRY = "extra_state center.mean"


def captured(folder, name, how="torch", history=5, at_start=0.0):
    (folder / f"{name}.py").write_text(SCRIPT)
    build = load_entrypoint(f"{name}:build", folder)
    harness = build({"how": how})
    harness.extra_state["center"].mean.fill_(at_start)
    recorder = Recorder(harness, build=build, config={"how": how}, out=folder, rehearse=False, history=history)
    for step in range(1, FAILS + 1):
        harness.optimizer.param_groups[0]["use"] = step == FAILS
        x = torch.rand(5, 3, generator=torch.Generator().manual_seed(step))
        if step == POISONED:
            x[2] = 0.5  # its deviation is 0
        with suppress(IncidentCaptured):
            recorder.step({"x": x})
    return Incident.open(recorder.incidents[0])


def located(incident):
    with Session(incident) as session:
        return locate(incident, session.evaluate, lambda: session.arguments)


def test_the_step_that_poisoned_the_state_is_named(tmp_path):
    found = located(captured(tmp_path, "poisoned_by_torch"))
    told = found.description
    assert (told["op"], told["phase"], told["step"]) == ("aten.div.Tensor", "forward", POISONED)
    assert told["bad_before"] == [ENTRY]  # neither the mask nor the best loss so far
    assert told["spoiled_in"] == POISONED and told["rewind"] and not told["note"]
    assert found.arguments and "in step" in told["stack"][-1]


def test_what_no_torch_operation_wrote_is_placed_between_two_steps(tmp_path):
    told = located(captured(tmp_path, "poisoned_by_numpy", how="numpy")).description
    assert (told["op"], told["producer"], told["step"]) == (None, ENTRY, POISONED + 1)
    assert f"step {POISONED}, or what the loop did after it" in told["note"]


def test_without_a_history_or_before_it_that_is_said(tmp_path):
    told = located(captured(tmp_path, "poisoned_for_long", history=0)).description
    assert (told["op"], told["producer"], told["step"]) == (None, ENTRY, FAILS)
    assert told["bad_before"] == [ENTRY] and "holds no earlier steps" in told["note"]
    incident = captured(tmp_path, "poisoned_from_the_start", at_start=float("nan"))
    told = located(incident).description
    assert told["producer"] == ENTRY and f"bad before all {incident.rewindable()} steps" in told["note"]


@pytest.mark.slow
def test_for_people_the_state_comes_first(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        run(["locate", str(captured(tmp_path, "poisoned_for_people").path)])
    lines = capsys.readouterr().out.splitlines()
    assert end.value.code == 0
    assert lines[1] == f"the state was bad before step {FAILS} began: {ENTRY}"
    assert lines[2] == f"aten.div.Tensor, forward, step {POISONED}"


def subject(**change):
    manifest = SimpleNamespace(signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss"))
    return SimpleNamespace(path=Path("here"), manifest=manifest, **change)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (Status.PASS, NotReproduced, 11), (Status.OTHER, NotReproduced, 11), (Status.INFRA, Infrastructure, 3),
        (Status.INVALID, BadInput, 2),
    ],
)  # fmt: skip
def test_what_cannot_be_located_has_the_exit_code_that_replay_gives(status, kind, code):
    with pytest.raises(kind) as error:
        locate(subject(), lambda case: Outcome(status=status, detail="a\nthe last line"), lambda: None)
    assert error.value.exit_code == code and "\n" not in str(error.value)


TOLD = {"op": "x", "producer": "x", "phase": "forward", "inputs": [], "outputs": []}
TOLD |= {"bad_before": [], "spoiled_in": None}
GOOD = {"dtype": "float32", "nan": 0, "inf": 0}


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ([GOOD], [GOOD | {"nan": 1}], ""),
        ([GOOD | {"inf": 1}], [GOOD | {"nan": 1}], ""),  # the NaN is of its making
        ([GOOD, GOOD | {"dtype": "float", "inf": 1}], [GOOD | {"inf": 1}], "handed it a number that is not finite"),
        ([GOOD | {"nan": 1}], [GOOD | {"nan": 1}], "no torch operation made that"),
    ],
)
def test_an_operation_that_only_passed_on_what_it_read_is_told_as_such(inputs, outputs, says):
    outcome = Outcome(status=Status.FAIL, located=TOLD | {"inputs": inputs, "outputs": outputs})
    note = locate(subject(), lambda case: outcome, lambda: None).description["note"]
    assert says in note and bool(says) == bool(note)


def test_an_exception_of_python_is_told_with_its_message():
    symptom = Symptom(kind=Kind.EXCEPTION, where="forward", evidence={"message": "one sample only\nand more"})
    outcome = Outcome(status=Status.FAIL, located=TOLD | {"op": None}, symptoms=(symptom,))
    assert locate(subject(), lambda case: outcome, lambda: None).description["note"] == "one sample only"


def test_a_history_that_leads_elsewhere_costs_no_answer():
    outcome = Outcome(status=Status.FAIL, located=TOLD | {"bad_before": ["y"]})
    answers = lambda case: replace(outcome, status=Status.PASS, located=None) if case.rewind else outcome
    found = locate(subject(rewindable=lambda: 3), answers, lambda: "kept")
    assert found.description["op"] == "x" and found.arguments == "kept"
    assert "going back 3 steps does not lead to it again" in found.description["note"]
