"""A value that is read late costs a healthy step nothing, and a failing one loses nothing by it."""

import copy
from contextlib import suppress
from itertools import count

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import reprokit
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.harness import take_state
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

FAILS = 7
COUNT = count()
TRAIN = """
import copy
import torch
from torch import nn
import reprokit


def build(config):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1))
    teacher = copy.deepcopy(net).requires_grad_(False)
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[config["optimizer"]]
    extra = {"momentum": 0.9} if config["optimizer"] == "sgd" else {}
    optimizer = make(net.parameters(), lr=0.01, fused=config["fused"], **extra)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step(batch):
        out = net(batch["x"])
        if config["ema"]:
            with torch.no_grad():
                for mine, theirs in zip(teacher.parameters(), net.parameters()):
                    mine.lerp_(theirs, 0.1)
        loss = (out - teacher(batch["x"])).pow(2).mean() + out.mean() + batch["x"].mean()
        if config["manual"]:
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return {"loss": loss, "out": out.mean()}

    return reprokit.Harness(
        modules={"net": net, "teacher": teacher}, optimizer=optimizer, step=step, layout={"x": "b d"},
        automatic_optimization=not config["manual"], extra_state={"scheduler": scheduler},
        scaler=torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2) if config["scaler"] else None,
        clip_grad_norm=0.5 if config["clip"] else None, accumulate=config["accumulate"],
    )
"""
PLAIN = {
    "optimizer": "adamw", "fused": True, "ema": False, "manual": False, "scaler": False, "clip": False, "accumulate": 1,
}  # fmt: skip
PATHS = {
    "fused": {},
    "fused, momentum": {"optimizer": "sgd"},
    "not fused": {"fused": False},
    "scaler": {"scaler": True},
    "scaler, not fused": {"scaler": True, "fused": False},
    "clipping": {"clip": True},
    "accumulation": {"accumulate": 3},
    "accumulation, not fused": {"accumulate": 3, "fused": False},
    "teacher": {"ema": True},
    "teacher, not fused": {"ema": True, "fused": False},
    "optimizes by itself": {"manual": True},
    "optimizes by itself, not fused": {"manual": True, "fused": False},
}


class Reads(TorchDispatchMode):
    """Counts what makes a host wait for a device."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ in ("_local_scalar_dense", "is_nonzero", "equal", "item")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def train(tmp_path, read_late):
    """train(config, late=...) -> the harness, the recorder, the incident, and a copy of the state before step FAILS.
    late: steps for which numbers are on their way."""

    def run(config=(), late=0, steps=FAILS, bad=float("nan"), **options):
        name = f"train_latch_{next(COUNT)}"
        source = tmp_path / name
        source.mkdir()
        (source / f"{name}.py").write_text(TRAIN)
        build = load_entrypoint(f"{name}:build", source)
        config = PLAIN | dict(config)
        harness = build(config)
        recorder = reprokit.Recorder(
            harness, build=build, config=config, out=tmp_path / f"out_{name}", rehearse=False, **options
        )
        read_late(recorder, late)
        generator, start = torch.Generator().manual_seed(1), None
        torch.manual_seed(0)
        with suppress(reprokit.IncidentCaptured), recorder:
            for step in range(1, steps + late + 1):
                x = torch.rand(4, 4, generator=generator)
                if step == FAILS:
                    x[1, 2] = bad
                    start = copy.deepcopy(take_state(harness))
                recorder.step({"x": x})
        incident = Incident.open(recorder.incidents[0]) if recorder.incidents else None
        return harness, recorder, incident, start

    return run


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0)) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("path", PATHS)
def test_what_the_failing_step_started_from_is_there_bit_for_bit_however_late_it_is_read(train, path, late):
    _, _, incident, start = train(PATHS[path], late)
    assert incident.manifest.step == FAILS and incident.manifest.left_out == ()
    state = incident.state()
    del state["loop"]
    assert same(state, start)
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


def test_a_healthy_step_reads_nothing_from_the_device(train):
    _, recorder, _, _ = train(steps=FAILS - 1)
    with Reads() as reads:
        for _ in range(4):
            recorder.step({"x": torch.rand(4, 4)})
    assert recorder._flights.latch is not None and reads.count == 0


def test_a_step_that_is_read_in_time_is_counted_where_it_is_not_fused(train):
    _, recorder, _, _ = train({"fused": False}, steps=FAILS - 1)
    with Reads() as reads:
        recorder.step({"x": torch.rand(4, 4)})
    assert recorder._flights.latch is None and reads.count > 0


@pytest.mark.parametrize("path", ["fused", "scaler", "clipping", "teacher", "accumulation"])
def test_a_healthy_run_is_the_same_with_and_without_a_recorder_that_reads_late(train, path):
    on, off = (train(PATHS[path], late, steps=FAILS - 1, latch=use)[0] for late, use in ((3, "auto"), (0, False)))
    assert same(take_state(on)["parameters"], take_state(off)["parameters"])


def test_after_a_failure_training_goes_on_from_where_the_step_began(train):
    harness, recorder, incident, start = train(late=3)
    recorder.step({"x": torch.rand(4, 4)})
    recorder.step({"x": torch.rand(4, 4)})
    now = take_state(harness)
    assert len(recorder.incidents) == 1 and not same(now["parameters"], start["parameters"])
    assert all(value.isfinite().all() for value in now["parameters"].values()) and incident


def test_a_spike_is_held_as_well(train):
    _, _, incident, start = train(late=3, bad=1e4, limits=reprokit.Limits(loss_above=50.0, grad_norm_above=None))
    assert incident.manifest.signature.kind is Kind.LOSS_SPIKE
    assert same(incident.state()["parameters"], start["parameters"])


@pytest.mark.parametrize("late", [0, 3])
def test_a_spike_that_is_told_after_the_update_is_not_said_to_be_held(train, late):
    limits = reprokit.Limits(loss_above=50.0, grad_norm_above=None)
    _, _, incident, start = train({"manual": True}, late=late, bad=1e4, limits=limits)
    assert incident.manifest.signature.kind is Kind.LOSS_SPIKE and incident.rolls_forward
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
        assert outcome.status is Status.FAIL
        assert same(session._state_before(Case(incident=incident.path), "restore")["parameters"], start["parameters"])


def test_a_latch_is_refused_where_an_optimizer_would_not_listen(train):
    with pytest.raises(BadInput, match="fused=True"):
        train({"fused": False}, latch=True)


def test_a_failure_that_is_read_after_the_last_step_is_told_at_the_end(train):
    _, recorder, _, _ = train(late=3, steps=FAILS - 3)
    assert len(recorder.incidents) == 1
