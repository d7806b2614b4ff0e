"""Hugging Face's Trainer for real: what it trains is what it would without a recorder, and what fails replays."""

import copy

import pytest
import torch
from lightning.pytorch import Trainer as Lightning
from transformers import TrainingArguments

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.integrations.transformers import record
from reprokit.replay.verdict import Verdict
from reprokit.step.limits import Limits
from reprokit.step.outcome import Status

WAYS = {  # arguments of the Trainer, whether its step is the plain loop
    "not clipped": ({"args": {"max_grad_norm": 0.0}}, True),
    "clipped": ({"args": {"max_grad_norm": 0.1, "weight_decay": 0.1}}, False),
    "accumulated": ({"args": {"gradient_accumulation_steps": 3}}, False),
    "bf16": ({"args": {"bf16": True}}, False),
    "a step of one's own": ({"own": True, "args": {"max_grad_norm": 0.0}}, False),
    "SGD": ({"args": {"optim": "sgd", "max_grad_norm": 0.1}}, False),
}


@pytest.fixture
def hf(script):
    return script("hf_train")


def run(hf, out, config, *, recorded=True, **options):
    """Train; the trainer, and what recorded it."""
    config = {"out": str(out / "trainer"), **config}
    trainer = hf.build(config)
    found = (
        record(trainer, hf.build, config, out=out / "incidents", **{"rehearse": False, **options}) if recorded else None
    )
    try:
        trainer.train()
    except IncidentCaptured:
        assert found and found.incidents
    return trainer, found


@pytest.mark.parametrize("way", WAYS)
def test_training_is_what_it_would_be_without_a_recorder(hf, tmp_path, way):
    config = WAYS[way][0]
    (ours, found), (theirs, _) = run(hf, tmp_path, config), run(hf, tmp_path, config, recorded=False)
    batches = 9 * config["args"].get("gradient_accumulation_steps", 1)
    assert found.recorder.steps in (batches, batches - 3) and not found.incidents  # the last of an epoch are fewer
    assert all(torch.equal(value, theirs.model.state_dict()[name]) for name, value in ours.model.state_dict().items())


@pytest.mark.parametrize("way", WAYS)
def test_a_nan_is_captured_and_the_incident_is_the_same_step(hf, tmp_path, again, way):
    config, plain = WAYS[way]
    _, found = run(hf, tmp_path, {**config, "bad": 17})
    outcome, incident = again(found.incidents[0])
    manifest = incident.manifest
    assert manifest.signature.kind is Kind.NONFINITE_LOSS and manifest.entrypoint == "hf_train:build.harness"
    assert manifest.step == 5 and hf.build.harness(incident.config()).automatic_optimization == plain
    assert outcome.status is Status.FAIL and outcome.fingerprint == manifest.fingerprint


@pytest.mark.parametrize("args", [{"max_grad_norm": 0.0}, {"gradient_accumulation_steps": 2}])
def test_a_loss_by_the_tokens_of_all_accumulated_batches_comes_out_the_same(hf, tmp_path, again, args, monkeypatch):
    monkeypatch.setattr(hf, "build", hf.build_language)
    (ours, _), (theirs, _) = (run(hf, tmp_path, {"args": args}, recorded=recorded) for recorded in (True, False))
    assert all(torch.equal(value, theirs.model.state_dict()[name]) for name, value in ours.model.state_dict().items())
    _, found = run(hf, tmp_path, {"args": args, "bad": 17})
    outcome, incident = again(found.incidents[0])
    assert incident.manifest.entrypoint == "hf_train:build_language.harness" and incident.manifest.step == 5
    assert incident.state()["extra"]["progress"]["items"] is not None
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


@pytest.mark.parametrize("way", ["not clipped", "accumulated"])
def test_history_leads_to_the_same_step(hf, tmp_path, again, way):
    _, found = run(hf, tmp_path, {**WAYS[way][0], "bad": 17})
    outcome, incident = again(found.incidents[0], rewind=3)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


