"""The steps before a failure: all that it takes to run them again, and what is told where that is lost."""

from contextlib import suppress
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import reprokit
from reprokit import tree
from reprokit.capture.batch import Held
from reprokit.capture.begun import Begun
from reprokit.capture.history import APART, History
from reprokit.capture.start import Start, Steady
from reprokit.errors import BadInput
from reprokit.harness import Harness
from reprokit.incident import Incident
from reprokit.step import between
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

FAILS = 9
COUNT = count()

TRAIN = """
import copy
import torch
from torch import nn
import reprokit


class Ema(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def follow(self, net):
        for mine, theirs in zip(self.net.parameters(), net.parameters()):
            mine.mul_(0.9).add_(theirs, alpha=0.1)


def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 1))
    teacher = Ema(net)
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    fields = {}
    #FIELDS
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
    extras = {"scheduler": scheduler, "generator": generator}
    #EXTRA

    def step(batch):
        x = batch["x"]
        out = net(x + 0.1 * torch.rand(x.shape, generator=generator))
        teacher.follow(net)
        loss = (out - teacher.net(x)).pow(2).mean() + out.mean()
        #STEP
        return {"loss": loss, "out": out.mean(), "odd": batch["odd"]}

    return reprokit.Harness(modules={"net": net, "teacher": teacher}, optimizer=optimizer, step=step,
                            layout={"x": "b d"}, extra_state=extras, **fields)
"""
KINDS = {
    "sgd momentum, a teacher, batch norm": {},
    "adamw": {"FIELDS": "optimizer = torch.optim.AdamW(net.parameters())"},
    "grad scaler": {"FIELDS": "fields = {'scaler': torch.amp.GradScaler('cpu', init_scale=1024.0, growth_interval=2)}"},
    "clipping": {"FIELDS": "fields = {'clip_grad_norm': 0.5}"},
    "accumulation": {"FIELDS": "fields = {'accumulate': 3}"},
    "scheduler in the step": {"STEP": "scheduler.step()"},
    "autocast": {"FIELDS": "fields = {'autocast': 'bf16'}"},
    "in-place changes of the batch": {"STEP": "x.add_(1.0)"},
    "nesterov, two groups": {
        "FIELDS": "optimizer = torch.optim.SGD([{'params': net[0].parameters()}, {'params': net[3].parameters(), "
        "'lr': 0.3}], lr=0.1, momentum=0.9, nesterov=True)"
    },
}


def nothing(step, harness):
    """What a plain loop does between steps."""


@pytest.fixture
def record(tmp_path):
    """record(changes, loop=...) -> the incident of a run of which step FAILS has a NaN beside finite losses, gradients
    and weights, which makes fingerprints tell; and its recorder."""

    def run(changes=(), loop=nothing, batch=None, fails=FAILS, **options):
        name = f"train_{next(COUNT)}"  # each its own module
        source = tmp_path / name
        source.mkdir()
        text = TRAIN
        for place, code in dict(changes).items():
            text = text.replace(f"#{place}", code)
        (source / f"{name}.py").write_text(text)
        build = load_entrypoint(f"{name}:build", source)
        harness = build({"seed": 3})
        out = tmp_path / f"out_{name}"
        recorder = reprokit.Recorder(
            harness, build=build, config={"seed": 3}, out=out, **{"rehearse": False, "history": 4} | options
        )
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(0)
        for step in range(1, fails + 1):
            x = torch.rand(4, 4, generator=generator)
            with suppress(reprokit.IncidentCaptured):
                recorder.step({"x": batch(x) if batch else x, "odd": float("nan") if step == fails else 0.0})
            loop(step, harness)
        return Incident.open(recorder.incidents[0]), recorder

    return run


def comes_again(incident, rewind):
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path, rewind=rewind))
    assert outcome.status is Status.FAIL, outcome.detail
    return outcome.fingerprint == incident.manifest.fingerprint


@pytest.mark.parametrize("kind", KINDS)
def test_the_failure_comes_again_bit_for_bit_from_the_anchor(record, kind):
    incident, _ = record(KINDS[kind])
    assert incident.rewindable() >= 4 and len(incident.manifest.fingerprint) >= 3
    assert comes_again(incident, incident.rewindable())
    assert comes_again(incident, 1)


def test_the_steps_of_a_resumed_run_are_numbered_on_and_are_the_same(record):
    (one, _), (other, recorder) = record(), record(steps_before=1000)
    assert other.manifest.step == recorder.steps == 1000 + FAILS and other.path.name.endswith(f"step{1000 + FAILS}")
    assert [entry["step"] for entry in other.history()] == [1000 + entry["step"] for entry in one.history()]
    assert other.manifest.fingerprint == one.manifest.fingerprint and comes_again(other, other.rewindable())


def test_the_first_steps_of_a_resumed_run_are_copied_like_those_of_another(record):
    incident, _ = record({"STEP": "x.add_(1.0)"}, fails=1, steps_before=1000)
    assert not incident.manifest.left_out and comes_again(incident, 0)


