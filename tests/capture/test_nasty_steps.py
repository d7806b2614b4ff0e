"""Steps that do what none should: training goes on, or stops with its own error, and what is captured is what began."""

import logging
import threading

import pytest
import torch
from torch import nn

import reprokit
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

BAD = float("nan")
TRAIN = """
import torch
from torch import nn
import reprokit

DO = {}  # what a test has a step do: at which place -> function(net, teacher, optimizer, batch)


def build(config):
    torch.manual_seed(0)
    net, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=config.get("fused", True))
    do = lambda place, batch: DO.get(place, lambda *_: None)(net, teacher, optimizer, batch)

    def step(batch):
        do("first", batch)
        loss = (net(batch["x"]) - teacher(batch["x"])).square().mean()
        loss.backward()
        do("gradients", batch)
        if batch.get("steps", True):
            optimizer.step()
            do("last", batch)
            optimizer.zero_grad()
        if config.get("twice"):
            net(batch["x"]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for theirs, ours in zip(teacher.parameters(), net.parameters()):
                theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)
        return loss

    return reprokit.Harness(
        modules={"net": net, "teacher": teacher}, optimizer=optimizer, step=step, layout={"x": "b d"},
        automatic_optimization=False, accumulate=config.get("accumulate", 1), extra_state=DO.get("extra", {}),
    )
"""


