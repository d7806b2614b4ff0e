"""A plain loop with Accelerate, which counts batches by itself."""

import pytest
import torch
from accelerate import Accelerator

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.harness import take_state
from reprokit.integrations.accelerate import harness
from reprokit.replay.verdict import Verdict
from reprokit.step.limits import Limits
from reprokit.step.outcome import Status


@pytest.fixture
def loop(script):
    return script("accelerate_train")


def train(loop, config, out, bad=None, resumed=None, **options):
    made = loop.build(config)
    if resumed:
        loop.build.accelerator.load_state(resumed)
    recorder = Recorder(made, build=loop.build, config=config, out=out, **{"rehearse": False, **options})
    with recorder:
        for batch in loop.loader(bad):
            recorder.step(batch)
    return made, recorder


@pytest.mark.parametrize("config", [{"accumulate": 1}, {"accumulate": 3}, {"accumulate": 1, "precision": "bf16"}])
def test_a_loop_trains_as_without_and_a_nan_in_its_last_batch_is_the_same_step_again(loop, tmp_path, again, config):
    ours, recorder = train(loop, config, tmp_path / "out")
    assert recorder.steps == 7
    theirs = loop.build(config)
    for batch in loop.loader():
        theirs.step(batch)
    one, other = (take_state(each)["parameters"] for each in (ours, theirs))
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    with pytest.raises(IncidentCaptured) as captured:
        train(loop, config, tmp_path / "out", bad=25)  # in the last batch of 7, which steps though it is alone
    outcome, incident = again(captured.value.path)
    assert incident.manifest.step == 7 and "parameters/model" in outcome.fingerprint
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


def test_gradients_are_looked_at_before_they_are_clipped(loop, tmp_path, again):
    with pytest.raises(IncidentCaptured) as captured:
        train(loop, {"accumulate": 2}, tmp_path / "out", limits=Limits(grad_norm_above=0.2))
    outcome, incident = again(captured.value.path)
    assert incident.manifest.signature.kind is Kind.GRAD_SPIKE and outcome.status is Status.FAIL


@pytest.mark.parametrize(("step", "options"), [(12, {"bad": 17}), (8, {"limits": Limits(loss_above=1e-9)})])
def test_a_state_that_was_loaded_goes_on_and_its_steps_are_numbered_on(loop, tmp_path, again, step, options):
    config = {"accumulate": 3}
    train(loop, config, tmp_path / "out")
    loop.build.accelerator.save_state(str(tmp_path / "state"))
    with pytest.raises(IncidentCaptured, match=f"^step {step}: ") as captured:
        train(loop, config, tmp_path / "out", resumed=str(tmp_path / "state"), steps_before=7, **options)
    outcome, incident = again(captured.value.path, rewind=min(3, step - 8))
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


@pytest.mark.slow
def test_a_nan_replays_bit_for_bit_in_a_fresh_process(loop, tmp_path, replayed):
    with pytest.raises(IncidentCaptured) as captured:
        train(loop, {"accumulate": 2}, tmp_path / "out", bad=14)
    result, incident = replayed(captured.value.path, n=1)
    assert result.verdict is Verdict.REPRODUCIBLE
    assert all(attempt.outcome.fingerprint == incident.manifest.fingerprint for attempt in result.attempts)


@pytest.mark.parametrize("what", ["cpu", None])
def test_something_else_than_an_accelerator_is_refused(what):
    with pytest.raises(BadInput, match="expected an Accelerator"):
        harness(what, {}, None, lambda batch: None, layout="b d")


WRONG = {
    "step": ((lambda net, sgd: ({"net": net}, sgd, None)), "step is a NoneType"),
    "modules": ((lambda net, sgd: (net, sgd, print)), "modules must map names"),
    "optimizer": ((lambda net, sgd: ({"net": net}, None, print)), "optimizer must be"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_what_it_should_be_is_named_in_one_line(what):
    net = torch.nn.Linear(2, 1)
    given, line = WRONG[what]
    with pytest.raises(BadInput, match=line):
        harness(Accelerator(cpu=True), *given(net, torch.optim.SGD(net.parameters())), layout="b d")
