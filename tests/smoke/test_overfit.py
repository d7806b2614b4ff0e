from itertools import count

import pytest
import torch

from reprokit.errors import BadInput
from reprokit.smoke.gates.overfit import Overfit
from reprokit.video import losses, train

from .small import by_itself, changed, config, failed, plain, rows, skipped, subject

FALLS = "the loss of one batch falls"
BOUNDED = "losses and gradients stay bounded"
SAME = "the first loss under one seed"
EMBEDDINGS = "outputs of projector tell samples apart"


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("drop", [0.0, 0.9])
def test_a_healthy_model_passes_whatever_its_seed(seed, drop):
    found = rows(Overfit(), subject(seed=seed, config=config(seed, model__token_drop_rate=drop)))
    assert not failed(found) and not skipped(found)
    assert {SAME, FALLS, BOUNDED, "features tell samples apart", EMBEDDINGS} <= set(found)
    assert found[FALLS].measured["last"] < found[FALLS].measured["first"] / 2


@pytest.mark.parametrize("fields", [{"autocast": "bf16"}, {"accumulate": 2}], ids=str)
def test_a_healthy_model_passes_however_its_loop_runs(fields):
    assert not failed(rows(Overfit(), subject(changed(**fields))))


def test_a_step_that_optimizes_by_itself_passes_too():
    found = rows(Overfit(), subject(changed(step=by_itself, automatic_optimization=False)))
    assert not failed(found) and found[BOUNDED].measured["grad_norm"] > 0


@pytest.mark.parametrize("steps", [0, 49, 101])
def test_steps_that_show_nothing_are_refused(steps):
    with pytest.raises(BadInput, match="50 to 100"):
        Overfit(steps)


def test_without_a_batch_nothing_is_said():
    found = rows(Overfit(), subject(batches=[], no_batches="the harness has no loader"))
    (only,) = found.values()
    assert skipped(found) and "no loader" in only.observed


def test_a_frozen_model_fails_although_its_loss_is_redrawn_each_step():
    frozen = changed(optimizer=lambda harness: torch.optim.SGD(harness.modules["encoder"].parameters(), lr=0.0))
    found = rows(Overfit(), subject(frozen, config=config(model__token_drop_rate=0.5)))
    assert failed(found) == [FALLS]
    assert found[FALLS].measured["fall"] == 0.0 and "optimizer" in found[FALLS].advice


def test_a_frozen_model_whose_loss_no_seed_controls_fails():
    private = torch.Generator()
    noisy = plain(lambda net, x: net(x).square().mean() + torch.rand((), generator=private), lr=0.0)
    for _ in range(3):
        assert FALLS in failed(rows(Overfit(), noisy))


def test_a_loss_that_rises_fails():
    rising = plain(lambda net, x: _rising(net(x)), lr=1e-3)
    assert failed(rows(Overfit(), rising)) == [FALLS]


def _rising(output):
    """Its gradient points downhill of something else: a sign that was lost."""
    value = output.square().mean()
    return 2 * value.detach() - value


@pytest.mark.parametrize("seed", range(3))
def test_a_collapse_fails_although_the_loss_falls(monkeypatch, seed):
    """A regulariser that pulls embeddings to the origin, where all views agree."""

    def pulling(embeddings):
        terms = losses.losses(embeddings)
        return terms | {"loss": terms["pred_loss"] + embeddings.square().mean()}

    monkeypatch.setattr(train, "losses", pulling)
    found = rows(Overfit(), subject(seed=seed))
    assert found[FALLS].measured["last"] < found[FALLS].measured["first"] / 10
    assert failed(found) == [EMBEDDINGS] and "collapse" in found[EMBEDDINGS].advice


def test_outputs_that_are_one_point_fail_whatever_their_size():
    found = rows(Overfit(100), plain(lambda net, x: (net(x) - 1).square().mean()))
    assert failed(found) == ["outputs of net tell samples apart"]
    assert found[failed(found)[0]].measured["deviation"] < 0.01


def test_outputs_that_were_far_too_large_and_find_their_size_are_no_collapse():
    found = rows(Overfit(), plain(lambda net, x: _loss_that_starts_large(net, x), lr=3e-2))
    judged = found["outputs of net tell samples apart"]
    assert judged.measured["spread"] < judged.measured["spread_before"] / 8 and not failed(found)


