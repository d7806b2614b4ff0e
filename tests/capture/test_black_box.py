"""What a process leaves that dies in its step: an incident, whole, whose step runs as it would have run there."""

import faulthandler
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reprokit.capture.black_box import PLACE, WANTED
from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.capture.remains import Death, finish, in_step
from reprokit.failure import Kind
from reprokit.harness import take_state
from reprokit.incident import DRAFT_PREFIX, Incident
from reprokit.step import memory
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
        hook()
        return {"loss": net(batch["x"]).square().mean()}

    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={"x": "b d"}, accumulate=2)


hook = lambda: None
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("box")
    (folder / "train_in_box.py").write_text(TRAIN)
    load_entrypoint("train_in_box:build", folder)
    return sys.modules["train_in_box"]


@pytest.fixture
def boxes(tmp_path, monkeypatch):
    folder = tmp_path / "boxes"
    folder.mkdir()
    monkeypatch.setenv(PLACE, str(folder))
    return folder


@pytest.fixture
def make(train, tmp_path, monkeypatch):
    """make(**options) -> a recorder of which nothing is left over."""
    made = []

    def recorder(**options):
        monkeypatch.setattr(train, "hook", lambda: None)
        config = {}
        options = {"black_box": True, "rehearse": False} | options
        made.append(Recorder(train.build(config), build=train.build, config=config, out=tmp_path / "out", **options))
        return made[-1]

    yield recorder
    for one in made:
        one._box.close()


def batch(step):
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(step))
    return {"x": x}


def dies_in(recorder, train, monkeypatch, boxes, step, **death):
    """The incident of a process that would die in this step, which then goes on; and what it would have found."""
    made = []

    def hook():
        if not made:
            [box] = boxes.iterdir()
            assert in_step(box) == step
            made.append(finish(box, Death(**({"signal": signal.SIGSEGV} | death))))

    for earlier in range(recorder.steps + 1, step):
        recorder.step(batch(earlier))
    monkeypatch.setattr(train, "hook", hook)
    state = take_state(recorder._harness)
    found = recorder.step(batch(step))
    return Incident.open(made[0]), state, found["loss"].item()


@pytest.mark.parametrize("step", [1, 2, 5, 23])
def test_the_step_runs_as_it_would_have_run(make, train, monkeypatch, boxes, step):
    incident, state, loss = dies_in(make(), train, monkeypatch, boxes, step)
    manifest = incident.manifest
    assert (manifest.signature.kind, manifest.signature.where, manifest.step) == (Kind.CRASH, "step", step)
    assert manifest.symptoms[0].evidence == {"signal": "SIGSEGV"} and manifest.entrypoint == "train_in_box:build"
    assert incident.rolls_forward and incident.rewindable() == min(step - 1, incident.rewindable())
    assert incident.rewindable() >= min(step - 1, 4)
    assert torch.equal(incident.batch()["x"], batch(step)["x"])
    donor = incident.donor()
    assert donor is None if step == 1 else torch.equal(donor["x"], batch(step - 1)["x"])
    with Session(incident) as session:
        made = session._state_before(Case(incident=incident.path), "restore")
        outcome = session.evaluate(Case(incident=incident.path))
    for part in ("parameters", "buffers", "gradients"):
        assert made[part].keys() == state[part].keys()
        assert all(torch.equal(made[part][name], value) for name, value in state[part].items())
    assert outcome.status is Status.PASS and outcome.losses["loss"] == loss


def test_what_the_loop_does_between_steps_is_in_it(make, train, monkeypatch, boxes):
    recorder = make()
    for step in range(1, 7):
        recorder._harness.optimizer.param_groups[0]["lr"] = 0.1 / step
        recorder.step(batch(step))
    recorder._harness.optimizer.param_groups[0]["lr"] = 0.5
    incident, _, loss = dies_in(recorder, train, monkeypatch, boxes, 7)
    with Session(incident) as session:
        state = session._state_before(Case(incident=incident.path), "restore")
        assert state["optimizers"]["optimizer"]["groups"][0]["lr"] == 0.5
        assert session.evaluate(Case(incident=incident.path)).losses["loss"] == loss


def test_a_batch_that_its_step_or_the_loader_writes_into_is_held_as_it_was(make, train, monkeypatch, boxes):
    recorder = make()
    same = batch(1)
    for step in range(1, 4):
        same["x"].copy_(batch(step)["x"])
        recorder.step(same)
    incident, _, _ = dies_in(recorder, train, monkeypatch, boxes, 4)
    assert all(torch.equal(one["batch"]["x"], batch(one["step"])["x"]) for one in incident.history())


def test_without_a_history_the_state_itself_is_held(make, train, monkeypatch, boxes):
    incident, _, loss = dies_in(make(history=0), train, monkeypatch, boxes, 3)
    assert incident.rewindable() == 0
    with Session(incident) as session:
        assert session.evaluate(Case(incident=incident.path)).losses["loss"] == loss


def test_it_holds_no_more_than_the_history(make, boxes):
    recorder = make()
    for step in range(1, 30):
        recorder.step(batch(step))
    [box] = boxes.iterdir()
    held = recorder._history.past(30).entries
    assert len(list((box / "anchors").iterdir())) == 1 and len(list((box / "steps").iterdir())) == len(held) < 29


def test_between_steps_nobody_is_in_one(make, boxes):
    recorder = make()
    recorder.step(batch(1))
    [box] = boxes.iterdir()
    assert in_step(box) is None


