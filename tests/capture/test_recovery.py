"""After a failing step training goes on as if its batch had never come, or with the variant that helped."""

import json
import logging
from itertools import count
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

import reprokit
from reprokit.capture import counts
from reprokit.cli.show import show
from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind
from reprokit.harness import put_state, take_state
from reprokit.incident import Incident
from reprokit.report.summary import incident_panel
from reprokit.step import rng
from reprokit.step.case import Case, Variant
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.step.variants import applied

FAILS, STEPS = 7, 14
COUNT = count()
TRAIN = """
import copy
import torch
from torch import nn
import reprokit


class Late(nn.Module):
    '''A module whose product leaves the range of what autocast computes in, and not that of float32.'''

    def forward(self, x):
        y = x @ torch.ones(4, 4)
        return y.float() / 1e4 if x.abs().max() > 1e3 else y.float()


def build(config):
    torch.manual_seed(3)
    parts = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 1)]
    net = nn.Sequential(*([Late()] if config["autocast"] else []), *parts)
    if config["large"]:
        net.register_parameter("large", nn.Parameter(torch.full((2,), 1e30)))
    teacher = copy.deepcopy(net).requires_grad_(False)
    make = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[config["optimizer"]]
    extra = {"momentum": 0.9} if config["optimizer"] == "sgd" else {}
    optimizer = make(net.parameters(), lr=0.01, fused=config["fused"], **extra)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=config["scale"], growth_interval=2) if config["scaler"] else None

    def step(batch):
        if batch.get("raises"):
            raise ValueError("a bad batch")
        out = net(batch["x"])
        if config["ema"]:
            with torch.no_grad():
                for mine, theirs in zip(teacher.parameters(), net.parameters()):
                    mine.lerp_(theirs, 0.1)
        loss = (out - teacher(batch["x"])).pow(2).mean() + out.mean() + batch["x"].mean()
        loss = loss * batch.get("times", 1.0)
        if batch.get("outside"):
            loss = loss + (batch["x"] @ torch.ones(4, 4)).float().mean() * 1e-5
        if config["manual"]:
            loss.backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        return {"loss": loss, "out": out.mean()}

    return reprokit.Harness(
        modules={"net": net, "teacher": teacher}, optimizer=optimizer, step=step, layout={"x": "b d"},
        automatic_optimization=not config["manual"], extra_state={"scheduler": scheduler}, scaler=scaler,
        clip_grad_norm=0.5 if config["clip"] else None, accumulate=config["accumulate"], autocast=config["autocast"],
    )
"""
PLAIN = {
    "optimizer": "adamw", "fused": True, "ema": False, "manual": False, "scaler": False, "clip": False, "accumulate": 1,
    "autocast": None, "scale": 1024.0, "large": False,
}  # fmt: skip
PATHS = {
    "fused": {},
    "fused, momentum": {"optimizer": "sgd"},
    "not fused": {"fused": False},
    "scaler": {"scaler": True},
    "scaler, not fused": {"scaler": True, "fused": False},
    "clipping": {"clip": True},
    "accumulation": {"accumulate": 3},
    "accumulation, not fused": {"accumulate": 3, "fused": False},
    "teacher": {"ema": True},
    "teacher, not fused": {"ema": True, "fused": False},
    "scheduler in the step": {"manual": True},
    "scheduler in the step, not fused": {"manual": True, "fused": False},
}
NAN = {FAILS: {"nan": True}}


def content(step, bad):
    """The batch of a step; `bad` says what is wrong with it."""
    x = torch.rand(4, 4, generator=torch.Generator().manual_seed(step))
    how = dict(bad.get(step, {}))
    if how.pop("nan", False):
        x[1, 2] = float("nan")
    return {"x": x * how.pop("scale", 1.0), **how}


def ours(recorder, harness, batch):
    return recorder.step(batch)


def own_loop(recorder, harness, batch):
    with recorder.watch(batch) as watch:
        losses = harness.step(batch)
        watch.losses(losses)
        losses["loss"].backward()
        harness.optimizer.step()
        harness.optimizer.zero_grad()
    return losses