def _loss_that_starts_large(net, x):
    """Its last layer is a hundred times too wide, once."""
    if net[2].weight.abs().max() < 1:
        net[2].weight.data.mul_(100)
    return (net(x) - 2 * x).square().mean()


def test_features_on_one_line_fail():
    """One direction is left, whatever its length."""
    seen = []

    def forward(net, x):
        seen[:] = [net(x)[:, :1] * torch.ones(16)]
        return (seen[0] - x[:, :1]).square().mean()

    found = rows(Overfit(), plain(forward, features=lambda batch: seen[0] if seen else batch["x"]))
    assert failed(found) == ["features tell samples apart"]
    assert found["features tell samples apart"].measured["dimensions"] < 1.0001


def test_narrow_outputs_are_answers_and_not_judged():
    found = rows(Overfit(), plain(lambda net, x: (net(x) - 1).square().mean(), width=4))
    assert skipped(found) == ["features tell samples apart"] and not failed(found)


@pytest.mark.parametrize("lr", [1e3, 1e20])
def test_an_explosion_fails(lr):
    found = rows(Overfit(), subject(config=config(optim__lr=lr, optim__weight_decay=10.0)))
    assert BOUNDED in failed(found)


def test_a_loss_that_grows_for_good_fails_though_it_is_finite():
    found = rows(Overfit(), plain(lambda net, x: _rising(net(x)), lr=0.3))
    assert BOUNDED in failed(found) and "over" in found[BOUNDED].observed


def test_nan_in_step_three_is_named_and_nothing_is_said_about_the_rest():
    count = [0]

    def forward(net, x):
        count[0] += 1
        return net(x).square().mean() * (float("nan") if count[0] == 13 else 1.0)

    found = rows(Overfit(), plain(forward))
    assert failed(found) == [BOUNDED] and FALLS not in found
    assert "nonfinite_loss at loss in step" in found[BOUNDED].observed


def test_a_build_that_ignores_the_seed_fails_by_the_weights_that_differ():
    def build(given):
        harness = train.build(given)
        torch.seed()
        torch.nn.init.normal_(harness.modules["projector"][0].weight)
        return harness

    found = rows(Overfit(), subject(build))
    assert SAME in failed(found) and "projector.0.weight" in found[SAME].observed


def test_directions_that_no_seed_controls_are_compared_with_a_tolerance_that_is_measured():
    """Which is passed by two more of one kind nearly always, and not always: the draws here are the same each time."""
    seeds = count()

    def redrawn(harness):
        inner = harness.step

        def step(batch):
            private = torch.Generator().manual_seed(next(seeds))
            terms = inner(batch)
            noise = 0.01 * torch.randn((), generator=private)
            return terms | {"loss": terms["loss"] + noise}

        return step

    for _ in range(3):
        found = rows(Overfit(), subject(changed(step=redrawn)))
        assert SAME not in failed(found)
        assert 0 < found[SAME].measured["difference"] <= found[SAME].measured["tolerance"] < 0.3


def test_a_first_loss_that_depends_on_how_often_one_built_fails():
    built = [0]

    def counted(harness):
        built[0] += 1
        inner, number = harness.step, built[0]
        return lambda batch: inner(batch) | {"loss": inner(batch)["loss"] * number}

    found = rows(Overfit(), subject(changed(step=counted)))
    assert SAME in failed(found) and "loss is" in found[SAME].observed


@pytest.mark.slow
@pytest.mark.parametrize("regularised", [True, False])
def test_on_real_clips_the_reference_model_collapses_without_its_regulariser_and_not_with_it(monkeypatch, regularised):
    """With it embeddings shrink, too, to a fifth, but they come back."""
    usual = train.default_config()
    usual["data"]["standardize"], usual["video"]["pad_last"] = "imagenet", False
    if not regularised:
        monkeypatch.setattr(losses, "SIGREG_WEIGHT", 0.0)
    batch = next(iter(train.build(usual).loader))
    found = rows(Overfit(), subject(config=usual, batches=[batch]))
    assert failed(found) == ([] if regularised else [EMBEDDINGS])
    assert found[FALLS].measured["last"] < found[FALLS].measured["first"] / 3
