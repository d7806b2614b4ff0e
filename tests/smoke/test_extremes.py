import numpy as np
import pytest
import torch
from torch import nn

from reprokit.harness import Harness
from reprokit.layout import Layout
from reprokit.smoke import drift, hostile
from reprokit.smoke.gates.extremes import Extremes
from reprokit.video import train

from .small import by_itself, changed, clips, config, failed, plain, rows, skipped, subject

LARGE = "very large values (bytes at 255, floats times 1e6, or 256 in float16)"
SMALL = "very small values (bytes at 0, floats by 1e6, or 256 in float16)"
CONSTANT = "constant values (each entry at its mean)"
EMPTY = "no samples (a batch of length 0)"
ADVERSARIAL = "adversarial inputs (0.1 deviations along the gradient's sign)"
PRECISION = "the configured precision beside float32"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drop", [0.0, 0.9])
@pytest.mark.parametrize("autocast", [None, "bf16", "fp16"])
def test_a_healthy_model_passes_whatever_its_seed(seed, drop, autocast):
    asked = subject(changed(autocast=autocast), seed=seed, config=config(seed, model__token_drop_rate=drop))
    found = rows(Extremes(), asked)
    assert not failed(found)
    assert skipped(found) == ([] if autocast else [PRECISION])
    assert {LARGE, SMALL, CONSTANT, EMPTY, "NaN in what encoder gets", ADVERSARIAL, PRECISION} == set(found)


def test_a_step_that_optimizes_by_itself_passes_too():
    assert not failed(rows(Extremes(), subject(changed(step=by_itself, automatic_optimization=False))))


def test_a_deviation_of_zero_is_found_at_flat_content_alone():
    found = rows(Extremes(), subject(config=config(data__standardize="frame")))
    assert failed(found) == [LARGE, SMALL, CONSTANT]
    assert found[CONSTANT].observed == "nonfinite_loss at pred_loss, first in encoder.embed"
    assert found[CONSTANT].batch["global"].unique().numel() == 1 and found[EMPTY].batch is None


def test_an_error_of_python_passes_and_is_called_unclear():
    found = rows(Extremes(), subject())
    assert found[EMPTY].observed.endswith("an error of its own would say why")


def test_a_refusal_passes():
    def forward(net, x):
        if not x.isfinite().all() or x.abs().max() > 1e3 or not len(x):
            raise ValueError(f"x: {x.abs().max() if len(x) else 'nothing'} is no input")
        return net(x).square().mean()

    found = rows(Extremes(), plain(forward))
    assert not failed(found)
    assert found[LARGE].observed.startswith("refused: ValueError: x: ") and "own" not in found[LARGE].observed
    assert found["NaN in x"].observed.startswith("refused: ValueError")


def test_a_step_that_refuses_everything_does_not_pass():
    def forward(net, x):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        rows(Extremes(), plain(forward))


def test_beside_a_batch_that_fails_as_it_is_nothing_is_asked():
    found = rows(Extremes(), plain(lambda net, x: net(x).mean().neg().sqrt() * float("nan")))
    assert failed(found) == list(found) == ["the batch as it is"]


@pytest.mark.parametrize(
    ("term", "check"),
    [
        (lambda net, x: net(x / x.std()), CONSTANT),
        (lambda net, x: (net(x) * x.abs().max() * 1e15).square() * 1e-35, LARGE),
        (lambda net, x: net(x) * (x.abs().max() * 1e-40).log(), SMALL),
    ],
    ids=["division by a deviation", "overflow", "logarithm of zero"],
)
def test_an_operation_that_breaks_at_an_end_is_found_there_alone(term, check):
    assert failed(rows(Extremes(), plain(lambda net, x: term(net, x).square().mean()))) == [check]


def test_a_finite_loss_with_gradients_that_are_not_fails():
    """The norm of zero: its value is fine, and its slope is 0/0."""

    def forward(net, x):
        centred = x - x.mean()
        return (net[0].weight.sum() * centred).square().sum().sqrt()

    found = rows(Extremes(), plain(forward))
    assert CONSTANT in failed(found) and "nonfinite_grad" in found[CONSTANT].observed