@pytest.fixture
def train(tmp_path, read_late):
    """train(config, late=..., bad={step: what}) -> harness, recorder, incidents, generators at the end, and what each
    step returned. late: steps for which numbers are on their way."""

    def go(config=(), late=0, bad=NAN, steps=STEPS, between=lambda harness, step: None, use=ours, **options):
        name = f"train_recovery_{next(COUNT)}"
        source = tmp_path / name
        source.mkdir()
        (source / f"{name}.py").write_text(TRAIN)
        build = load_entrypoint(f"{name}:build", source)
        config = PLAIN | dict(config)
        harness = build(config)
        recorder = reprokit.Recorder(
            harness, build=build, config=config, out=tmp_path / f"out_{name}", rehearse=False, **options
        )
        read_late(recorder, late)
        torch.manual_seed(0)
        results = []
        with recorder:
            for step in range(1, steps + 1):
                results.append(use(recorder, harness, content(step, bad)))
                between(harness, step)
        return SimpleNamespace(
            harness=harness, recorder=recorder, state=take_state(harness), generators=rng.take(), results=results,
            incidents=[Incident.open(path) for path in recorder.incidents],
        )  # fmt: skip

    return go


def without(config=(), gone=(FAILS,), bad=(), variants=(), between=lambda harness, step: None):
    """The state of a run of one's own, without a recorder, that never saw these batches; and its generators."""
    scope = {"__name__": "alone"}
    exec(compile(TRAIN, "alone.py", "exec"), scope)
    harness = scope["build"](PLAIN | dict(config))
    torch.manual_seed(0)
    done = 0
    for step in range(1, STEPS + 1):
        if step not in gone:
            with applied(harness, dict(variants).get(step, Variant())) as changed:
                run(changed, content(step, dict(bad)), Probe(changed), micro=done % harness.accumulate)
            done += 1
        between(harness, step)
    return take_state(harness), rng.take()


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def replays(incident, **case):
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path, **case))
    return outcome


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("path", PATHS)
def test_a_skipped_batch_was_never_there_bit_for_bit_however_late_it_is_read(train, path, late):
    found = train(PATHS[path], late, on_failure="skip")
    state, generators = without(PATHS[path])
    assert found.recorder.skipped == [FAILS] and same(found.state, state)
    assert not rng.moved(found.generators, generators)
    [incident] = found.incidents
    assert incident.manifest.step == FAILS and incident.manifest.signature.kind is Kind.NONFINITE_LOSS
    outcome = replays(incident)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("path", ["fused", "not fused", "accumulation", "teacher"])
def test_several_batches_are_skipped_also_where_one_fails_while_it_is_run_again(train, path, late):
    bad = {step: {"nan": True} for step in (5, 7, 8, 12)}
    found = train(PATHS[path], late, bad, on_failure="skip")
    state, _ = without(PATHS[path], gone=bad)
    assert found.recorder.skipped == list(bad) and same(found.state, state)
    assert len(found.incidents) == 1 and counts.seen(found.incidents[0]) == {"times": 4, "last": 12}


@pytest.mark.parametrize("late", [0, 3])
def test_a_resumed_run_skips_the_batch_under_the_number_of_the_whole_run(train, late):
    found = train({}, late, on_failure="skip", steps_before=500)
    assert found.recorder.skipped == [500 + FAILS] and same(found.state, without()[0])


@pytest.mark.parametrize("late", [0, 3])
def test_a_failure_that_is_read_after_the_last_step_is_skipped_as_well(train, late):
    found = train({}, late, {STEPS: {"nan": True}}, on_failure="skip")
    assert found.recorder.skipped == [STEPS] and same(found.state, without(gone=[STEPS])[0])


