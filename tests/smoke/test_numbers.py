"""What the loader gives, what arrives, and what it loses."""

import pytest
import torch

from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.numbers import GROWTH, MOVES, NORM, ONCE, TERMS, Numbers

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE
CLIP = "clip: finite, in range, alive"


def asked(plain, step=None, batches=None, **fields):
    return plain.rows(Numbers(), plain.subject(lambda: plain.harness(step, **fields), batches))


def test_a_healthy_step_passes_every_check(plain):
    found = asked(plain)
    assert {one.verdict for one in found.values()} == {PASSED}
    assert found[CLIP].measured["max"] <= 255
    assert found[TERMS].measured["loss"] > 0


def holed(plain, value, where=(0, 0, 0, 0, 0)):
    clip = plain.clips(0).float() / 255
    clip[where] = value
    return [{"clip": clip}, {"clip": clip}]


@pytest.mark.parametrize(
    "batches",
    [
        lambda plain: holed(plain, float("nan")),
        lambda plain: holed(plain, float("inf")),
        lambda plain: holed(plain, 0.5, (2,)),  # one sample is flat
        lambda plain: [{"clip": torch.zeros_like(plain.clips(0))}],
        lambda plain: [{"clip": plain.clips(0).clamp(max=1)}],  # scaled before it became bytes
        lambda plain: [{"clip": plain.clips(0)[:0]}],
    ],
)
def test_a_bad_entry_is_caught(plain, batches):
    fine = lambda net, batch: sum(p.square().sum() for p in net.parameters())
    assert asked(plain, fine, batches(plain))[CLIP].verdict is FAILED


def test_a_bad_second_batch_is_the_one_that_an_incident_will_hold(plain):
    dead = {"clip": torch.zeros_like(plain.clips(0))}
    assert asked(plain, batches=[{"clip": plain.clips(0)}, dead])[CLIP].lap == 2


def test_labels_may_be_constant_and_numpy_is_looked_at(plain):
    batch = {"clip": plain.clips(0).numpy(), "label": torch.zeros(4, dtype=torch.long), "name": ["x"] * 4}
    step = lambda net, batch: net(torch.as_tensor(batch["clip"]).flatten(0, 1).float() / 255).mean()
    layout = {"clip": "b t c h w", "label": "b", "name": "b"}
    assert {one.verdict for one in asked(plain, step, [batch, batch], layout=layout).values()} == {PASSED}


def through(scale):
    return lambda net, batch: net(scale(batch["clip"].float()).flatten(0, 1)).square().mean()


twice = lambda clip: ((clip / 255 - 0.45) / 0.225 - 0.45) / 0.225


@pytest.mark.parametrize(
    ("scale", "verdict"),
    [
        (lambda clip: clip / 255, PASSED),
        (lambda clip: clip / 127.5 - 1, PASSED),
        (lambda clip: (clip / 255 - 0.45) / 0.225, PASSED),
        (twice, FAILED),
        (lambda clip: clip / 255 / 255, FAILED),
        (lambda clip: clip, FAILED),
        (lambda clip: (clip / 255 - 0.45) / 0.225 * 2 - 1, FAILED),
        (lambda clip: clip * 0 + 0.5, FAILED),
        (lambda clip: clip / 0, FAILED),
    ],
)
def test_the_range_that_arrives_tells_how_often_it_was_normalised(plain, scale, verdict):
    assert asked(plain, through(scale))[ONCE].verdict is verdict


