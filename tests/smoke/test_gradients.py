"""What is to be trained gets gradients, and an optimizer holds it."""

import pytest
import torch
from torch import nn

from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.gradients import FROZEN, GRAPH, OWNED, TERMS, Gradients

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


def asked(plain, made, batches=None):
    return plain.rows(Gradients(), plain.subject(made, batches))


def two(plain, step, held="ab", **fields):
    """Modules a and b; held: those whose parameters the optimizer has."""
    torch.manual_seed(0)
    modules = {"a": nn.Linear(4, 4), "b": nn.Linear(4, 1)}
    params = [p for name in held for p in modules[name].parameters()]
    optimizer = torch.optim.SGD(params or [nn.Parameter(torch.zeros(1))], lr=0.1)
    return plain.harness(
        lambda _, batch: step(modules["a"], modules["b"], batch["x"]),
        layout={"x": "b d"},
        modules=modules,
        optimizer=optimizer,
        **fields,
    )


def verdicts(plain, step, held="ab", prepare=lambda harness: harness, **fields):
    batches = [{"x": torch.rand(3, 4, generator=torch.Generator().manual_seed(i))} for i in range(2)]
    found = asked(plain, lambda: prepare(two(plain, step, held, **fields)), batches)
    return {check.removeprefix("gradients reach "): one.verdict for check, one in found.items()}


healthy = lambda a, b, x: b(a(x)).square().mean()


def test_a_healthy_harness_passes(plain):
    found = verdicts(plain, healthy)
    assert (found.pop(TERMS), set(found.values())) == (UNASKED, {PASSED})


def test_a_gradient_that_was_there_before_the_step_reaches_nothing(plain):
    def tried_out(harness):
        harness.modules["a"](torch.ones(1, 4)).sum().backward()
        return harness

    found = verdicts(plain, lambda a, b, x: b(x).square().mean(), prepare=tried_out)
    assert (found["a"], found["b"]) == (FAILED, PASSED)
    assert verdicts(plain, healthy, prepare=tried_out)["a"] is PASSED


def terms(total):
    def step(a, b, x):
        z = b(a(x))
        one_loss, two_loss, spread = (z - x[:, :1]).square().mean(), z.exp().mean(), z.std() * x.std() + z.mean()
        return {"loss": total(one_loss, two_loss), "one_loss": one_loss, "two_loss": 0.1 * two_loss, "spread": spread}

    return step


@pytest.mark.parametrize(
    ("total", "verdict"),
    [
        (lambda one, two: one + 0.1 * two, PASSED),
        (lambda one, two: one.detach() + 0.1 * two, FAILED),
        (lambda one, two: torch.as_tensor(one.item()) + 0.1 * two, FAILED),
    ],
)
def test_a_term_whose_number_alone_is_in_the_sum_is_caught(plain, total, verdict):
    found = verdicts(plain, terms(total))
    assert found.pop(TERMS) is verdict
    assert set(found.values()) == {PASSED}


def test_a_module_that_is_cut_off_is_named(plain):
    assert verdicts(plain, lambda a, b, x: b(a(x).detach()).square().mean())["a"] is FAILED
    assert verdicts(plain, lambda a, b, x: b(a(x).detach()).square().mean())["b"] is PASSED


def test_a_part_that_is_cut_off_is_named(plain):
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    step = lambda net, batch: net[0](batch["x"]).square().mean()
    found = asked(plain, lambda: plain.harness(step, net, {"x": "b d"}), [{"x": torch.rand(3, 4)}])
    assert found["gradients reach net"].verdict is FAILED
    assert "net.1" in found["gradients reach net"].observed


def test_a_weight_of_zero_that_opens_after_a_step_is_no_failure(plain):
    def prepare(harness):
        nn.init.zeros_(harness.modules["b"].weight)
        return harness

    assert verdicts(plain, lambda a, b, x: (b(a(x)) - 1).square().mean(), prepare=prepare)["a"] is PASSED