@pytest.mark.parametrize("late", [0, 3])
def test_too_many_in_a_row_are_raised_and_the_line_says_so(train, late):
    bad = {step: {"nan": True} for step in (5, 7, 8, 9)}
    with pytest.raises(reprokit.IncidentCaptured, match="3 steps in a row failed, and skip_at_most is 2") as raised:
        train({}, late, bad, on_failure="skip", skip_at_most=2)
    assert str(raised.value).startswith("step 9: nonfinite_loss at out; on_failure=skip: ")
    assert train({}, late, bad, on_failure="skip", skip_at_most=3).recorder.skipped == list(bad)


@pytest.mark.parametrize("late", [0, 3])
def test_a_write_that_fails_does_not_keep_a_batch_from_being_skipped(train, monkeypatch, caplog, late):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("reprokit.capture.snapshot.write", full)
    found = train({}, late, on_failure="skip")
    assert found.recorder.skipped == [FAILS] and not found.incidents and same(found.state, without()[0])
    assert "No space left on device" in caplog.text and "skipped; " in caplog.text
    with pytest.raises(Infrastructure, match="2 steps in a row failed"):
        train({}, late, {7: {"nan": True}, 8: {"nan": True}}, on_failure="skip", skip_at_most=1)


@pytest.mark.parametrize(("late", "path"), [(0, "fused"), (3, "fused"), (0, "not fused"), (0, "accumulation")])
def test_a_step_that_raises_is_skipped_and_what_it_was_given_with_it(train, late, path):
    found = train(PATHS[path], late, {FAILS: {"raises": True}}, on_failure="skip")
    assert found.recorder.skipped == [FAILS] and same(found.state, without(PATHS[path])[0])
    assert found.results[FAILS - 1] is None and found.incidents[0].manifest.signature.kind is Kind.EXCEPTION


@pytest.mark.parametrize("late", [0, 3])
def test_a_step_that_raises_after_one_that_failed_unseen_is_run_again_with_it(train, late):
    bad = {FAILS: {"nan": True}, FAILS + 1: {"raises": True}}
    found = train({}, late, bad, on_failure="skip")
    assert found.recorder.skipped == list(bad) and same(found.state, without(gone=bad)[0])


def test_a_step_that_raises_when_its_state_is_gone_is_raised(train):
    def raises(recorder, harness, batch):
        with recorder.watch(batch):
            harness.optimizer.param_groups[0]["lr"] = 0.01
            own_step(harness, batch)
            if recorder.steps == FAILS:
                raise ValueError("after the update")

    with pytest.raises(ValueError, match="after the update") as raised:
        train({}, use=raises, bad={}, on_failure="skip")
    assert raised.value.__notes__[-1] == "on_failure=skip: what it started from was written into before it raised"


def test_a_scaler_that_a_step_left_halfway_goes_on(train):
    def scaled(recorder, harness, batch):
        with recorder.watch(batch):
            harness.scaler.scale(harness.step(batch)["loss"]).backward()
            harness.scaler.unscale_(harness.optimizer)
            if recorder.steps == FAILS:
                raise ValueError("between the two")
            harness.scaler.step(harness.optimizer)
            harness.scaler.update()
            harness.optimizer.zero_grad()

    found = train({"scaler": True}, use=scaled, bad={}, on_failure="skip")
    assert found.recorder.skipped == [FAILS] and same(found.state, without({"scaler": True})[0])


def own_step(harness, batch):
    harness.step(batch)["loss"].backward()
    harness.optimizer.step()
    harness.optimizer.zero_grad()


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("path", ["fused", "not fused", "teacher"])
def test_a_loop_of_ones_own_goes_on_in_the_same_way(train, path, late):
    found = train(PATHS[path], late, use=own_loop, on_failure="skip")
    assert found.recorder.skipped == [FAILS] and same(found.state, without(PATHS[path])[0])


def sets_a_rate(harness, step):
    """What a loop does after each step, and what comes of how many it has made."""
    harness.optimizer.param_groups[0]["lr"] = 0.01 / step


@pytest.mark.parametrize("late", [0, 1, 3])
def test_what_a_loop_does_between_two_steps_is_done_again(train, late):
    found = train({}, late, between=sets_a_rate, on_failure="skip")
    assert same(found.state, without(between=sets_a_rate)[0])


