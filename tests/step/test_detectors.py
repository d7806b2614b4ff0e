"""Each detector fires on what it is for, and not in a hard healthy run."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reprokit.errors import BadInput
from reprokit.failure import Kind, Symptom
from reprokit.harness import Harness
from reprokit.layout import Layout
from reprokit.step.detectors import Watching, inputs, of_replay, of_run, scaler
from reprokit.step.detectors.collapse import Collapse, look_at_features, moments
from reprokit.step.detectors.scaler import Scale, ScalerStall
from reprokit.step.detectors.spikes import GradSpike, LossSpike, Window
from reprokit.step.detectors.view import Scaling, Spectrum, StepView
from reprokit.step.finite import all_finite, bad_numbers, norm
from reprokit.step.limits import Limits
from reprokit.step.probe import Probe
from reprokit.step.run import run

NAN, INF = float("nan"), float("inf")


def kinds(probe):
    return [symptom.kind for symptom in probe.symptoms]


# --- spikes, on curves


def losses(curve, detector=None):
    """What the default detector says of each value of a curve."""
    detector = detector or LossSpike(window=Window(128, 10.0, 6.0))
    return [detector.look(StepView(losses={"loss": value})) for value in curve]


def noisy(level, steps, spread=0.1, seed=0):
    generator = random.Random(seed)
    return [level * math.exp(generator.gauss(0, spread)) for _ in range(steps)]


def healthy_curve(seed):
    """500 steps: a steep start, a warm-up that rocks, a lower rate at 200, augmentation from 300, a restart at 400."""
    generator = random.Random(seed)
    curve = []
    for step in range(500):
        level = 0.3 + 6 * math.exp(-step / 25) + (0.3 * math.sin(step / 3) if step < 40 else 0)
        level *= 0.4 if step >= 200 else 1
        level *= 1.8 if step >= 300 else 1
        level *= 1 + min(0.8, max(0, step - 400) / 20)
        curve.append(level * math.exp(generator.gauss(0, 0.3)))
    return curve


@pytest.mark.parametrize("factor", [10.5, 1e6])
def test_a_loss_that_jumps_is_a_spike_with_its_threshold(factor):
    *before, found = losses([*noisy(0.5, 100), 0.5 * factor])
    assert not any(before) and (found.kind, found.where) == (Kind.LOSS_SPIKE, "loss")
    assert found.evidence["mean"] < found.evidence["threshold"] < found.evidence["value"] == 0.5 * factor


@pytest.mark.parametrize("seed", range(20))
def test_a_hard_healthy_curve_has_no_spike(seed):
    assert not any(losses(healthy_curve(seed)))


@pytest.mark.parametrize(
    "curve",
    [
        [*noisy(1.0, 200, 1e-4), *noisy(1.5, 100, 1e-4)],  # a small step out of great quiet
        [math.sin(step) * 0.2 for step in range(300)],  # a loss that crosses zero
        [0.5 if step % 9 == 0 else 0.0 for step in range(300)],  # a hinge that is seldom open
        [*[0.0] * 100, 1e-6],
        [*[1.0] * 100, 1.9],
        [-(2.0 + step / 100) for step in range(300)],  # a likelihood
    ],
)
def test_other_curves_of_healthy_losses_have_none(curve):
    assert not any(losses(curve))


def test_no_verdict_before_there_is_history_but_for_an_absolute_bound():
    assert not any(losses([*noisy(0.5, 31), 1e9]))
    assert losses([*noisy(0.5, 32), 1e9])[-1]
    [found] = losses([11.0], LossSpike(10.0, Window(128, 10.0, 6.0)))
    assert found.evidence == {"value": 11.0, "threshold": 10.0}


def test_neither_nan_nor_a_spike_blinds_the_window():
    found = losses([*noisy(0.5, 100), NAN, INF, 50.0, *noisy(0.5, 20), NAN, 50.0])
    assert [i for i, one in enumerate(found) if one] == [102, 124]


def test_a_lasting_level_is_learnt():
    found = losses([*noisy(0.5, 100), *noisy(50.0, 200, seed=1)])
    assert [i for i, one in enumerate(found) if one] == list(range(100, 132))


@given(st.lists(st.floats(0.1, 10), min_size=40, max_size=60), st.floats(0.1, 1e6), st.integers(-20, 20))
def test_a_verdict_does_not_depend_on_the_losses_scale(curve, last, power):
    one, other = losses([*curve, last]), losses([value * 2.0**power for value in [*curve, last]])
    assert [bool(found) for found in one] == [bool(found) for found in other]


@given(st.lists(st.floats(0.1, 1), min_size=40, max_size=60), st.floats(0.1, 1e6))
def test_a_replay_finds_a_spike_by_its_threshold_alone(curve, last):
    *_, found = losses([*curve, last])
    if found:
        again = lambda value: of_replay([found]).look(StepView(losses={"loss": value}))
        assert [(one.kind, one.where, one.evidence["threshold"]) for one in again(last)] == [
            (found.kind, found.where, found.evidence["threshold"])
        ]
        assert not again(found.evidence["threshold"]) and not again(NAN)


def test_gradients_above_the_bound_are_a_spike_and_large_ones_that_are_usual_are_not():
    look = lambda detector, curve: [detector.look(StepView(grad_norm=value)) for value in curve]
    *before, found = look(GradSpike(1e6), [*noisy(100.0, 500, 1.0), None, NAN, INF, 1.1e6])
    assert not any(before) and (found.kind, found.where) == (Kind.GRAD_SPIKE, "backward")
    relative = GradSpike(1e6, Window(128, 100.0, None))
    assert look(relative, [*noisy(1.0, 100), 1e3])[-1].evidence["threshold"] < 200


# --- the scaler


def test_a_scaler_that_skips_k_times_in_a_row_stalls_and_single_skips_do_not():
    skipped, went = Scaling(succeeded=False, skipped=1, scale=8.0), Scaling(succeeded=True, skipped=0, scale=8.0)
    detector = ScalerStall(10, 1e-4)
    found = [detector.look(StepView(scaling=one)) for one in [*[skipped] * 9, went, None, *[skipped] * 10]]
    assert not any(found[:-1]) and found[-1].evidence["value"] == found[-1].evidence["threshold"] == 10
    again = of_replay([found[-1]], skips=9)
    assert again.look(StepView(scaling=skipped)) and not again.look(StepView(scaling=went))


def test_a_scale_that_falls_below_its_bound_is_a_stall_and_a_low_one_that_works_is_not():
    low = Scaling(succeeded=True, skipped=0, scale=1e-5)
    detector = ScalerStall(None, 1e-4)
    assert not detector.look(StepView(scaling=low))
    found = detector.look(StepView(scaling=Scaling(succeeded=False, skipped=1, scale=0.9e-4)))
    assert found.evidence["measure"] == "scale"
    assert of_replay([found]).look(StepView(scaling=Scaling(succeeded=False, skipped=1, scale=0.9e-4)))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.booleans(), max_size=4), max_size=12), st.sampled_from([1, 2, 2000]))
def test_skips_are_counted_from_a_real_scaler_however_many_steps_lie_between(rounds, interval):
    """Of skips after a success within one round at least the last is counted."""
    parameter = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    real = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=interval)
    detector, in_a_row = ScalerStall(), 0
    for steps in rounds:
        before = Scale.read(real)
        for finite in steps:
            real.scale(parameter.sum()).backward()
            if not finite:
                parameter.grad.fill_(INF)
            real.step(optimizer)
            real.update()
            optimizer.zero_grad()
        detector.look(StepView(scaling=scaler.between(before, Scale.read(real))))
        mixed = True in steps and False in steps
        in_a_row = detector.count if mixed else in_a_row + len(steps) if True not in steps else 0
        assert detector.count == in_a_row
        if mixed and not steps[-1] and interval == 2000:
            assert detector.count >= 1


def test_a_scaler_that_is_switched_off_says_nothing():
    assert Scale.read(torch.amp.GradScaler("cpu", enabled=False)) is None and Scale.read(None) is None


# --- features


def test_features_that_are_one_point_or_one_line_collapse():
    torch.manual_seed(0)
    point = moments(torch.ones(16, 8) + 1e-6 * torch.randn(16, 8)).spectrum()
    line = moments(torch.randn(16, 1) * torch.ones(8) + 1e-4 * torch.randn(16, 8)).spectrum()
    cloud = moments(torch.randn(4, 4, 8)).spectrum()
    measures = []
    for seen in (point, line, cloud):
        found = Collapse(1, 1e-3, 1.01).look(StepView(spectrum=seen))
        measures.append(found.evidence["measure"] if found else None)
        if found:
            assert of_replay([found]).look(StepView(spectrum=seen)) and found.where == "features"
            assert not of_replay([found]).look(StepView(spectrum=cloud))
    assert measures == ["deviation", "dimensions", None]
    assert cloud.samples == 16 and 4 < cloud.dimensions <= 8


@pytest.mark.parametrize("features", [torch.ones(1, 8), torch.full((9, 8), NAN)])
def test_what_says_nothing_of_collapse(features):
    assert not Collapse(1, 1e-3, 1.01).look(StepView(spectrum=moments(features).spectrum()))


@given(st.integers(2, 9), st.integers(1, 9), st.integers(0, 99), st.integers(-9, 9))
def test_a_spectrum_is_that_of_the_covariance_and_has_no_scale(samples, width, seed, power):
    points = torch.randn(samples, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    seen, scaled = moments(points).spectrum(), moments(points * 2.0**power).spectrum()
    values = torch.linalg.eigvalsh(torch.cov(points.T, correction=0).reshape(width, width))
    assert seen.dimensions == pytest.approx(float(values.sum() ** 2 / values.square().sum()), rel=1e-9)
    assert seen.deviation == pytest.approx(float((values.sum() / points.square().sum(1).mean()).sqrt()), rel=1e-9)
    assert (scaled.deviation, scaled.dimensions) == pytest.approx((seen.deviation, seen.dimensions))


def test_features_are_looked_at_every_so_many_steps():
    detector = Collapse(3, 1e-3)
    due = []
    for _ in range(7):
        due.append(detector.due)
        detector.look(StepView())
    assert due == [False, False, True, False, False, True, False]


# --- a harness with all of it


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.2))
        self.head = nn.Linear(8, 1)
        self.register_buffer("mask", torch.full((8,), -INF))

    def forward(self, x):
        return self.head(self.body(x))


def make(**fields):
    torch.manual_seed(0)
    net = Net()
    optimizer = fields.pop("optimizer", torch.optim.SGD)(net.parameters(), lr=0.05, momentum=0.9)
    step = fields.pop("step", lambda batch: {"loss": (net(batch["x"]) - batch["y"]).pow(2).mean()})
    features = fields.pop("features", lambda batch: net.body(batch["x"]))
    layout = {"x": "b d", "y": "b one"}
    harness = Harness(modules={"net": net}, optimizer=optimizer, step=step, layout=layout, features=features, **fields)
    return harness, net


def batch_of(step, spread=1.0):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 6, generator=generator) * spread
    return {"x": x, "y": x[:, :1] - 0.5 * x[:, 1:2] + 0.1 * torch.randn(16, 1, generator=generator)}


def probed(harness, batch, watching=None):
    with Probe(harness, watching or Watching(), batch) as probe:
        run(harness, batch, probe)
    return probe


def test_500_hard_healthy_steps_have_no_symptom_and_then_one_bad_step_has():
    harness, net = make(scaler=torch.amp.GradScaler("cpu", growth_interval=50))
    watching = of_run(Limits(collapse_every=5, activations=True))
    overflows = {1, 2, 3, 57, 58, 160, 311}  # what a scaler is for
    for step in range(1, 501):
        rate = 0.05 * min(1, step / 50) * (0.1 if step > 200 else 1)
        harness.optimizer.param_groups[0]["lr"] = rate
        batch = batch_of(step, spread=1.6 if step > 300 else 1.0)
        hook = net.head.weight.register_hook(lambda g: g * INF) if step in overflows else None
        probe = probed(harness, batch, watching)
        if hook:
            hook.remove()
        assert not probe.symptoms, (step, probe.symptoms)
        assert (probe.scaling.skipped > 0) == (step in overflows)
    batch["y"] *= 300
    assert kinds(probed(harness, batch, watching)) == [Kind.LOSS_SPIKE]


def test_a_norm_of_gradients_is_unscaled_and_before_clipping_whoever_calls_the_step():
    batch = batch_of(1)

    def seen(**fields):
        harness, _ = make(**fields)
        probe = probed(harness, batch, of_run(Limits(grad_norm_above=1e-3)))
        [found] = [one for one in probe.symptoms if one.kind is Kind.GRAD_SPIKE]
        return found.evidence["value"]

    plain = seen()
    fused = lambda parameters, **options: torch.optim.SGD(parameters, fused=True, **options)
    clipped = seen(clip_grad_norm=1e-4)  # the norm that clipping takes, which sums in another order
    assert plain > 0.1 and clipped == pytest.approx(plain, rel=1e-5)
    for optimizer in (torch.optim.SGD, fused):
        assert seen(optimizer=optimizer, scaler=torch.amp.GradScaler("cpu")) == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_in_a_loop_of_ones_own_too_where_a_skip_is_no_failure_either(fused):
    real = torch.amp.GradScaler("cpu")
    make_one = lambda parameters, **options: torch.optim.SGD(parameters, fused=fused, **options)
    harness, net = make(scaler=real, optimizer=make_one, automatic_optimization=False)

    def own(batch):
        with Probe(harness, of_run(Limits(grad_norm_above=1e-3)), batch) as probe:
            losses = harness.step(batch)
            probe.look_at_losses(losses)
            real.scale(losses["loss"]).backward()
            real.step(harness.optimizer)
            real.update()
            harness.optimizer.zero_grad()
        return probe

    [spike] = own(batch_of(1)).symptoms
    assert spike.kind is Kind.GRAD_SPIKE and 0.1 < spike.evidence["value"] < 100
    net.head.weight.register_hook(lambda g: g * INF)
    skip = own(batch_of(2))
    assert not skip.symptoms and skip.scaling.skipped == 1


def test_a_look_at_features_leaves_no_trace():
    def trained(look):
        harness, net = make()
        own = torch.Generator().manual_seed(3)
        harness.extra_state = {"own": own}
        inside = harness.features
        harness.features = lambda batch: inside(batch) + torch.rand(1, generator=own)
        for step in range(3):
            if look:
                assert look_at_features(harness, batch_of(step)).samples == 16
            probe = probed(harness, batch_of(step))
        return probe.fingerprint(), [b.clone() for b in net.buffers()], own.get_state()

    looked, alone = trained(True), trained(False)
    assert looked[0] == alone[0] and all(map(torch.equal, looked[1], alone[1])) and torch.equal(looked[2], alone[2])


def test_features_that_cannot_be_had_are_no_failure(caplog):
    harness, _ = make(features=lambda batch: batch["gone"])
    assert not probed(harness, batch_of(1), of_run(Limits(collapse_every=1))).symptoms
    assert "features(batch) raised KeyError" in caplog.text


def test_a_collapse_is_found_when_it_is_looked_for():
    harness, net = make()
    harness.features = lambda batch: net.body(batch["x"]) * 0 + 1
    watching = of_run(Limits(collapse_every=2))
    assert [kinds(probed(harness, batch_of(step), watching)) for step in (1, 2)] == [[], [Kind.COLLAPSE]]


def test_a_buffer_that_a_step_made_non_finite_is_named_and_a_mask_is_not():
    def step(batch):
        net.mask.fill_(-INF)
        with torch.no_grad():
            net.body[1].running_var.mul_(bad["factor"])
        return {"loss": net(batch["x"]).mean()}

    harness, net = make(step=step)
    bad = {"factor": 1.0}
    assert not probed(harness, batch_of(1)).symptoms
    bad["factor"] = NAN
    [found] = probed(harness, batch_of(1)).symptoms
    assert (found.kind, found.where) == (Kind.NONFINITE_PARAM, "buffers")
    assert list(found.evidence["first"]) == ["net.body.1.running_var"]


def test_what_was_in_a_buffer_before_is_not_the_steps_doing():
    harness, net = make()
    net.eval()
    net.register_buffer("table", torch.full((3,), NAN))
    assert not probed(harness, batch_of(1)).symptoms


def test_the_module_where_bad_values_began_is_evidence_where_asked_for():
    def evidence(**limits):
        harness, net = make()
        nn.init.constant_(net.head.weight, INF)
        return probed(harness, batch_of(1), of_run(Limits(**limits))).symptoms[0].evidence.get("activations")

    assert evidence() is None
    assert evidence(activations=True) == {"modules": 2, "first": ["net.head", "net"]}


def test_bad_activations_that_a_loss_does_not_use_are_no_failure():
    harness, net = make(step=lambda batch: {"loss": net(batch["x"]).mean() + 0 * len(net.head(torch.full((8,), NAN)))})
    assert not probed(harness, batch_of(1), of_run(Limits(activations=True))).symptoms


# --- numbers and inputs


@given(
    st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=9),
    st.sampled_from([None, NAN, INF, -INF]),
)
def test_a_norm_is_finite_exactly_if_every_number_is(values, bad):
    tensors = [torch.tensor([value]) for value in values] + ([torch.tensor([bad])] if bad is not None else [])
    assert math.isfinite(norm(tensors)) == all_finite(tensors)
    if bad is None:
        assert norm(tensors) == pytest.approx(math.hypot(*values), rel=1e-5, abs=1e-20)


def test_a_norm_survives_large_and_small_types():
    huge = torch.full((4,), 3e38)
    assert norm([huge, torch.ones(2).half()]) == pytest.approx(6e38, rel=1e-6)
    assert norm([torch.full((100,), 6e4).half()]) == pytest.approx(6e5, rel=1e-3) and norm([]) == 0.0
    assert bad_numbers(torch.tensor([NAN])) and bad_numbers(torch.tensor([INF, -INF]))
    assert not bad_numbers(torch.tensor([1.0, -INF]))


def picture(low=0.0, high=1.0):
    return torch.linspace(low, high, 2 * 3 * 4 * 4).reshape(2, 3, 4, 4)


MEAN, STD = torch.tensor([0.485, 0.456, 0.406])[:, None, None], torch.tensor([0.229, 0.224, 0.225])[:, None, None]
NORMAL = (torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)) - MEAN) / STD


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (picture(), ""),
        ((picture() * 255).byte(), ""),
        (NORMAL, ""),
        (torch.randn(8, 3, 64, 64, generator=torch.Generator().manual_seed(0)), ""),
        ((NORMAL - MEAN) / STD, "normalised twice"),
        ((NORMAL * STD + MEAN) / 255, "divided by 255 twice"),
        (picture() * 255, "not divided by 255"),
        ((picture() * 255 - MEAN) / STD, "without a division"),
        (picture().round().byte(), "uint8 of 0 and 1"),
        (torch.zeros(3, 3), "all zero"),
        (torch.full((3,), 7), "constant 7"),
        (torch.tensor([1.0, NAN, 2.0]), "1 of 3 values are not finite"),
        (torch.tensor([NAN, INF]), "2 of 2"),
        (torch.zeros(0), "no values"),
        (torch.tensor([True, False]), ""),
        (torch.ones(3, 3).to(torch.float8_e4m3fn), "constant 1"),
        (np.zeros((2, 2), dtype=">f4"), "all zero"),
    ],
)
def test_what_is_odd_about_an_input_is_said(value, says):
    [about] = inputs.look({"x": value}, Layout.parse({})).values()
    assert says in " ".join(about["notes"]) and bool(says) == bool(about["notes"])


def test_types_and_ranges_are_told_and_other_entries_are_left_out():
    batch = {"x": torch.tensor([1, 5]), "names": ["a"], "deep": {"y": torch.tensor([-1.5], dtype=torch.float16)}}
    about = inputs.look(batch, Layout.parse({"x": "b"}))
    assert about["x"] == {"dtype": "int64", "shape": [2], "min": 1.0, "max": 5.0, "mean": 3.0, "std": 2.0, "notes": []}
    assert set(about) == {"x", "deep.y"} and about["deep.y"]["min"] == -1.5


# --- limits


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spike_ratio": 0}, "spike_ratio=0; expected a number above 0"),
        ({"scaler_skips": 2.5}, "scaler_skips=2.5; expected a whole number"),
        ({"grad_norm_above": NAN}, "grad_norm_above=nan"),
        ({"spike_sigma": "6"}, "spike_sigma='6'"),
        ({"spike_window": 4}, "expected 8 or more"),
        ({"spike_window": None}, "expected 8 or more"),
        ({"hang_after": True}, "hang_after=True"),
    ],
)
def test_limits_that_make_no_sense_are_refused(change, says):
    with pytest.raises(BadInput, match=says):
        Limits(**change)


def test_a_limit_that_is_none_is_off():
    off = dict.fromkeys(["spike_ratio", "spike_sigma", "grad_norm_above", "scaler_skips", "scaler_below"])
    watching = of_run(Limits(**off, collapse_every=None))
    stalled = Scaling(succeeded=False, skipped=99, scale=0.0)
    flat = Spectrum(samples=9, deviation=0.0, dimensions=0.0)
    view = StepView(losses={"loss": 1e30}, grad_norm=1e30, scaling=stalled, spectrum=flat)
    assert not any(watching.look(view) for _ in range(200)) and not watching.wants_features


def test_evidence_without_a_threshold_is_not_looked_for():
    spoiled = [Symptom(kind=Kind.LOSS_SPIKE, where="loss", evidence=evidence) for evidence in ({}, {"threshold": "x"})]
    assert not of_replay(spoiled).look(StepView(losses={"loss": 1e30}))