def test_the_last_batches_of_an_epoch_step_though_they_are_fewer(hf, tmp_path, again):
    config = {"args": {"gradient_accumulation_steps": 3}, "bad": 29, "steps": 9}
    _, found = run(hf, tmp_path, config)
    outcome, incident = again(found.incidents[0])
    assert incident.manifest.step == 8 and "parameters/body" in incident.manifest.fingerprint
    assert outcome.fingerprint == incident.manifest.fingerprint


def test_an_exception_is_captured_and_raised_as_itself(hf, tmp_path, again):
    config = {"out": str(tmp_path / "trainer"), "negative": 9}
    trainer = hf.build(config)
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", rehearse=False)
    with pytest.raises(ValueError, match="below 0") as raised:
        trainer.train()
    outcome, incident = again(found.incidents[0])
    assert "reprokit captured this step" in raised.value.__notes__[0] and incident.manifest.step == 3
    assert incident.manifest.signature.where == "forward" and outcome.status is Status.FAIL


def test_a_spike_of_gradients_is_seen_before_they_are_clipped(hf, tmp_path, again):
    _, found = run(hf, tmp_path, {"scale": 1e5}, limits=Limits(grad_norm_above=10.0))
    outcome, incident = again(found.incidents[0])
    assert incident.manifest.signature.kind is Kind.GRAD_SPIKE and outcome.status is Status.FAIL


def test_a_trainer_trains_twice(hf, tmp_path):
    config = {"out": str(tmp_path / "trainer"), "steps": 2}
    trainer = hf.build(config)
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", rehearse=False)
    for _ in range(2):
        trainer.train()
        assert found.recorder.steps == 2


@pytest.mark.parametrize("way", ["not clipped", "accumulated"])
@pytest.mark.parametrize("rewind", [0, 3])
def test_a_resumed_run_numbers_its_steps_as_the_run_that_was_never_interrupted(hf, tmp_path, again, way, rewind):
    """With finite losses, which tell what a NaN would hide."""
    args = {**WAYS[way][0]["args"], "save_strategy": "steps", "save_steps": 4}
    config = {"args": args, "steps": 4, "out": str(tmp_path / "trainer")}
    run(hf, tmp_path, config, recorded=False)
    config |= {"steps": 20, "far": 29}
    trainer = hf.build(config)
    options = {"rehearse": False, "limits": Limits(loss_above=50.0)}
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", **options)
    with pytest.raises(IncidentCaptured, match="loss_spike"):
        trainer.train(resume_from_checkpoint=f"{config['out']}/checkpoint-4")
    outcome, incident = again(found.incidents[0], rewind=rewind)
    last = {"not clipped": 8, "accumulated": 16}[way]  # batches of an epoch; of two, where three of them are a step
    assert incident.manifest.step == last and [entry["step"] for entry in incident.history()][-1] == last - 1
    assert incident.state()["extra"]["progress"]["global_step"] == {"not clipped": 7, "accumulated": 5}[way]
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        raise OSError("no such file")


@pytest.mark.parametrize("way", ["its step", "its loader"])
def test_what_fails_in_an_evaluation_is_no_failure_of_training(hf, tmp_path, way):
    config = {"out": str(tmp_path / "trainer"), "args": {"eval_strategy": "steps", "eval_steps": 2}}
    trainer = hf.build(config)
    trainer.eval_dataset = hf.samples({"negative": 1}) if way == "its step" else Broken()
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", rehearse=False)
    with pytest.raises((ValueError, OSError), match=r"below 0|no such file") as raised:
        trainer.train()
    assert found.recorder.steps == 2 and not found.incidents and not hasattr(raised.value, "__notes__")


def test_what_ran_before_a_checkpoint_is_judged_before_it_is_written(hf, tmp_path, monkeypatch):
    settled, settle = [], Recorder.settle
    monkeypatch.setattr(Recorder, "settle", lambda self: settled.append(self.steps) or settle(self))
    run(hf, tmp_path, {"steps": 4, "args": {"save_strategy": "steps", "save_steps": 2}})
    assert settled == [2, 4] and (tmp_path / "trainer" / "checkpoint-2").is_dir()