def follows(harness, step):
    with torch.no_grad():
        for mine, theirs in zip(harness.modules["teacher"].parameters(), harness.modules["net"].parameters()):
            mine.lerp_(theirs, 0.1)


def test_where_a_loop_writes_between_two_steps_each_is_read_in_time(train, caplog):
    caplog.set_level(logging.INFO, "reprokit")
    found = train({}, 3, between=follows, on_failure="skip")
    assert same(found.state, without(between=follows)[0])
    assert "each step waits for its numbers: what the loop does between two steps cannot be done again" in caplog.text


@pytest.mark.parametrize("late", [1, 3])
def test_where_a_loop_draws_between_two_steps_each_keeps_its_random_numbers(train, late):
    draws = lambda harness, step: torch.rand(3)
    found = train({}, late, between=draws, on_failure="skip")
    kept = []

    def undone(harness, step):
        kept[:] = [take_state(harness)] if step != FAILS else kept
        put_state(harness, kept[0])
        draws(harness, step)

    state, generators = without(gone=(), bad=NAN, between=undone)
    assert same(found.state, state) and not rng.moved(found.generators, generators)


def test_a_state_that_is_gone_is_made_again_from_the_steps_before(train):
    """The parameters go bad in the update itself, which nothing shows before."""
    bad = {FAILS: {"times": 1e30}}
    options = {"on_failure": "skip", "limits": reprokit.Limits(grad_norm_above=None), "latch": False}
    found = train({"optimizer": "sgd"}, use=with_a_large_rate, bad=bad, **options)
    assert found.recorder.skipped == [FAILS] and same(found.state, without({"optimizer": "sgd"})[0])
    with pytest.raises(reprokit.IncidentCaptured, match="was written into, and no step before it is held"):
        train({"optimizer": "sgd"}, use=with_a_large_rate, bad=bad, history=0, **options)


def with_a_large_rate(recorder, harness, batch):
    with recorder.watch(batch) as watch:
        losses = harness.step(batch)
        losses["loss"].backward()
        for group in harness.optimizer.param_groups:
            group["lr"] = 1e30 if "times" in batch else 0.01
        harness.optimizer.step()
        harness.optimizer.zero_grad()
        watch.losses({"loss": losses["out"].detach() * 0})


def test_what_is_saved_after_settling_has_every_update(train):
    saved = {}

    def saves(harness, step):
        if step == FAILS + 1:
            saved["before"] = take_state(harness)
            recorders[0].settle()
            saved["after"] = take_state(harness)

    recorders = []

    def remembered(recorder, harness, batch):
        recorders.append(recorder)
        return recorder.step(batch)

    found = train({"ema": True}, 3, between=saves, use=remembered, on_failure="skip")
    bad = lambda state: [name for name, value in state["buffers"].items() if not value.isfinite().all()]
    assert bad(saved["before"]) and not bad(saved["after"]) and same(found.state, without({"ema": True})[0])


def test_a_scaler_that_stalls_is_counted_on_from_before_the_step_that_was_skipped(train):
    bad = {step: {"times": 1e12} for step in (7, 8, 9)}
    limits = reprokit.Limits(scaler_skips=2, grad_norm_above=None)
    found = train({"scaler": True, "scale": 2.0**100}, 0, bad, limits=limits, recapture=True, on_failure="skip")
    assert found.recorder.skipped == [8, 9]
    assert [incident.manifest.symptoms[0].evidence["value"] for incident in found.incidents] == [2, 2]


