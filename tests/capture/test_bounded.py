"""What is said of an update without a look at the parameters is true, and what cannot be said is looked at."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import reprokit
from reprokit.capture import bounded as rules
from reprokit.capture.bounded import LARGEST_NORM, bounded
from reprokit.capture.history import APART
from reprokit.failure import Kind

rates = st.sampled_from([0.0, 1e-4, 0.1, 1.0, 1e3])


@st.composite
def optimizers(draw):
    """An optimizer over one float32 parameter, as extreme as it may be and still be bounded."""
    weight = nn.Parameter(torch.tensor([draw(st.floats(-1e6, 1e6, width=32))]))
    rate = draw(rates)
    common = {"lr": rate, "weight_decay": draw(st.sampled_from([0.0, 0.05, 1.0])) / max(1.0, rate), "fused": True}
    if draw(st.booleans()):
        momentum = draw(st.sampled_from([0.0, 0.9, 0.999]))
        return weight, torch.optim.SGD([weight], momentum=momentum, **common)
    betas = draw(st.sampled_from([(0.9, 0.999), (0.0, 0.5), (0.999, 0.9999), (0.9, 0.95)]))
    make = draw(st.sampled_from([torch.optim.Adam, torch.optim.AdamW]))
    return weight, make([weight], betas=betas, eps=draw(st.sampled_from([1e-8, rules.LEAST_EPS])), **common)


@given(
    optimizers(),
    st.lists(st.sampled_from([0.0, 1e-30, 1.0, -1e6, LARGEST_NORM, -LARGEST_NORM]), min_size=1, max_size=APART),
)
def test_sixteen_updates_that_are_bounded_leave_a_finite_weight_finite(made, gradients):
    weight, optimizer = made
    assert bounded(optimizer, LARGEST_NORM)
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        assert weight.isfinite().all()


@pytest.mark.parametrize(
    ("options", "norm"),
    [
        ({"lr": float("nan")}, 1.0),
        ({"lr": float("inf")}, 1.0),
        ({"lr": 1e4}, 1.0),
        ({"lr": torch.tensor(0.1)}, 1.0),
        ({"eps": 0.0}, 1.0),
        ({"weight_decay": float("nan")}, 1.0),
        ({"lr": 10.0, "weight_decay": 0.3}, 1.0),
        ({"betas": (0.9, 1.0)}, 1.0),
        ({"betas": (0.99, 0.5)}, 1.0),
        ({}, None),
        ({}, float("inf")),
        ({}, 1e19),
    ],
)
def test_whatever_may_end_in_infinity_is_not_bounded(options, norm):
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], fused=True)
    assert bounded(optimizer, 1e6)
    optimizer.param_groups[0].update(options)
    assert not bounded(optimizer, norm)


def test_others_are_not_bounded():
    half = nn.Parameter(torch.ones(1, dtype=torch.float16))
    assert not bounded(torch.optim.AdamW([half]), 1.0)
    assert not bounded(torch.optim.RMSprop([nn.Parameter(torch.ones(1))]), 1.0)
    mine = type("Mine", (torch.optim.SGD,), {})
    assert not bounded(mine([nn.Parameter(torch.ones(1))], lr=0.1), 1.0)
    hooked = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    hooked.register_step_pre_hook(lambda *_: None)
    assert not bounded(hooked, 1.0)


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    teacher = nn.Linear(3, 1).requires_grad_(False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, fused=True)

    def step(batch):
        if batch.get("teacher"):
            with torch.no_grad():
                teacher.weight.mul_(float("inf"))
        return net(batch["x"]).square().mean()

    return reprokit.Harness(
        modules={"net": net, "teacher": teacher}, optimizer=optimizer, step=step, layout={"x": "b d"}
    )


@pytest.fixture
def steps(tmp_path):
    """steps(change, at): what is captured where the harness is changed before a step, and at which step."""

    def run(change, at, batch=None, last=40):
        harness = build({})
        with reprokit.Recorder(harness, build=build, config={}, out=tmp_path, rehearse=False) as recorder:
            for number in range(1, last):
                if number == at:
                    change(harness)
                try:
                    recorder.step({"x": torch.rand(2, 3)} | (batch if number == at and batch else {}))
                    recorder.settle()
                except reprokit.IncidentCaptured as captured:
                    return captured.signature.kind, recorder.steps
        return None

    return run


def group(**changes):
    return lambda harness: harness.optimizer.param_groups[0].update(changes)


@pytest.mark.parametrize("change", [group(lr=float("nan")), group(eps=0.0, lr=float("inf"))])
def test_a_rate_that_is_not_finite_shows_in_its_step(steps, change):
    assert steps(change, 9) == (Kind.NONFINITE_PARAM, 9)


def test_what_torch_writes_into_a_parameter_in_a_step_shows_in_that_step(steps):
    assert steps(lambda harness: None, 9, {"teacher": True}) == (Kind.NONFINITE_PARAM, 9)


def test_a_write_without_a_trace_shows_when_all_are_looked_at_next(steps):
    def write(harness):
        harness.modules["teacher"].weight.data.numpy()[:] = float("nan")

    kind, step = steps(write, 9)
    assert kind is Kind.NONFINITE_PARAM and 9 <= step < 9 + APART


def test_a_weight_that_the_loss_needs_shows_in_that_step_however_it_was_written(steps):
    def write(harness):
        harness.modules["net"].weight.data.numpy()[:] = float("nan")

    assert steps(write, 9) == (Kind.NONFINITE_LOSS, 9)