def test_a_trainer_that_looks_for_a_batch_size_begins_anew(hf, tmp_path, monkeypatch):
    """The first attempt runs out of memory, which is captured, and the Trainer tries a smaller batch."""
    config = {"out": str(tmp_path / "trainer"), "steps": 2, "args": {"auto_find_batch_size": True}}
    trainer = hf.build(config)
    found, forward, sizes = [], hf.Net.forward, []

    def too_large(self, x, labels=None):
        sizes.append(len(x))
        if len(x) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return forward(self, x, labels)

    monkeypatch.setattr(hf.Net, "forward", too_large)
    tell = found.append
    recording = record(trainer, hf.build, config, out=tmp_path / "out", rehearse=False, on_incident=tell)
    trainer.train()
    assert sizes[0] == 4 and max(sizes[1:]) < 4 and recording.recorder.steps == 2
    assert [incident.manifest.signature.kind for incident in found] == [Kind.OOM]


@pytest.mark.slow
def test_a_run_that_goes_nan_replays_bit_for_bit_in_fresh_processes(hf, tmp_path, replayed):
    _, found = run(hf, tmp_path, {"bad": 17}, rehearse=True)
    assert found.recorder.findings == []
    result, incident = replayed(found.incidents[0])
    assert result.verdict is Verdict.REPRODUCIBLE and result.n == 3
    assert all(attempt.outcome.fingerprint == incident.manifest.fingerprint for attempt in result.attempts)


@pytest.mark.parametrize("what", [None, "trainer", Lightning])
def test_what_is_no_trainer_is_refused_in_one_line(hf, what):
    trainer = Lightning(accelerator="cpu", logger=False, enable_checkpointing=False) if what is Lightning else what
    with pytest.raises(BadInput, match=r"argument is a \w+( of lightning)?; expected a transformers\.Trainer$"):
        record(trainer, hf.build, {})


def test_a_trainer_is_recorded_once(hf, tmp_path):
    config = {"out": str(tmp_path / "trainer"), "steps": 2}
    trainer = hf.build(config)
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", rehearse=False)
    with pytest.raises(BadInput, match="recorded already"):
        record(trainer, hf.build, config, out=tmp_path / "incidents")
    trainer.train()
    assert found.recorder.steps == 2  # the first one goes on


def test_a_copy_of_a_trainer_has_recorded_nothing_and_records(hf, tmp_path):
    config = {"out": str(tmp_path / "trainer"), "steps": 2}
    trainer = hf.build(config)
    found = record(trainer, hf.build, config, out=tmp_path / "incidents", rehearse=False)
    trainer.train()
    other = copy.deepcopy(trainer)
    (its,) = (one for one in other.callback_handler.callbacks if isinstance(one, type(found)))
    assert its.recorder is None and its is not found
    other.train()
    assert its.recorder.steps == 2 and its.recorder is not found.recorder


@pytest.mark.parametrize("config", [None, "train.yaml"])
def test_what_is_no_config_is_refused_before_training(hf, tmp_path, config):
    trainer = hf.build({"out": str(tmp_path / "trainer")})
    with pytest.raises(BadInput, match="a config is a mapping, a DictConfig or a dataclass"):
        record(trainer, hf.build, config)


def test_what_is_no_option_is_refused_before_training(hf, tmp_path):
    config = {"out": str(tmp_path / "trainer")}
    with pytest.raises(BadInput, match=r"record: got an unexpected .*'on_failur'.*; its options are the Recorder's"):
        record(hf.build(config), hf.build, config, on_failur="skip")


def test_what_cannot_be_followed_is_said_in_one_line(hf, tmp_path, monkeypatch):
    config = {"out": str(tmp_path / "trainer")}
    trainer = hf.build(config)
    with pytest.raises(BadInput, match="@replayable"):
        record(trainer, lambda config: trainer, config)
    trainer.train_dataset = None
    with pytest.raises(BadInput, match="no train_dataset"):
        record(trainer, hf.build, config)
    monkeypatch.setattr(TrainingArguments, "n_gpu", 2)
    with pytest.raises(BadInput, match="several devices"):
        record(trainer, hf.build, config)
    hf.build._make = lambda config: "a trainer"
    with pytest.raises(BadInput, match=r"returned a str; expected a transformers\.Trainer"):
        hf.build.harness({})