def test_a_dark_scene_is_no_second_normalisation_and_hides_none(plain):
    dark = [{"clip": plain.clips(i) // 16} for i in range(2)]
    assert asked(plain, through(lambda clip: (clip / 255 - 0.45) / 0.225), dark)[ONCE].verdict is PASSED
    assert asked(plain, through(twice), dark)[ONCE].verdict is FAILED


def test_a_loader_of_floats_that_normalises_twice_is_caught(plain):
    batches = [{"clip": twice(plain.clips(i).float())} for i in range(2)]
    assert asked(plain, through(lambda clip: clip), batches)[ONCE].verdict is FAILED


def test_bytes_that_reach_a_module_are_caught(plain):
    class Casting(torch.nn.Conv2d):
        def forward(self, clip):
            return super().forward(clip.float())

    step = lambda net, batch: net(batch["clip"].flatten(0, 1)).square().mean()
    assert asked(plain, step, net=Casting(3, 2, 3))[ONCE].verdict is FAILED


@pytest.mark.parametrize("odd", [0, 1])
def test_one_call_that_gets_pictures_normalised_twice_is_not_hidden_by_another(plain, odd):
    once = lambda clip: (clip / 255 - 0.45) / 0.225

    def step(net, batch):
        halves = batch["clip"].float().chunk(2)
        return sum(net((twice if i == odd else once)(x).flatten(0, 1)).square().mean() for i, x in enumerate(halves))

    assert asked(plain, step)[ONCE].verdict is FAILED


@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4, 5), (1, 0, 2, 3, 4, 5)])  # views of a sample together, or not
def test_one_view_of_many_samples_that_is_normalised_twice_is_caught(plain, order):
    batches = [{"clip": plain.clips(i, (16, 4, 2, 3, 8, 8))} for i in range(2)]

    def step(net, batch):
        clip = batch["clip"].float() / 255
        clip = torch.cat([clip[:, :3], twice(255 * clip[:, 3:])], 1)
        return net(clip.permute(order).flatten(0, 2)).square().mean()

    assert asked(plain, step, batches, layout={"clip": "b v t c h w"})[ONCE].verdict is FAILED


def test_a_term_that_is_only_watched_is_no_loss_that_a_view_moves(plain):
    layout = {"clip": "b v t c h w"}
    batches = [{"clip": plain.clips(i, (2, 3, 2, 3, 8, 8))} for i in range(2)]

    def step(net, batch):
        clip = batch["clip"].float() / 255
        return {"loss": net(clip[:, :2].flatten(0, 2)).square().mean(), "brightness": clip[:, 2].mean()}

    found = asked(plain, step, batches, layout=layout)[MOVES]
    assert (found.verdict, "clip view 2" in found.observed) == (FAILED, True)


def test_complex_entries_are_looked_at(plain):
    fine = torch.ones(4, 2, dtype=torch.complex64)
    step = lambda net, batch: net(batch["clip"].flatten(0, 1).float() / 255).square().mean()
    for spectrum, verdict in (fine, PASSED), (fine * complex(1, float("nan")), FAILED):
        batches = [{"clip": plain.clips(i), "spectrum": spectrum} for i in range(2)]
        assert asked(plain, step, batches)["spectrum: finite, in range, alive"].verdict is verdict


def test_a_view_that_nothing_depends_on_is_caught(plain):
    layout = {"clip": "b v t c h w"}
    batches = [{"clip": plain.clips(i, (2, 3, 2, 3, 8, 8))} for i in range(2)]
    loss = lambda net, clip: net(clip.flatten(0, 2).float() / 255).square().mean()
    whole = asked(plain, lambda net, batch: loss(net, batch["clip"]), batches, layout=layout)[MOVES]
    assert (whole.verdict, whole.observed) == (PASSED, "all of 3 views")
    blind = asked(plain, lambda net, batch: loss(net, batch["clip"][:, :2]), batches, layout=layout)[MOVES]
    assert blind.verdict is FAILED
    assert "clip view 2" in blind.observed


def test_a_loss_of_nan_moves_nothing(plain):
    step = lambda net, batch: net(batch["clip"].flatten(0, 1).float() / 255).mean() * float("nan")
    found = asked(plain, step)
    assert found[TERMS].verdict is found[NORM].verdict is FAILED
    assert found[MOVES].verdict is found[GROWTH].verdict is UNASKED


def test_a_loss_that_noise_makes_nan_moves_nothing(plain):
    batch = {"clip": plain.clips(0) % 9}

    def step(net, batch):
        dim = (batch["clip"] < 9).all().float()  # it is, and noise is not
        return net(batch["clip"].flatten(0, 1).float() / 255).mean() + 0 / dim

    assert asked(plain, step, [batch, batch])[MOVES].verdict is FAILED


def test_a_loss_that_cannot_be_repeated_is_not_asked(plain):
    noise = torch.Generator().manual_seed(0)
    step = lambda net, batch: net(batch["clip"].flatten(0, 1).float() / 255).mean() + torch.rand(1, generator=noise)[0]
    assert asked(plain, step)[MOVES].verdict is UNASKED