@pytest.mark.parametrize("number", [-1, 2.0, True, None])
def test_what_is_no_number_of_steps_is_refused(record, number):
    with pytest.raises(BadInput, match=f"steps_before={number}; expected how many steps the run has had"):
        record(steps_before=number)


def schedule(step, harness):
    harness.extra_state["scheduler"].step()


def freeze(step, harness):
    if step == 7:
        harness.modules["net"][0].requires_grad_(False)
        harness.modules["net"][2].eval()


def draw(step, harness):
    torch.rand(3, generator=harness.extra_state["generator"])


def warm(step, harness):
    harness.optimizer.param_groups[0].update(lr=0.5 / step, momentum=0.5)


@pytest.mark.parametrize("loop", [schedule, freeze, draw, warm])
def test_what_the_loop_does_between_steps_is_done_again(record, loop):
    incident, _ = record(loop=loop)
    assert any(step["after"] for step in incident.history())
    assert comes_again(incident, incident.rewindable())


def test_a_scheduler_that_steps_inside_is_not_done_twice(record):
    incident, _ = record({"STEP": "scheduler.step()"})
    assert not any(step["after"] for step in incident.history())


def test_a_loop_that_writes_into_weights_begins_the_history_anew(record, caplog):
    def clamp(step, harness):
        if step == 4:
            with torch.no_grad():
                harness.modules["net"][0].weight.clamp_(-0.1, 0.1)

    incident, _ = record(loop=clamp)
    assert incident.rewindable() == 4 and comes_again(incident, 4)  # steps 5 to 8
    [line] = [record.message for record in caplog.records if "changed between" in record.message]
    assert line.startswith("history: net.0.weight changed between steps 4 and 5")
    assert not incident.manifest.left_out  # as far as was asked, all the same
    assert incident.donor_before() is not None  # step 4's batch


def test_a_teacher_that_moves_in_extra_state_is_seen_too(record):
    follow = lambda step, harness: harness.extra_state["shadow"].follow(harness.modules["net"])
    incident, _ = record({"EXTRA": "extras['shadow'] = Ema(net)"}, loop=follow)
    assert incident.rewindable() == 0 and incident.anchor() is None
    assert "extra.shadow.net.0.weight and " in incident.manifest.left_out[0]
    assert comes_again(incident, 0)


@pytest.mark.slow
def test_what_no_version_shows_is_found_by_the_rehearsal_and_ends_the_history(record):
    decay = lambda step, harness: harness.modules["net"][3].weight.data.mul_(0.5)
    incident, recorder = record(loop=decay, fails=4, rehearse=True)
    [finding] = recorder.findings
    assert finding.startswith("going back in history gives another step: losses differ first")
    assert incident.rewindable() == 0 and incident.manifest.left_out == (f"history: it ended: {finding}",)


@pytest.mark.slow
def test_a_scheduler_after_each_step_is_no_finding(record):
    incident, recorder = record(loop=schedule, fails=4, rehearse=True)
    assert recorder.findings == [] and incident.rewindable() == 3


def test_a_batch_that_is_filled_again_is_noticed_and_then_copied(record):
    buffer = np.zeros((4, 4), dtype=np.float32)

    def refill(x):
        buffer[:] = x.numpy()
        return torch.from_numpy(buffer)

    incident, _ = record(batch=refill)
    assert incident.rewindable() >= 4 and comes_again(incident, incident.rewindable())
    assert len({step["batch"]["x"].sum().item() for step in incident.history()}) == incident.rewindable()


def test_an_incident_without_history_is_as_before(record):
    incident, _ = record(history=0)
    assert (incident.rewindable(), incident.history(), incident.anchor()) == (0, [], None)
    assert incident.manifest.left_out == () and comes_again(incident, 0)


@pytest.mark.parametrize("options", [{"history": -1}, {"history_bytes": -1}])
def test_less_than_nothing_is_refused(record, options):
    with pytest.raises(BadInput, match="expected 0 or more, 0 for no history"):
        record(**options)


# --- the ring


def net():
    module = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return Harness(modules={"net": module}, optimizer=optimizer, step=lambda batch: None, layout={"x": "b d"})


def begun(step, batch, size=8, copies=True):
    """A step whose whole state has that many bytes."""
    reference = tree.refer(batch)
    module = torch.nn.Module()
    module.register_buffer("size", torch.zeros(size, dtype=torch.uint8))
    harness = net()
    harness.modules = {"net": module}
    harness.optimizer = torch.optim.SGD([torch.zeros(0)], lr=0.1)
    return Begun(
        step=step, start=Start(harness, Steady(), full=True, loop={"micro": 0}), loop={"micro": 0}, rng={}, flags={},
        batch=Held.of(reference), copy=Held.of(reference, copy=True) if copies else None, donor=None, left_out=[],
    )  # fmt: skip


def fresh(step):
    return {"x": torch.full((4, 8), step, dtype=torch.uint8)}  # 32 bytes


def ring(steps, batch=fresh, last=8, limit=1 << 20, size=8, harness=None, after=lambda step, batch: None):
    """A history after that many healthy steps, one more having begun."""
    history, harness = History(steps, limit), harness or net()
    for step in range(1, last + 1):
        data = batch(step)
        history.due(step, harness)
        start = begun(step, data, size, copies=step <= 2 or history.copies)
        history.begin(start)
        after(step, data)
        history.end(start, harness)
    history.due(last + 1, harness)
    history.begin(begun(last + 1, batch(last + 1), size))
    return history