@pytest.mark.parametrize(
    "hide",
    [
        lambda x: x.nan_to_num(),
        lambda x: torch.where(x.isnan(), 0.0, x),
        lambda x: x.nan_to_num().clamp(-1, 1),
    ],
    ids=["nan_to_num", "where", "clamp"],
)
def test_nan_that_is_swallowed_on_its_way_in_fails(hide):
    found = rows(Extremes(), plain(lambda net, x: net(hide(x)).square().mean()))
    assert failed(found) == ["NaN in x"] and found["NaN in x"].observed.startswith("swallowed: loss")


def test_nan_that_is_swallowed_inside_an_encoder_of_bytes_fails():
    class Quiet(nn.Module):
        def forward(self, x):
            return x.nan_to_num()

    def build(given):
        harness = train.build(given)
        embed = harness.modules["encoder"].embed
        harness.modules["encoder"].embed = nn.Sequential(embed, Quiet())
        return harness

    found = rows(Extremes(), subject(build))
    assert failed(found) == ["NaN in what encoder gets"]


def test_nan_in_an_entry_that_the_loss_does_not_read_is_not_judged():
    asked = plain(lambda net, x: net(x).square().mean())
    batch = {**asked.batches[0], "rate": torch.tensor([25.0])}
    found = rows(Extremes(), subject(asked.build, batches=[batch], config={}))
    assert not failed(found) and "NaN in rate" in skipped(found) and "NaN in x" not in skipped(found)


def test_a_mean_of_no_samples_is_told_and_is_no_failure():
    def build(_):
        net = nn.Linear(16, 1)
        step = lambda batch: net(batch["x"]).square().mean()
        return Harness(
            modules={"net": net}, optimizer=torch.optim.SGD(net.parameters()), step=step, layout={"x": "b d"}
        )

    found = rows(Extremes(), subject(build, batches=[{"x": torch.ones(8, 16)}], config={}))
    assert not failed(found) and EMPTY in skipped(found)
    assert "nonfinite_loss at loss" in found[EMPTY].observed


def test_no_samples_that_spoil_the_gradients_behind_a_finite_loss_fail():
    def build(_):
        net = nn.Linear(16, 1)

        def step(batch):
            loss = net(batch["x"]).square().sum()
            return loss if len(batch["x"]) else loss + (net.weight.sum() * 0).sqrt()

        return Harness(
            modules={"net": net}, optimizer=torch.optim.SGD(net.parameters()), step=step, layout={"x": "b d"}
        )

    found = rows(Extremes(), subject(build, batches=[{"x": torch.ones(8, 16)}], config={}))
    assert failed(found) == [EMPTY] and "nonfinite_grad" in found[EMPTY].observed


def test_a_layout_without_samples_has_no_empty_batch():
    asked = plain(lambda net, x: net(x).square().mean())

    def build(given):
        harness = asked.build(given)
        harness.layout = {"x": "n d"}
        return harness

    assert EMPTY in skipped(rows(Extremes(), subject(build, batches=asked.batches, config={})))


def test_a_batch_without_content_is_said_to_be_one():
    def build(_):
        table = nn.Embedding(10, 4)
        step = lambda batch: table(batch["token"]).square().mean()
        sgd = torch.optim.SGD(table.parameters(), lr=0.1)
        return Harness(modules={"table": table}, optimizer=sgd, step=step, layout={"token": "b"})

    found = rows(Extremes(), subject(build, batches=[{"token": torch.arange(4)}], config={}))
    assert {LARGE, SMALL, CONSTANT, EMPTY, "NaN", ADVERSARIAL, PRECISION} == set(skipped(found))


def test_without_a_batch_nothing_is_said():
    (only,) = rows(Extremes(), subject(batches=[], no_batches="the harness has no loader")).values()
    assert "no loader" in only.observed