def test_gradients_that_are_zero_or_not_finite_do_not_count(plain):
    assert verdicts(plain, lambda a, b, x: b(a(x) * 0).square().mean())["a"] is FAILED
    assert verdicts(plain, lambda a, b, x: b(a(x) * 1e30).square().mean())["a"] is FAILED
    assert verdicts(plain, lambda a, b, x: b(a(x)).mean() * float("nan"))["b"] is FAILED


def frozen(harness):
    harness.modules["b"].requires_grad_(False)
    return harness


def test_a_frozen_module_that_the_optimizer_holds_is_caught(plain):
    found = verdicts(plain, healthy, prepare=frozen)
    assert (found[FROZEN], found["b"], found["a"]) == (FAILED, FAILED, PASSED)


def test_one_that_nobody_holds_is_a_teacher_and_no_pass(plain):
    found = verdicts(plain, healthy, held="a", prepare=frozen)
    assert (found[FROZEN], found[OWNED], found["b"]) == (PASSED, PASSED, UNASKED)


def test_trained_parameters_without_an_optimizer_are_caught(plain):
    assert verdicts(plain, healthy, held="a")[OWNED] is FAILED


def test_an_optimizer_of_something_else_is_caught(plain):
    assert verdicts(plain, healthy, held="")[OWNED] is FAILED


def test_a_detached_loss_is_caught_and_said_once(plain):
    found = verdicts(plain, lambda a, b, x: healthy(a, b, x).detach())
    assert (found[GRAPH], found["a"], found["b"]) == (FAILED, UNASKED, UNASKED)


def test_a_loss_that_is_a_number_is_caught(plain):
    assert verdicts(plain, lambda a, b, x: healthy(a, b, x).item())[GRAPH] is FAILED


@pytest.mark.parametrize("backward", [True, False])
def test_a_step_that_optimizes_by_itself_is_seen_at_its_optimizer(plain, backward):
    def made():
        harness = two(plain, healthy, automatic_optimization=False)
        forward = harness.step

        def step(batch):
            loss = forward(batch)
            if backward:
                harness.optimizer.zero_grad()
                loss.backward()
                harness.optimizer.step()
                harness.optimizer.zero_grad()
            return loss.detach()

        harness.step = step
        return harness

    found = asked(plain, made, [{"x": torch.rand(3, 4)}])
    assert found[GRAPH].verdict is (PASSED if backward else FAILED)
    assert found["gradients reach a"].verdict is (PASSED if backward else FAILED)


def test_accumulation_and_clipping_hide_nothing(plain):
    assert set(verdicts(plain, healthy, accumulate=4, clip_grad_norm=1e-6).values()) == {PASSED, UNASKED}


def test_without_a_loader_the_optimizer_is_still_looked_at(plain):
    found = asked(plain, lambda: two(plain, healthy, held="a"), [])
    assert found[OWNED].verdict is FAILED
    assert found[GRAPH].verdict is found["gradients reach a"].verdict is UNASKED


def test_nothing_to_train_is_no_pass(plain):
    def made():
        harness = two(plain, lambda a, b, x: healthy(a, b, x).requires_grad_())
        for module in harness.modules.values():
            module.requires_grad_(False)
        return harness

    found = asked(plain, made, [{"x": torch.rand(3, 4)}])
    assert found[OWNED].verdict is found[FROZEN].verdict is FAILED
    assert PASSED not in {one.verdict for check, one in found.items() if check.startswith("gradients reach")}


def test_what_a_scaler_skips_is_not_asked(plain):
    high = lambda: torch.amp.GradScaler("cpu", init_scale=2.0**127)
    found = verdicts(plain, lambda a, b, x: 1e10 * healthy(a, b, x), prepare=lambda harness: _with(harness, high()))
    assert (found["a"], found["b"]) == (UNASKED, UNASKED)
    low = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    found = verdicts(plain, healthy, prepare=lambda harness: _with(harness, low))
    assert (found["a"], found["b"]) == (PASSED, PASSED)


def _with(harness, scaler):
    harness.scaler = scaler
    return harness