def content(packed):
    packed = packed.packed if isinstance(packed, Held) else packed
    return None if packed is None else int(tree.unpack(packed)["x"].max())


@given(st.integers(1, 7), st.integers(1, 60))
def test_one_can_go_back_as_far_as_was_asked_and_finds_what_was_there(steps, last):
    past = ring(steps, last=last).past(last + 1)
    numbers = [entry.step for entry in past.entries]
    assert numbers == list(range(numbers[0], last + 1))
    assert min(steps, last) <= len(numbers) <= steps + max(APART, (steps + 1) // 2)
    assert [content(entry.batch) for entry in past.entries] == numbers
    assert content(past.donor) == (numbers[0] - 1 or None)


@given(st.integers(1, 7), st.integers(1, 20), st.integers(0, 400), st.integers(1, 100))
def test_a_limit_in_bytes_holds_and_what_is_kept_is_whole(steps, last, limit, size):
    history = ring(steps, last=last, limit=limit, size=size)
    past = history.past(last + 1)
    assert len(history.notes()) == (past is None or len(past.entries) < steps) * len(history.notes())
    if past is None:
        return
    numbers = [entry.step for entry in past.entries]
    assert numbers == list(range(numbers[0], last + 1))
    assert size + 32 * len(numbers) <= limit


def test_a_limit_that_has_no_room_is_said():
    history = ring(4, limit=50)
    assert history.past(9) is None
    assert history.notes() == ["history: history_bytes has no room for more than 0 steps"]


def test_batches_are_not_copied():
    batches = {step: fresh(step) for step in range(1, 10)}
    past = ring(4, batch=batches.__getitem__).past(9)
    assert past.entries[2:]
    for entry in past.entries[2:]:  # the first two steps show whether that is safe
        assert entry.batch.packed.blocks[0].memory.data_ptr() == batches[entry.step]["x"].data_ptr()


def test_a_step_that_writes_into_its_batch_loses_nothing():
    past = ring(4, after=lambda step, batch: batch["x"].add_(100)).past(9)
    assert len(past.entries) >= 4 and [content(e.batch) for e in past.entries] == [e.step for e in past.entries]


def test_what_is_changed_by_numpy_long_after_is_dropped_with_all_before():
    batches = {step: fresh(step) for step in range(1, 10)}
    history = ring(4, batch=batches.__getitem__)
    batches[6]["x"].numpy()[:] = 77
    assert history.past(9) is None  # the state after it could only be made by running it
    [note] = history.notes()
    assert "the batch of step 6 was changed after its step" in note


def test_after_a_step_that_was_not_healthy_nothing_before_it_is_left():
    history, harness = ring(4), net()
    history.due(10, harness)
    history.begin(begun(10, fresh(10)))  # step 9 never ended
    assert history.past(10) is None


def test_trouble_in_here_ends_the_history_and_not_training(caplog):
    class Locked:
        def state_dict(self):
            raise RuntimeError("busy")

        def load_state_dict(self, state): ...

    harness = net()
    harness.extra_state = {"locked": Locked()}
    history = ring(4, harness=harness)
    assert history.past(9) is None and history.notes() == ["history: it ended: RuntimeError: busy"]


# --- between steps


def test_only_what_changed_is_kept_and_a_nan_is_no_change():
    harness = net()
    harness.optimizer.param_groups[0]["odd"] = float("nan")
    before = between.look(harness)
    assert between.changes(before, between.look(harness)) == []
    harness.optimizer.param_groups[0]["lr"] = 0.5
    harness.modules["net"].eval()
    found = between.changes(before, between.look(harness))
    assert sorted(path for path, _ in found) == [["groups", "optimizer", "0", "lr"], ["training", "net"]]
    other = net()
    between.put(other, found)
    assert other.optimizer.param_groups[0]["lr"] == 0.5 and not other.modules["net"].training


def test_gradients_that_the_loop_cleared_are_cleared():
    harness = net()
    harness.modules["net"](torch.ones(1, 2)).sum().backward()
    before = between.look(harness)
    harness.optimizer.zero_grad()
    found = between.changes(before, between.look(harness))
    other = net()
    other.modules["net"](torch.ones(1, 2)).sum().backward()
    between.put(other, found)
    assert all(p.grad is None for p in other.modules["net"].parameters())


def test_writes_into_tensors_are_seen_and_copies_tell_nothing():
    harness = net()

    class Copies:
        def state_dict(self):
            return {"shadow": torch.zeros(100)}

        def load_state_dict(self, state): ...

    harness.extra_state = {"copies": Copies()}
    before = between.look(harness)
    keep = Copies().state_dict()  # so that the next copy lies elsewhere
    assert between.written(before, between.look(harness)) == [] and keep
    with torch.no_grad():
        harness.modules["net"].bias.zero_()
    assert between.written(before, between.look(harness)) == ["net.bias"]