def test_an_adversarial_input_that_breaks_the_step_fails():
    """A pole just beyond the loss of the data, which is where the gradient leads."""
    usual = []

    def forward(net, x):
        loss = net(x).square().mean()
        usual[:] = usual or [float(loss.detach())]
        return loss if loss < usual[0] * 1.001 else loss * float("inf")

    asked = plain(forward)
    found = rows(Extremes(), asked)
    assert ADVERSARIAL in failed(found) and "nonfinite" in found[ADVERSARIAL].observed


def test_nothing_of_the_batch_is_written_to():
    batches = clips()
    before = [{k: v.clone() for k, v in b.items() if isinstance(v, torch.Tensor)} for b in batches]
    rows(Extremes(), subject(batches=batches))
    assert all(torch.equal(b[k], v) for b, old in zip(batches, before) for k, v in old.items())


class Offset(nn.Module):
    """Exact on paper: adds a thousand and takes it away. In 8 bits of mantissa a thousand is known to 4."""

    def forward(self, x):
        return (x + 1000) - 1000


@pytest.mark.parametrize("seed", range(3))
def test_an_offset_that_eats_the_mantissa_is_drift(seed):
    def build(given):
        harness = train.build(given)
        harness.autocast = "bf16"
        projector = harness.modules["projector"]
        projector[0] = nn.Sequential(projector[0], Offset())
        return harness

    found = rows(Extremes(), subject(build, seed=seed))
    assert failed(found) == [PRECISION] and found[PRECISION].observed.startswith("first beyond it projector.0.1: ")
    assert found[PRECISION].measured["variance"] > found[PRECISION].measured["tolerance"]


def test_an_overflow_in_half_precision_is_drift_without_bound():
    class Loud(nn.Module):
        def forward(self, x):
            return (x * 3e4) * 3e4 / 9e8

    def build(given):
        harness = train.build(given)
        harness.autocast = "fp16"
        projector = harness.modules["projector"]
        projector[0] = nn.Sequential(projector[0], Loud(), nn.Hardtanh(-9, 9))
        return harness

    found = rows(Extremes(), subject(build))
    assert PRECISION in failed(found)


def test_precision_that_the_step_opens_itself_is_compared_too():
    def opened(harness):
        inner = harness.step

        def step(batch):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return inner(batch)

        return step

    found = rows(Extremes(), subject(changed(step=opened)))
    assert not failed(found) and not skipped(found) and found[PRECISION].expected.startswith("bfloat16")


def test_drift_is_a_share_of_the_output():
    output = lambda mean, variance: drift.Output(module="m", dtype=torch.bfloat16, mean=mean, variance=variance)
    compare = lambda ours, theirs: drift.compare(torch.bfloat16, ([ours], {"loss": 1.0}), ([theirs], {"loss": 1.0}))
    assert compare(output(1.0, 1.0), output(1.0, 1.0)).within
    assert not compare(output(0.1, 1.0), output(0.0, 1.0)).within
    assert compare(output(1000.1, 1.0), output(1000.0, 1.0)).within
    assert not compare(output(1000.0, 1.2), output(1000.0, 1.0)).within
    assert not compare(output(float("nan"), 1.0), output(0.0, 1.0)).within
    assert compare(output(5.0, 0.0), output(5.0, 1e-12)).within  # constant


@pytest.mark.parametrize("make", [hostile.large, hostile.small, hostile.constant, hostile.mirrored])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.uint8])
def test_hostile_content_keeps_shape_and_type_and_is_finite(make, dtype):
    batch = {"x": (200 * torch.rand(2, 3, 4)).to(dtype), "y": torch.arange(2), "z": np.ones((2, 2), np.float32)}
    layout = Layout.parse({"x": "b t d", "y": "b"})
    new = hostile.changed(batch, layout, make)
    assert new["x"].dtype is dtype and new["x"].shape == (2, 3, 4) and torch.equal(new["y"], batch["y"])
    assert new["x"].double().isfinite().all() and isinstance(new["z"], np.ndarray) and new["z"].dtype == np.float32
    assert hostile.without_samples(batch, layout)["x"].shape == (0, 3, 4)
    assert hostile.without_samples({"x": ["a"]}, Layout.parse({"x": "b"})) == {"x": []}