def test_a_child_that_is_forked_in_a_step_leaves_its_parents_box_alone(make, train, monkeypatch, boxes):
    """It leaves the step as its parent does."""
    recorder, found = make(), []

    def fork():
        if (child := os.fork()) == 0:
            train.hook = lambda: None
            raise SystemExit
        os.waitpid(child, 0)
        found.append(in_step(next(boxes.iterdir())))

    monkeypatch.setattr(train, "hook", fork)
    try:
        recorder.step(batch(1))
    except SystemExit:
        os._exit(0)
    assert found == [1] and in_step(next(boxes.iterdir())) is None


def test_a_step_that_fails_is_over(make, boxes):
    recorder = make()
    with recorder, pytest.raises(IncidentCaptured):
        recorder.step({"x": torch.full((5, 3), float("nan"))})
    assert list(boxes.iterdir()) == [] and len(recorder.incidents) == 1


def test_a_run_that_ends_well_leaves_no_box(make, boxes):
    with make() as recorder:
        recorder.step(batch(1))
        assert len(list(boxes.iterdir())) == 1
    assert list(boxes.iterdir()) == []


def test_a_stderr_that_is_no_file_keeps_no_run_from_its_end(make, boxes, monkeypatch):
    faulthandler.enable()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", io.StringIO())
        with make() as recorder:
            recorder.step(batch(1))
    faulthandler.enable()
    assert list(boxes.iterdir()) == []


WANTS = [(None, "1", 1), (None, "0", 0), (False, "1", 0), (True, "", 1)]


@pytest.mark.parametrize(("wanted", "variable", "kept"), WANTS)
def test_who_wants_one(make, boxes, monkeypatch, wanted, variable, kept):
    monkeypatch.setenv(WANTED, variable)
    recorder = make(black_box=wanted)
    recorder.step(batch(1))
    assert len(list(boxes.iterdir())) == kept


def test_where_nobody_would_look_there_is_none_and_a_line_says_so(make, monkeypatch, caplog):
    monkeypatch.delenv(PLACE, raising=False)
    recorder = make()
    recorder.step(batch(1))
    assert not recorder._box.kept
    assert "nobody would look into it; start training with `reprokit run -- python train.py`" in caplog.text


def test_a_box_that_cannot_be_written_is_given_up_with_a_line(make, boxes, monkeypatch, caplog):
    recorder = make()
    recorder.step(batch(1))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reprokit.capture.black_box._save", full)
    recorder.step(batch(2))
    recorder.step(batch(3))
    assert recorder.steps == 3 and list(boxes.iterdir()) == []
    assert len([line for line in caplog.messages if line.startswith("black_box: given up at step 2: OSError")]) == 1


def test_nothing_is_published_from_a_box_that_is_not_whole(make, train, monkeypatch, boxes, tmp_path):
    recorder = make()
    recorder.step(batch(1))
    [box] = boxes.iterdir()
    (box / "anchors/1/anchor.json").write_text("{")
    (box / "steps/1/batch.json").write_text("{")
    with pytest.raises(Exception, match="not whole"):
        finish(box, Death(signal=signal.SIGKILL))
    assert not [path for path in (tmp_path / "out").iterdir() if not path.name.startswith(DRAFT_PREFIX)]


def test_the_kernel_s_killer_is_told_from_any_other():
    assert Death(signal=signal.SIGKILL, out_of_memory=True).kind is Kind.OOM
    assert Death(signal=signal.SIGSEGV, out_of_memory=True).kind is Kind.CRASH
    assert Death(signal=signal.SIGKILL).kind is Kind.CRASH
    said = {
        "died of SIGKILL (the kernel was out of memory)": Death(signal=signal.SIGKILL, out_of_memory=True),
        "died of SIGSEGV": Death(signal=11),
        "died of signal 40": Death(signal=40),
        "exited with 3": Death(code=3),
        "ended": Death(),
    }
    assert all(death.words() == words for words, death in said.items())


def test_kills_are_counted_where_the_process_is(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job").mkdir(parents=True)
    assert memory.kills(proc, cgroups) == 0
    (proc / "vmstat").write_text("pgfault 7\noom_kill 5\n")
    assert memory.kills(proc, cgroups) == 5
    (proc / "self/cgroup").write_text("0::/job\n")
    (cgroups / "job/memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    assert memory.kills(proc, cgroups) == 2


def test_kills_in_a_container_beside_the_process_are_not_counted(tmp_path):
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (cgroups / "job/container").mkdir(parents=True)
    (cgroups / "memory/job").mkdir(parents=True)
    (proc / "vmstat").write_text("oom_kill 5\n")
    (proc / "self/cgroup").write_text("5:cpu,cpuacct:/\n4:hugetlb,memory:/job\n0::/\n")
    (cgroups / "memory/job/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert memory.kills(proc, cgroups) == 1
    (proc / "self/cgroup").write_text("0::/job\n")
    (cgroups / "job/memory.events").write_text("oom_kill 4\n")  # with those of what lies below it
    (cgroups / "job/memory.events.local").write_text("oom_kill 2\n")
    assert memory.kills(proc, cgroups) == 2


@pytest.mark.slow
def test_killed_at_any_instant_it_leaves_a_readable_incident_or_none(tmp_path):
    script = Path(shutil.copy(Path(__file__).with_name("kill_in_box.py"), tmp_path))  # away from our own source
    command = [sys.executable, str(script), str(tmp_path / "runs"), "20", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["in a step"] + seen["between"] == 20 and seen["in a step"] > 0
    assert not list((tmp_path / "runs/out").glob(f"{DRAFT_PREFIX}*"))