@pytest.mark.parametrize(("weight", "verdict"), [(1.0, PASSED), (1e12, FAILED)])
def test_the_gradient_norm_is_seen_before_it_is_clipped(plain, weight, verdict):
    step = lambda net, batch: weight * net(batch["clip"].flatten(0, 1).float() / 255).square().mean()
    assert asked(plain, step, clip_grad_norm=1.0)[NORM].verdict is verdict


def test_a_term_that_grows_a_thousandfold_is_caught_and_one_that_begins_near_zero_is_not(plain):
    def growing(by, start):
        scales = iter([start, start * by])

        def step(net, batch):
            loss = net(batch["clip"].flatten(0, 1).float() / 255).square().mean()
            return {"loss": loss, "other": torch.tensor(next(scales, start))}

        return step

    def asked_for(by, start):
        # forward passes before the laps are not to use up the terms
        return Numbers()._growth(lapped(plain, growing(by, start)))

    assert asked_for(2000.0, 1.0).verdict is FAILED
    assert asked_for(500.0, 1.0).verdict is PASSED
    assert asked_for(1e5, 1e-4).verdict is PASSED
    assert asked_for(float("nan"), 1.0).verdict is FAILED


def lapped(plain, step):
    from reprokit.smoke.laps import laps

    subject = plain.subject()
    return list(laps(subject, plain.harness(step)))


def test_without_a_loader_nothing_is_asked(plain):
    assert {one.verdict for one in asked(plain, batches=[]).values()} == {UNASKED}


def test_growth_needs_two_laps(plain):
    assert asked(plain, batches=[{"clip": plain.clips(0)}])[GROWTH].verdict is UNASKED


def test_a_step_that_draws_its_views_is_asked_under_other_seeds(plain):
    layout = {"clip": "b v t c h w"}
    batches = [{"clip": plain.clips(i, (2, 3, 2, 3, 8, 8))} for i in range(2)]

    def step(net, batch):
        chosen = int(torch.randint(3, ()))
        return net(batch["clip"][:, chosen].flatten(0, 1).float() / 255).square().mean()

    assert asked(plain, step, batches, layout=layout)[MOVES].verdict is PASSED


def test_latents_have_a_range_of_their_own(plain):
    batches = [{"clip": 30 * torch.randn(4, 2, 8, 8, 8, generator=torch.Generator().manual_seed(i))} for i in range(2)]
    step = lambda net, batch: net(batch["clip"].flatten(0, 1)).square().mean()
    found = asked(plain, step, batches, net=torch.nn.Conv2d(8, 2, 3))
    assert (found[ONCE].verdict, found[CLIP].verdict) == (UNASKED, PASSED)


def test_a_module_may_normalise_before_its_first_weights(plain):
    class Unit(torch.nn.Module):
        def forward(self, clip):
            return clip / 255

    step = lambda net, batch: net(batch["clip"].flatten(0, 1).float()).square().mean()
    found = asked(plain, step, net=torch.nn.Sequential(Unit(), torch.nn.Conv2d(3, 2, 3)))
    assert (found[ONCE].verdict, found[ONCE].observed[-9:]) == (PASSED, " at net.1")


def test_a_mask_of_ones_is_no_dead_view(plain):
    batches = [{"clip": plain.clips(i), "mask": torch.ones(4, 2, 8, 8)} for i in range(2)]
    layout = {"clip": "b t c h w", "mask": "b t h w"}
    assert {one.verdict for one in asked(plain, batches=batches, layout=layout).values()} == {PASSED}


def test_what_a_scaler_skips_is_no_explosion(plain):
    scaler = lambda: torch.amp.GradScaler("cpu", init_scale=2.0**120)
    made = lambda: plain.harness(lambda net, batch: 1e10 * loss(net, batch), scaler=scaler())
    loss = lambda net, batch: net(batch["clip"].flatten(0, 1).float() / 255).square().mean()
    assert plain.rows(Numbers(), plain.subject(made))[NORM].verdict is UNASKED
    made = lambda: plain.harness(loss, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    assert plain.rows(Numbers(), plain.subject(made))[NORM].verdict is PASSED