def test_a_step_gives_what_it_gave_when_it_was_run_again(train):
    """The teacher was bad in between, and so was the loss."""
    found = train({"ema": True}, 1, on_failure="skip")
    assert not found.results[FAILS - 1]["loss"].isfinite()
    assert all(result["loss"].isfinite() for step, result in enumerate(found.results, 1) if step != FAILS)


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("path", ["fused", "accumulation", "teacher", "clipping", "scheduler in the step"])
@pytest.mark.parametrize("on_failure", ["raise", "skip"])
def test_squares_that_overflow_are_no_failure_and_training_goes_on_as_without_a_recorder(
    train, caplog, path, late, on_failure
):
    caplog.set_level(logging.INFO, "reprokit")
    large = {step: {"times": 4e19 if path == "accumulation" else 2e19} for step in (6, 7)}
    limits = reprokit.Limits(grad_norm_above=None)
    draws = lambda harness, step: torch.rand(3)
    found = train(PATHS[path], late, large, limits=limits, between=draws, on_failure=on_failure)
    state, generators = without(PATHS[path], gone=(), bad=large, between=draws)
    assert "squares overflow in its norm, and all values are finite: no failure" in caplog.text
    assert not found.incidents and not found.recorder.skipped and same(found.state, state)
    assert not rng.moved(found.generators, generators)


def test_squares_that_overflow_are_a_spike_where_one_was_asked_for(train):
    found = train({}, 3, {FAILS: {"times": 2e19}}, on_failure="skip")
    assert found.incidents[0].manifest.signature.kind is Kind.GRAD_SPIKE and same(found.state, without()[0])


def test_a_failure_that_comes_and_goes_is_none_of_squares(train, monkeypatch):
    """A gradient that was infinite once, and is not when the step is run again."""
    once = iter([float("inf")])

    def infinite(recorder, harness, batch):
        if recorder.steps == FAILS - 1:
            parameter = next(harness.modules["net"].parameters())
            hook = parameter.register_hook(lambda grad: grad * next(once, 1.0))
            try:
                return recorder.step(batch)
            finally:
                hook.remove()
        return recorder.step(batch)

    found = train({}, use=infinite, bad={}, on_failure="skip")
    assert found.recorder.skipped == [FAILS] and found.incidents[0].manifest.signature.kind is Kind.NONFINITE_GRAD


@pytest.mark.parametrize("late", [0, 3])
def test_parameters_whose_squares_overflow_are_no_failure(train, late):
    found = train({"large": True}, late, {})
    assert not found.incidents and same(found.state, without({"large": True}, gone=())[0])


FP16 = {"autocast": "fp16"}
ANY = {"limits": reprokit.Limits(grad_norm_above=None, scaler_skips=1)}
TWO = Variant(modules={"net.0": "float32", "teacher.0": "float32"})
HEALS = {
    "modules": (FP16, {"scale": 1e5}, "float32 for net.0, teacher.0", TWO, {}),
    "modules, not fused": (FP16 | {"fused": False}, {"scale": 1e5}, "float32 for net.0, teacher.0", TWO, {}),
    "all": (FP16, {"scale": 3e4, "outside": True}, "float32 for all", Variant(harness={"autocast": None}), {}),
    "clipping": ({}, {"times": 1e8}, "clip_grad_norm=1", Variant(harness={"clip_grad_norm": 1.0}), {}),
    "clipping more": (
        {"clip": True}, {"times": 1e8}, "clip_grad_norm=0.05", Variant(harness={"clip_grad_norm": 0.05}), {}
    ),
    "loss scale": (
        {"scaler": True, "scale": 2.0**100}, {"times": 1e12}, "loss scale 1", Variant(harness={"loss_scale": 1.0}), ANY
    ),
}  # fmt: skip


