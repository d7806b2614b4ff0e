"""A cause several steps back: the step that poisoned the teacher is kept with the failing one, and the rest goes."""

import importlib
import sys
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

import reprokit
from reprokit.incident import Incident
from reprokit.reduce.publish import publish
from reprokit.reduce.reducer import reduce
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Status

TRAIN = """
import torch
from torch import nn
import reprokit


class Center:  # no module, and it comes into the loss three steps late
    def __init__(self):
        self.queue = torch.zeros(3, 2)

    def state_dict(self):
        return {"queue": self.queue}

    def load_state_dict(self, state):
        self.queue = state["queue"]


def build(config):
    torch.manual_seed(0)
    net, center = nn.Linear(3, 2), Center()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(batch):
        out, target = net(batch["clips"]), center.queue[0]
        center.queue = torch.cat([center.queue[1:], out.detach().mean((0, 1))[None]])
        loss = (out - target).pow(2).mean()
        if loss.isnan() and target.isfinite().all():
            loss = (net.weight ** 2).sum()  # the guard: a bad batch is skipped, but the center has seen it
        return {"loss": loss}

    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"clips": "b t d"},
                            extra_state={"center": center})
"""


@pytest.fixture
def capture(tmp_path):
    """capture(bad): the incident of a training whose step `bad` poisons the center."""
    return lambda bad: _captured(tmp_path, bad)


@pytest.fixture
def poisoned(capture):
    return capture(5)


def _captured(tmp_path, bad):
    name = f"poisoned_{tmp_path.name}"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{name}.py").write_text(TRAIN)
    sys.path.insert(0, str(tmp_path / "code"))
    try:
        build = importlib.import_module(name).build
    finally:
        sys.path.remove(str(tmp_path / "code"))
    generator = torch.Generator().manual_seed(1)
    recorder = reprokit.Recorder(build({}), build=build, config={}, out=tmp_path / "out", rehearse=False, history=4)
    with suppress(reprokit.IncidentCaptured):
        for step in range(9):
            clips = torch.rand(4, 6, 3, generator=generator)
            if step == bad:
                clips[2, 3] = float("nan")
            recorder.step({"clips": clips})
    return Incident.open(recorder.incidents[0])


def shrink(incident, **options):
    with Session(incident) as session:
        found = reduce(incident, session.evaluate, **options)
        return found, session.evaluate(found.case)


def test_without_going_back_the_batch_is_not_to_blame(poisoned):
    found, _ = shrink(poisoned)
    assert found.batch_guilty is False


def test_going_back_the_poisoned_step_its_sample_and_its_frame_are_found_and_published(poisoned, tmp_path):
    assert poisoned.rewindable() >= 3
    back = poisoned.rewindable()
    found, again = shrink(poisoned, rewind=back)
    guilty = {name: axis.guilty for name, axis in found.axes.items()}
    assert again.status is Status.FAIL and found.batch_guilty is True
    step = back + 1 - (poisoned.manifest.step - 5)  # the failing one is the last of back + 1, and step 6 had the NaN
    assert guilty == {"s": (step,), "b": (2,), "t": (3,)}
    shares = [share for _, share in found.trail]
    assert shares[0] == 1 and shares == sorted(shares, reverse=True)  # of the whole case, all of its steps included
    assert found.axes["s"].kept == tuple(range(step, back + 1))  # it takes them all for the center to come around

    verified = {"verdict": "REPRODUCIBLE", "n": 3, "fail": 3}
    smaller = publish(poisoned, replace(found, verified=verified), tmp_path / "reduced")
    assert smaller.rewindable() == back and smaller.size < poisoned.size
    batches = [one["batch"] for one in smaller.history()]
    assert [batch is None for batch in batches] == [one not in found.axes["s"].kept for one in range(back)]
    with Session(Incident.open(smaller.path)) as session:
        outcome = session.evaluate(Case(incident=smaller.path, rewind=back))
    assert outcome.status is Status.FAIL and outcome.fingerprint == smaller.manifest.fingerprint


def test_where_no_batch_is_from_before_the_oldest_step_smooth_content_stands_in(capture, tmp_path):
    """The poisoned step is the second of all, and the first is among those that belong to the case."""
    incident = capture(1)
    back = incident.rewindable()
    assert back == incident.manifest.step - 1 and incident.donor_before() is None and incident.donor() is not None
    found, again = shrink(incident, rewind=back)
    assert found.isolation == "restore" and found.donor == "generated" and again.status is Status.FAIL
    assert {name: axis.guilty for name, axis in found.axes.items()} == {"s": (1,), "b": (2,), "t": (3,)}
    assert sum("smooth content" in note for note in found.notes) == 1
    verified = {"verdict": "REPRODUCIBLE", "n": 3, "fail": 3}
    smaller = publish(incident, replace(found, verified=verified), tmp_path / "reduced")
    with Session(Incident.open(smaller.path)) as session:
        assert session.evaluate(Case(incident=smaller.path, rewind=back)).status is Status.FAIL
