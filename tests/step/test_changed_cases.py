"""Cases that change the experiment: another dtype or range of the inputs, a state just built, samples read again."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Status
from reprokit.step.values import simpler

FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=8)


@given(FLOATS)
def test_scaled_values_lie_between_0_and_1_in_their_order(numbers):
    tensor = torch.tensor(numbers)
    made = simpler(tensor, "unit")
    finite = tensor.isfinite()
    assert torch.equal(made[~finite].isnan(), tensor[~finite].isnan()) and (made[tensor.isinf()].isinf()).all()
    good, was = made[finite], tensor[finite]
    assert ((good >= 0) & (good <= 1)).all() and (good[was.argsort()].diff() >= 0).all()
    assert torch.equal(simpler(made, "unit")[finite], good)
    if len(was.unique()) > 1:
        assert good.min() == 0 and good.max() == 1


@given(FLOATS)
def test_only_what_is_not_finite_becomes_zero(numbers):
    made = simpler(torch.tensor(numbers), "finite").tolist()
    assert made == [number if math.isfinite(number) else 0.0 for number in numbers]


def test_integers_are_no_amounts():
    pixels = torch.tensor([0, 3, 255], dtype=torch.uint8)
    assert torch.equal(simpler(pixels, "unit"), pixels) and torch.equal(simpler(pixels, "finite"), pixels)


@pytest.mark.parametrize(
    ("change", "status"),
    [({}, Status.FAIL), ({"values": {"x": "finite"}}, Status.PASS), ({"values": {"x": "unit"}}, Status.FAIL)],
)
def test_inputs_without_nan_pass(make_incident, change, status):
    incident = make_incident()
    with Session(incident) as session:
        assert session.evaluate(Case(incident=incident.path, **change)).status is status


def test_sums_of_bytes_overflow_in_no_wider_dtype(make_incident):
    x = {"x": torch.full((4, 4), 200, dtype=torch.uint8)}
    incident = make_incident("y = x[0] + x[1]\nx = (y.float() - 300).sqrt().expand(4, 4)", batch=x)
    with Session(incident) as session:
        ask = lambda dtypes: session.evaluate(Case(incident=incident.path, dtypes=dtypes))
        assert ask({}).status is Status.FAIL and ask({"x": "float32"}).status is Status.PASS
        assert ask({"x": "float99"}).status is ask({"y": "float32"}).status is Status.INVALID


def test_a_state_just_built_is_used_once_and_the_captured_one_after_it(make_incident):
    incident = make_incident("net[0].weight.data.fill_(x.sum()) if x.isnan().any() else None")
    case, built = Case(incident=incident.path), Case(incident=incident.path, content="donor", state="built")
    captured = Case(incident=incident.path, content="donor")
    with Session(incident) as session:
        outcomes = [session.evaluate(one) for one in (case, built, captured, built, captured)]
    assert [one.status for one in outcomes] == [Status.FAIL] + [Status.PASS] * 4
    prints = [one.fingerprint for one in outcomes]
    assert prints[1] == prints[3] and prints[2] == prints[4]


def test_samples_that_cannot_be_read_again_are_no_outcome(make_incident):
    incident = make_incident()
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path, content="decoded"))
        assert outcome.status is Status.INVALID and "Harness(fetch=...)" in outcome.detail
        session.harness.fetch = lambda batch: {"x": batch["x"].nan_to_num(0.5)}
        assert session.evaluate(Case(incident=incident.path, content="decoded")).status is Status.PASS
        assert session.evaluate(Case(incident=incident.path)).status is Status.FAIL
        session.harness.fetch = lambda batch: 1 / 0
        assert session.evaluate(Case(incident=incident.path, content="decoded")).status is Status.INVALID