@pytest.mark.parametrize("late", [0, 1, 3])
@pytest.mark.parametrize("what", HEALS)
def test_a_step_falls_back_to_what_helps_and_its_update_stands(train, what, late):
    config, bad, helps, variant, options = HEALS[what]
    found = train(config, late, {FAILS: bad}, on_failure="fallback", **options)
    [told], [incident] = found.recorder.fallbacks, found.incidents
    assert (told.step, told.helped, told.tried[-1]) == (FAILS, helps, (helps, "passed")) and not found.recorder.skipped
    first = f"{incident.manifest.signature.kind} at {incident.manifest.signature.where}"
    assert told.tried[0] == ("the same once more", first)
    state, generators = without(config, gone=(), bad={FAILS: bad}, variants={FAILS: variant})
    assert same(found.state, state) and not rng.moved(found.generators, generators)
    assert counts.fallbacks(incident) == [told.to_json()] and counts.seen(incident) is None
    outcome = replays(incident)
    assert outcome.status is Status.FAIL and outcome.fingerprint.items() >= incident.manifest.fingerprint.items()
    assert (len(incident.manifest.fingerprint) == 1) is incident.rolls_forward
    if not what.startswith("clipping"):  # there the spike is still one, and no longer a danger
        assert replays(incident, variant=variant).status is Status.PASS


@pytest.mark.parametrize("late", [0, 3])
def test_where_nothing_helps_the_failure_is_raised_from_the_start_of_its_step(train, late):
    harnesses = []
    keep = lambda harness, step: harnesses.append(harness) if step == 1 else None
    said = "nothing helped: the same once more: nonfinite_loss at out; float32 for net.0: nonfinite_loss at out"
    with pytest.raises(reprokit.IncidentCaptured, match=said) as raised:
        train(FP16, late, between=keep, on_failure="fallback")
    tried = ["the same once more", "float32 for net.0", "float32 for all", "clip_grad_norm=1"]
    [told] = counts.fallbacks(incident := Incident.open(raised.value.path))
    assert [name for name, _ in told["tried"]] == tried and told["helped"] is None
    state = incident.state()
    del state["loop"]
    assert same(take_state(harnesses[0]), state)


def test_a_failure_that_comes_and_goes_needs_no_variant(train):
    once = iter([float("nan")])

    def flaky(recorder, harness, batch):
        step = harness.step
        if recorder.steps == FAILS - 1:
            harness.step = lambda batch: {"loss": step(batch)["loss"] * next(once, 1.0)}
        try:
            return recorder.step(batch)
        finally:
            harness.step = step

    found = train({}, use=flaky, bad={}, on_failure="fallback")
    assert found.recorder.fallbacks[0].helped == "the same once more" and same(found.state, without(gone=())[0])
    assert found.results[FAILS - 1]["loss"].isfinite()


def test_show_tells_what_was_tried_and_what_helped(train, capsys):
    config, bad, helps, _, options = HEALS["modules"]
    [incident] = train(config, 0, {FAILS: bad}, on_failure="fallback", **options).incidents
    Console(width=120).print(incident_panel(incident))
    said = capsys.readouterr().out
    assert f"at step {FAILS} {helps} helped" in said and "the same once more: nonfinite_loss at out" in said
    assert show(str(incident.path), as_json=True) == 0
    told = {"step": FAILS, "helped": helps}
    assert json.loads(capsys.readouterr().out)["fallbacks"][0].items() >= told.items()


def test_what_is_beside_an_incident_may_have_been_changed_by_anybody(train):
    config, bad, _, _, options = HEALS["modules"]
    [incident] = train(config, 0, {FAILS: bad}, on_failure="fallback", **options).incidents
    file = incident.path.parent / counts.FILE
    held = json.loads(file.read_text())
    for other in 1, [1], *([{"step": 7, "tried": tried}] for tried in ("a", ["a"], [["a"]], [[1, 2]])):
        held[incident.manifest.id]["fallbacks"] = other
        file.write_text(json.dumps(held))
        assert counts.fallbacks(incident) == []


def test_what_falls_back_is_not_run_where_a_step_raises(train):
    with pytest.raises(ValueError, match="a bad batch"):
        train({}, bad={FAILS: {"raises": True}}, on_failure="fallback")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_failure": "ignore"}, "on_failure='ignore'; expected one of raise, skip, fallback"),
        ({"on_failure": "skip", "skip_at_most": 0}, "skip_at_most=0; expected how many steps in a row, 1 or more"),
    ],
)
def test_words_that_mean_nothing_are_refused(train, options, says):
    with pytest.raises(BadInput, match=says):
        train(**options)
