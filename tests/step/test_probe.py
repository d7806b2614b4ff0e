"""What a probe sees of a step, whoever runs the loop."""

import pytest
import torch
from torch import nn

from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.harness import Harness
from reprokit.step.probe import Probe, phase_of
from reprokit.step.run import run

NAN = float("nan")


def make(step=None, **fields):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    fields.setdefault("optimizer", torch.optim.SGD(net.parameters(), lr=0.1))
    step = step or (lambda batch: {"loss": net(batch).pow(2).mean()})
    return Harness(modules={"net": net}, step=step, layout="b d", **fields), net


def probed(harness, batch, **options):
    with Probe(harness) as probe:
        run(harness, batch, probe, **options)
    return probe


def kinds(probe):
    return [symptom.kind for symptom in probe.symptoms]


def test_a_healthy_step_has_no_symptoms_and_a_whole_fingerprint():
    harness, _ = make()
    probe = probed(harness, torch.ones(2, 4))
    assert not probe.symptoms
    assert set(probe.fingerprint()) == {"losses", "gradients/net", "parameters/net"}


def test_equal_steps_have_equal_fingerprints_and_another_batch_another():
    prints = [probed(make()[0], torch.full((2, 4), x)).fingerprint() for x in (1.0, 1.0, 1.0000001)]
    assert prints[0] == prints[1] and all(prints[0][part] != prints[2][part] for part in prints[0])


def test_a_nan_is_followed_from_the_loss_to_the_parameters():
    harness, _ = make()
    probe = probed(harness, torch.tensor([[NAN, 0, 0, 0]]))
    assert kinds(probe) == [Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM]
    assert probe.symptoms[1].evidence["first"]["net.weight"] == {"nan": 4, "inf": 0, "of": 4}


def test_the_failing_term_is_named_before_the_sum():
    harness, net = make(lambda batch: {"loss": batch.sum() * NAN, "a": net(batch).sum(), "b": net(batch).sum() * NAN})
    assert probed(harness, torch.ones(1, 4), until=Kind.NONFINITE_LOSS).symptoms[0].where == "b"


def test_gradients_are_looked_at_before_clipping_spreads_one_infinity():
    harness, net = make(clip_grad_norm=1.0)
    harness.step = lambda batch: {
        "loss": (net.bias * 1e38 * 1e38).sum().clamp(-1, 1) * 0 + _overflow(net.bias) + net(batch).sum()
    }
    probe = probed(harness, torch.ones(1, 4))
    assert probe.symptoms[0].kind is Kind.NONFINITE_GRAD
    assert list(probe.symptoms[0].evidence["first"]) == ["net.bias"]  # and not the weight, which clipping makes NaN
    assert probe.symptoms[1].kind is Kind.NONFINITE_PARAM


class _Overflow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum() * 0

    @staticmethod
    def backward(ctx, grad):
        return torch.full((1,), float("inf"))


def _overflow(x):
    return _Overflow.apply(x)


def test_a_loop_of_ones_own_is_seen_through_the_optimizers_hook():
    harness, net = make(automatic_optimization=False)
    with Probe(harness) as probe:
        loss = net(torch.tensor([[NAN, 0, 0, 0]])).sum()
        probe.look_at_losses(loss)
        loss.backward()
        harness.optimizer.step()
        harness.optimizer.zero_grad()
    assert kinds(probe) == [Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM]
    assert "gradients/net" in probe.fingerprint()  # they outlive zero_grad


def test_gradients_that_were_zeroed_in_place_are_no_fingerprint():
    harness, net = make(automatic_optimization=False)
    with Probe(harness) as probe:
        net(torch.ones(1, 4)).sum().backward()
        harness.optimizer.step()
        harness.optimizer.zero_grad(set_to_none=False)
    assert "gradients/net" not in probe.fingerprint()


def test_an_optimizer_that_nobody_registered_is_named():
    harness, net = make(automatic_optimization=False)
    other = torch.optim.Adam(nn.Linear(2, 2).parameters())
    with Probe(harness) as probe:
        other.step()
        torch.optim.SGD(net.parameters(), lr=1).step()
    assert probe.strangers == [
        "Adam over 2 parameters (of no registered module)", "SGD over 2 parameters (of net.weight and others)"
    ]  # fmt: skip


def test_the_hook_goes_with_the_probe():
    harness, net = make()
    probe = probed(harness, torch.ones(1, 4))
    torch.optim.Adam(net.parameters()).step()
    assert not probe.strangers


def test_accumulation_steps_every_second_batch_on_the_mean():
    harness, net = make(accumulate=2)
    before = net.weight.detach().clone()
    probed(harness, torch.ones(1, 4), micro=0)
    assert torch.equal(net.weight, before) and net.weight.grad is not None
    once, _ = make()
    probed(once, torch.ones(2, 4))
    probed(harness, torch.ones(1, 4), micro=1)
    torch.testing.assert_close(net.weight, once.modules["net"].weight)


def test_a_scalers_skip_is_no_failure():
    harness, net = make(scaler=torch.amp.GradScaler("cpu"))
    harness.step = lambda batch: {"loss": net(batch).sum() + _overflow(net.bias)}
    assert not probed(harness, torch.ones(1, 4)).symptoms


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        ({"total": torch.tensor(1.0)}, "needs the key 'loss'"),
        ({"loss": torch.ones(2)}, r"shape \[2\]"),
        ({"loss": "low"}, "'loss' is a str"),
        (None, "'loss' is a NoneType"),
    ],
)
def test_what_a_step_may_not_return(returned, says):
    harness, _ = make(lambda batch: returned)
    with pytest.raises(BadInput, match=says):
        probed(harness, torch.ones(1, 4))


def test_phases_are_told_by_the_frames_of_the_exception():
    net = nn.Linear(4, 1)

    def backward():
        class Breaks(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.sum()

            @staticmethod
            def backward(ctx, grad):
                raise ValueError("here")

        Breaks.apply(net.weight).backward()

    def optimizer():
        torch.optim.SGD(net.parameters(), lr=1).step(closure=lambda: 1 / 0)

    for phase, fails in {"forward": lambda: net(torch.ones(3)), "backward": backward, "optimizer": optimizer}.items():
        with pytest.raises((RuntimeError, ValueError, ZeroDivisionError)) as error:
            fails()
        assert phase_of(error.value) == phase