class Run:
    """A recorder around the step above, and what it says."""

    def __init__(self, folder, caplog):
        self.folder, self.caplog = folder, caplog
        (folder / "nasty.py").write_text(TRAIN)
        self.build = load_entrypoint("nasty.py:build", folder)
        self.do = self.build.__globals__["DO"]

    def begin(self, config=None, **options):
        config, self.at = config or {}, 0
        self.harness = self.build(config)
        self.net, self.teacher = self.harness.modules.values()
        out = self.folder / "out"
        options = {"rehearse": False, "entrypoint": "nasty.py:build"} | options
        self.recorder = reprokit.Recorder(self.harness, build=self.build, config=config, out=out, **options)
        return self.recorder

    def step(self, **more):
        self.at += 1
        return self.recorder.step({"x": torch.full((2, 4), self.at / 10), **more})

    def steps(self, n):
        return [self.step() for _ in range(n)]

    @property
    def lines(self):
        return [record.message for record in self.caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def train(tmp_path, caplog):
    return Run(tmp_path, caplog)


def bad_gradient(net, teacher, optimizer, batch):
    if "bad" in batch:
        net.bias.grad[0] = BAD


def raises(error):
    def now(net, teacher, optimizer, batch):
        if "bad" in batch:
            raise error

    return now


@pytest.mark.parametrize("error", [ValueError("the loss is nan"), KeyboardInterrupt()])
def test_a_step_that_ends_early_does_not_leave_the_latch_set(train, error):
    train.do |= {"gradients": bad_gradient, "last": raises(error)}
    with train.begin():
        train.steps(4)
        with pytest.raises(type(error)):
            train.step(bad=True)
        train.harness.optimizer.zero_grad()
        before = train.net.weight.clone()
        train.steps(2)
    assert not torch.equal(before, train.net.weight)


def test_the_gradients_of_each_optimizers_step_are_looked_at(train):
    def once_more(net, teacher, optimizer, batch):
        optimizer.zero_grad()
        net(batch["x"]).mean().backward()
        bad_gradient(net, teacher, optimizer, batch)
        optimizer.step()

    train.do["last"] = once_more
    for fused in (True, False):
        with train.begin({"fused": fused}, recapture=True):
            train.steps(5)
            with pytest.raises(reprokit.IncidentCaptured) as caught:
                train.step(bad=True)
        assert caught.value.signature.kind is Kind.NONFINITE_GRAD


def test_a_closure_may_make_the_gradients_that_nobody_has_seen(train):
    def step(batch):
        net, optimizer = train.net, train.harness.optimizer

        def closure():
            optimizer.zero_grad()
            loss = net(batch["x"]).square().mean()
            loss.backward()
            bad_gradient(net, None, optimizer, batch)
            return loss

        return optimizer.step(closure)

    with train.begin():
        train.harness.step = step
        train.steps(5)
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.step(bad=True)
    assert caught.value.signature.kind is Kind.NONFINITE_PARAM


def test_what_an_optimizer_is_told_counts_when_it_steps(train):
    def rate(value):
        def set_to(net, teacher, optimizer, batch):
            optimizer.param_groups[0]["lr"] = value if "bad" in batch else 0.01

        return set_to

    train.do |= {"gradients": rate(BAD), "last": rate(0.01)}
    with train.begin():
        train.steps(5)
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.step(bad=True)
    assert caught.value.signature.kind is Kind.NONFINITE_PARAM


@pytest.mark.parametrize("options", [{"history": 0}, {"history_bytes": 1}])
def test_all_parameters_are_looked_at_now_and_then_without_a_history_too(train, options):
    with train.begin(**options):
        train.steps(5)
        train.teacher.register_parameter("unused", nn.Parameter(torch.ones(1), requires_grad=False))
        train.step()
        train.teacher.unused.data.numpy()[0] = BAD
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.steps(16)
    assert caught.value.signature.kind is Kind.NONFINITE_PARAM


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_teacher_that_moves_without_a_trace_after_the_optimizers_step_is_captured_as_it_was(train, accumulate):
    def move(net, teacher, optimizer, batch):
        for theirs, ours in zip(teacher.parameters(), net.parameters()):
            theirs.data.mul_(0.9).add_(ours.data, alpha=0.1)

    train.do |= {"gradients": bad_gradient, "last": move}
    with train.begin({"accumulate": accumulate}):
        for number in range(1, 6):
            train.step(steps=number % accumulate == 0)
        before = {name: value.clone() for name, value in train.teacher.state_dict().items()}
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.step(bad=True)
    incident = Incident.open(caught.value.path)
    for name, value in before.items():
        assert torch.equal(incident.state()["parameters"][f"teacher.{name}"], value)


class Refuses:
    def state_dict(self):
        return {"value": 1}

    def load_state_dict(self, state):
        raise RuntimeError("no")


def add_a_module(net, teacher, optimizer, batch):
    if "bad" in batch:
        net.more = nn.Linear(1, 1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("mode", ["raise", "skip", "fallback"])
@pytest.mark.parametrize("nasty", [{"first": add_a_module}, {"extra": {"odd": Refuses()}}])
def test_a_harness_that_cannot_be_put_back_is_left_alone(train, nasty, mode, fused):
    train.do |= {"gradients": bad_gradient, **nasty}
    with train.begin({"fused": fused}, on_failure=mode):
        train.steps(4)
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.step(bad=True)
    assert Incident.open(caught.value.path).manifest.step == 5
    assert mode == "raise" or "cannot be put back" in str(caught.value)


def test_a_state_that_something_wrote_into_without_a_trace_is_doubted(train):
    """Not in the first steps, where that would be seen."""
    train.do["gradients"] = bad_gradient
    with train.begin():
        train.steps(4)

        def move(net, teacher, optimizer, batch):
            teacher.weight.data.mul_(0.5)

        train.do["last"] = move
        with pytest.raises(reprokit.IncidentCaptured) as caught:
            train.step(bad=True)
    [line] = [line for line in Incident.open(caught.value.path).manifest.left_out if "run again" in line]
    assert "gave other losses" in line and "without a trace" in line


def test_two_threads_cannot_be_in_a_step_at_once(train):
    inside, go_on, told = threading.Event(), threading.Event(), []

    def wait(*_):
        inside.set()
        go_on.wait(30)

    def other():
        inside.wait(30)
        try:
            train.step()
        except reprokit.errors.BadInput as error:
            told.append(str(error))
        go_on.set()

    with train.begin():
        train.step()
        train.do["first"] = wait
        thread = threading.Thread(target=other)
        thread.start()
        train.step()
        thread.join()
    assert len(told) == 1 and "inside another one" in told[0]


def test_an_incident_that_somebody_interrupts_is_finished_and_known(train, monkeypatch):
    with train.begin() as recorder:
        train.steps(3)
        train.do["gradients"] = bad_gradient

        def interrupted(*_):
            monkeypatch.undo()
            raise KeyboardInterrupt

        monkeypatch.setattr(reprokit.capture.writer, "_is_over", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.step(bad=True)
    [path] = recorder.incidents
    assert Incident.open(path).manifest.step == 4


def swapped(train):
    train.harness.optimizer = torch.optim.SGD(train.net.parameters(), lr=0.1, fused=True)


def cast(train):
    train.teacher.weight.data = train.teacher.weight.data.double()


def grown(train):
    train.net.more = nn.ReLU()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (swapped, "optimizer 'optimizer' is SGD of 2 parameters, was AdamW of 2 parameters"),
        (cast, "parameter teacher.weight is float64 [3, 4], was float32 [3, 4]"),
        (grown, "module net.more (ReLU) is new"),
    ],
)
def test_a_harness_that_has_become_another_one_is_said_to_be(train, change, told):
    with train.begin() as recorder:
        train.steps(4)
        change(train)
        path = recorder.capture("look")
    [line] = [line for line in Incident.open(path).manifest.left_out if "handed over" in line]
    assert told in line and recorder.findings == [line]


def test_nothing_is_written_into_a_harness_of_another_shape(train):
    train.begin()
    state = reprokit.harness.take_state(train.harness)
    train.net.weight.data.fill_(7.0)
    train.net.more = nn.Linear(1, 1)
    with pytest.raises(reprokit.errors.BadInput):
        reprokit.harness.put_state(train.harness, state)
    assert (train.net.weight == 7.0).all()




class Noted(Exception):
    __notes__ = "no list"


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("mode", ["raise", "skip"])
@pytest.mark.parametrize("error", [Noted(), Mute()])
def test_an_exception_that_is_not_like_others_comes_as_itself(train, error, mode):
    train.do["first"] = raises(error)
    with train.begin(on_failure=mode) as recorder:
        train.steps(3)
        if mode == "raise":
            with pytest.raises(type(error)):
                train.step(bad=True)
        else:
            assert train.step(bad=True) is None
    assert len(recorder.incidents) == 1


ODD = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "packed bits": lambda: torch.empty(3, dtype=torch.bits8),
    "without memory": lambda: torch.ones(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "of another library": lambda: torch.ones(3).to_mkldnn(),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_cannot_be_compared_cost_no_step(train, kind):
    odd = ODD[kind]()
    methods = {"state_dict": lambda _: {"t": odd}, "load_state_dict": lambda *_: None}
    train.do["extra"] = {"odd": type("Odd", (), methods)()}
    train.do["gradients"] = bad_gradient
    with train.begin():
        train.net.register_buffer("odd", odd)
        train.steps(5)
        with pytest.raises(reprokit.IncidentCaptured):
            train.step(bad=True)
    assert not [line for line in train.lines if "not looked at" in line]


def test_rows_of_an_embedding_are_accumulated(train):
    """Their sparse gradients are left from one batch to the next."""
    table = nn.Embedding(8, 3, sparse=True)

    def build_step(batch):
        loss = table(torch.arange(3)).square().mean() + batch["x"].mean() + train.net(batch["x"]).mean()
        loss.backward()
        return loss

    with train.begin():
        train.net.table = table
        train.harness.step = build_step
        train.steps(5)
    assert train.lines == [line for line in train.lines if "history" in line]


def test_memory_that_was_freed_is_not_read(train):
    gone = torch.ones(4)
    gone.untyped_storage().resize_(0)
    with train.begin() as recorder:
        train.step(gone=gone)
        train.step(gone=gone)
        path = recorder.capture("look")
    assert not isinstance(Incident.open(path).batch().get("gone"), torch.Tensor)
    assert [line for line in train.lines if "batch['gone'] (Tensor) cannot be stored" in line]


def test_a_look_that_breaks_is_said_once_and_ends_no_step(train, monkeypatch):
    with train.begin():
        train.steps(4)
        monkeypatch.setattr(reprokit.capture.latch, "joined", lambda *_: 1 / 0)
        before = train.net.weight.clone()
        train.steps(3)
    assert not torch.equal(before, train.net.weight)
    [line] = train.lines
    assert "not looked at, training is left alone: ZeroDivisionError" in line


@pytest.mark.parametrize("make", [torch.jit.script, lambda net: torch.jit.trace(net, torch.ones(1, 4))])
@pytest.mark.filterwarnings("ignore")
def test_modules_that_torch_compiled_to_its_own_language_are_walked(train, make):
    train.begin()
    net = make(nn.Linear(4, 3))
    harness = reprokit.Harness(
        modules={"net": net}, layout={"x": "b d"}, step=lambda batch: net(batch["x"]).square().mean(),
        optimizer=torch.optim.AdamW(net.parameters(), fused=True),
    )
    assert set(reprokit.harness.parameters(harness)) == {"net.weight", "net.bias"}
    assert reprokit.harness.anatomy(harness) is reprokit.harness.anatomy(harness)


def test_a_module_that_learns_its_shape_in_the_first_step_is_captured_from_the_second_on(train):
    train.begin()
    net = nn.LazyLinear(3)
    harness = reprokit.Harness(
        modules={"net": net}, layout={"x": "b d"}, step=lambda batch: net(batch["x"]).square().mean(),
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
    )
    options = {"rehearse": False, "entrypoint": "nasty.py:build", "out": train.folder / "out", "config": {}}
    with reprokit.Recorder(harness, build=train.build, **options) as recorder:
        for value in (0.1, 0.2, 0.3):
            recorder.step({"x": torch.full((2, 4), value)})
        with pytest.raises(reprokit.IncidentCaptured):
            recorder.step({"x": torch.full((2, 4), BAD)})
    assert [line for line in train.lines if "cannot be taken" in line]


def test_what_a_nasty_step_left_replays_bit_for_bit(train):
    with train.begin({"twice": True}) as recorder:
        train.steps(5)
        with pytest.raises(reprokit.IncidentCaptured):
            recorder.step({"x": torch.full((2, 4), BAD)})
    incident = Incident.open(recorder.incidents[0])
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path))
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint
