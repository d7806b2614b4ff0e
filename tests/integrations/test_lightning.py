"""Lightning's Trainer for real: what it trains is what it would without a recorder, and what fails replays."""

import copy
import pickle

import lightning.pytorch as L
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision

from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.integrations.lightning import Record, replayable
from reprokit.replay.verdict import Verdict
from reprokit.step.limits import Limits
from reprokit.step.outcome import Status

QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
WAYS = {  # config, trainer
    "clipped": ({"way": "automatic"}, {"gradient_clip_val": 0.1}),
    "clipped by value": ({"way": "automatic"}, {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "fused": ({"way": "fused"}, {"gradient_clip_val": 0.1}),  # its numbers are read late
    "fused and accumulated": ({"way": "fused"}, {"accumulate_grad_batches": 3}),
    "accumulated": ({"way": "automatic"}, {"accumulate_grad_batches": 3}),
    "bf16": ({"way": "automatic"}, {"precision": "bf16-mixed"}),
    "fp16": ({"way": "automatic"}, {"fp16": True, "gradient_clip_val": 0.1}),
    "fp16 manual": ({"way": "manual"}, {"fp16": True}),
    "bf16 whole": ({"way": "hooked"}, {"precision": "bf16-mixed", "gradient_clip_val": 0.1}),
    "hooked": ({"way": "hooked"}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}),
    "manual": ({"way": "manual"}, {}),
    "adversarial": ({"way": "adversarial"}, {}),
    "an optimizer of one's own": ({"way": "own"}, {}),
}
PLAIN = {"clipped", "fused", "bf16", "fp16"}


def fit(lit, config, record=(), bad=None, epochs=2, far=None, **trainer):
    module = lit.build(config)
    if trainer.pop("fp16", False):
        trainer["plugins"] = MixedPrecision("16-mixed", "cpu")  # with a GradScaler, which is of one run
    quiet = dict.fromkeys(QUIET, False)
    resumed = trainer.pop("ckpt_path", None)
    trainer = L.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=[*record], **{**quiet, **trainer})
    trainer.fit(module, lit.loader(bad, far=far), ckpt_path=resumed)
    return module


@pytest.fixture
def lit(script):
    return script("lit_train")


@pytest.mark.parametrize("way", WAYS)
def test_training_is_what_it_would_be_without_a_recorder(lit, tmp_path, way):
    config, trainer = {"seed": 0, **WAYS[way][0]}, WAYS[way][1]
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    ours, theirs = (fit(lit, config, callbacks, **trainer).state_dict() for callbacks in ([record], []))
    assert record.recorder.steps == 14 and not record.incidents
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("way", WAYS)
def test_a_nan_is_captured_and_the_incident_is_the_same_step(lit, tmp_path, again, way):
    config, trainer = {"seed": 0, **WAYS[way][0]}, WAYS[way][1]
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], bad=5, **trainer)
    outcome, incident = again(record.incidents[0])
    manifest = incident.manifest
    assert manifest.signature.kind is Kind.NONFINITE_LOSS and manifest.entrypoint == "lit_train:build.harness"
    assert manifest.step == 6 and incident.config()["reprokit"]["lightning"]["plain"] == (way in PLAIN)
    assert outcome.status is Status.FAIL and outcome.fingerprint == manifest.fingerprint


def test_a_batch_that_ends_an_epoch_steps_though_fewer_are_accumulated(lit, tmp_path, again):
    config = {"seed": 0, "way": "automatic"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], bad=6, accumulate_grad_batches=4)
    outcome, incident = again(record.incidents[0])
    assert incident.manifest.step == 7 and "parameters/net" in incident.manifest.fingerprint
    assert outcome.fingerprint == incident.manifest.fingerprint


@pytest.mark.parametrize("way", ["clipped", "fused", "accumulated", "manual", "adversarial"])
def test_history_leads_to_the_same_step(lit, tmp_path, again, way):
    config, trainer = {"seed": 0, **WAYS[way][0]}, WAYS[way][1]
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], bad=5, **trainer)
    outcome, incident = again(record.incidents[0], rewind=4)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


def test_an_exception_of_training_step_is_captured_and_raised_as_itself(lit, tmp_path, again):
    config = {"seed": 0, "way": "raises"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    with pytest.raises(ValueError, match="missing") as raised:
        fit(lit, config, [record], bad=2)
    outcome, incident = again(record.incidents[0])
    assert "reprokit captured this step" in raised.value.__notes__[0]
    assert incident.manifest.signature.where == "forward" and outcome.status is Status.FAIL


@pytest.mark.parametrize("way", ["clipped", "hooked"])
def test_a_spike_of_gradients_is_seen_before_they_are_clipped(lit, tmp_path, again, way):
    config, trainer = {"seed": 0, "scale": 1e6, **WAYS[way][0]}, WAYS[way][1]
    limits = Limits(grad_norm_above=10.0)
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False, limits=limits)
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], **trainer)
    outcome, incident = again(record.incidents[0])
    assert incident.manifest.signature.kind is Kind.GRAD_SPIKE and outcome.status is Status.FAIL


def test_a_loader_may_be_trained_on_after_a_skipped_batch(lit, tmp_path):
    config = {"seed": 0, "way": "automatic"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False, on_failure="skip")
    module = fit(lit, config, [record], bad=5, gradient_clip_val=0.1)
    assert record.recorder.skipped == [6, 13] and all(p.isfinite().all() for p in module.parameters())


def test_what_ran_before_a_checkpoint_is_judged_before_it_is_written(lit, tmp_path, monkeypatch):
    settled, config = [], {"seed": 0, "way": "fused"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    settle = Recorder.settle
    monkeypatch.setattr(Recorder, "settle", lambda self: settled.append(self.steps) or settle(self))
    each = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3, save_top_k=-1)
    fit(lit, config, [record, each], epochs=1, enable_checkpointing=True)
    assert settled[:2] == [3, 6] and len(list((tmp_path / "kept").iterdir())) >= 2


@pytest.mark.parametrize("rewind", [0, 4])
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_numbers_its_steps_on_and_one_of_a_later_epoch_is_the_same(lit, tmp_path, again, way, rewind):
    """With finite losses, which tell what a NaN would hide."""
    config, trainer = {"seed": 0, **WAYS[way][0]}, WAYS[way][1]
    before = fit(lit, config, epochs=1, **trainer).trainer
    before.save_checkpoint(tmp_path / "last.ckpt")
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False, limits=Limits(loss_above=20.0))
    with pytest.raises(IncidentCaptured, match=r"^step 13: loss_spike at loss"):
        fit(lit, config, [record], far=5, ckpt_path=tmp_path / "last.ckpt", **trainer)
    outcome, incident = again(record.incidents[0], rewind=rewind)
    assert incident.manifest.step == 13 and [entry["step"] for entry in incident.history()] == [8, 9, 10, 11, 12]
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


def test_a_run_that_is_resumed_within_an_epoch_goes_on_from_the_trainers_step(lit, tmp_path):
    config = {"seed": 0, "way": "automatic"}
    each = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=3, save_top_k=-1, filename="{step}")
    fit(lit, config, [each], epochs=1, enable_checkpointing=True)
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], bad=2, ckpt_path=tmp_path / "kept" / "step=3.ckpt")
    (path,) = record.incidents
    assert record.recorder.steps == Incident.open(path).manifest.step == 6


def test_a_trainer_that_fits_twice_goes_on_counting_and_another_one_begins_anew(lit, tmp_path):
    config = {"seed": 0, "way": "automatic"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    module = fit(lit, config, [record], epochs=1)
    assert record.recorder.steps == 7
    module.trainer.fit_loop.max_epochs = 2
    module.trainer.fit(module, lit.loader())
    assert record.recorder.steps == 14
    with pytest.raises(IncidentCaptured, match=r"^step 3: "):
        fit(lit, config, [record], bad=2)


def test_a_copy_of_the_callback_has_recorded_nothing_and_records(lit, tmp_path):
    config = {"seed": 0, "way": "automatic"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    fit(lit, config, [record], epochs=1)
    for other in copy.deepcopy(record), copy.copy(record), pickle.loads(pickle.dumps(record)):
        assert other.recorder is None and not other.incidents
        fit(lit, config, [other], epochs=1)
        assert other.recorder.steps == record.recorder.steps == 7


def fit_validated(lit, record, bad=None, val=None, **trainer):
    quiet = {**dict.fromkeys(QUIET, False), "num_sanity_val_steps": 0, "max_epochs": 2}
    module = lit.build({"seed": 0, "way": "validated"})
    trainer = L.Trainer(accelerator="cpu", callbacks=record, **{**quiet, **trainer})
    trainer.fit(module, lit.loader(bad), val or lit.loader())
    return module


def test_validation_between_steps_limits_and_an_early_stop_change_nothing(lit, tmp_path, again):
    trainer = {"limit_train_batches": 5, "limit_val_batches": 2, "val_check_interval": 2, "max_epochs": 9}
    stop = lambda: EarlyStopping("val", patience=3)
    record = Record(lit.build, {"seed": 0, "way": "validated"}, out=tmp_path / "out", rehearse=False)
    ours, theirs = fit_validated(lit, [record, stop()], **trainer), fit_validated(lit, [stop()], **trainer)
    assert record.recorder.steps == ours.global_step == theirs.global_step < 45 and not record.incidents
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())
    with pytest.raises(IncidentCaptured, match=r"^step 4: "):
        fit_validated(lit, [record, stop()], bad=3, **trainer)
    outcome, incident = again(record.incidents[0], rewind=3)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint


class Broken(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        raise OSError("no such file")


@pytest.mark.parametrize("way", ["its step", "its loader"])
def test_what_fails_in_validation_is_no_failure_of_training(lit, tmp_path, way):
    broken = torch.utils.data.DataLoader(Broken(), batch_size=None)
    record = Record(lit.build, {"seed": 0, "way": "validated"}, out=tmp_path / "out", rehearse=False)
    val = lit.loader(bad=3) if way == "its step" else broken
    with pytest.raises((ValueError, OSError), match=r"nothing to validate|no such file") as raised:
        fit_validated(lit, [record], val=val, val_check_interval=2)
    assert record.recorder.steps == 2 and not record.incidents and not hasattr(raised.value, "__notes__")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["clipped", "manual"])
def test_a_run_that_goes_nan_replays_bit_for_bit_in_fresh_processes(lit, tmp_path, replayed, way):
    config, trainer = {"seed": 0, **WAYS[way][0]}, WAYS[way][1]
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=way == "clipped")
    with pytest.raises(IncidentCaptured):
        fit(lit, config, [record], bad=3, **trainer)
    assert record.recorder.findings == []
    result, incident = replayed(record.incidents[0])
    assert result.verdict is Verdict.REPRODUCIBLE and result.n == 3
    assert all(attempt.outcome.fingerprint == incident.manifest.fingerprint for attempt in result.attempts)


REFUSED = {
    "not decorated": (lambda lit, out: Record(lambda config: None, {}, out=out), "@replayable"),
    "nothing": (lambda lit, out: Record(None, {}), "NoneType is not decorated"),
    "a module": (lambda lit, out: Record(lit.build({"seed": 0, "way": "automatic"}), {}), "Net is not decorated"),
    "no config": (lambda lit, out: Record(lit.build, None), "config is a NoneType"),
    "a config in a file": (lambda lit, out: Record(lit.build, "train.yaml"), "config is a str"),
    "no option": (lambda lit, out: Record(lit.build, {}, on_failur="skip"), "unexpected keyword argument 'on_failur'"),
    "no layout": (lambda lit, out: replayable(None), "the layout is a NoneType"),
    "the decorator alone": (lambda lit, out: replayable(lambda config: None), "write @replayable(layout="),
    "no function": (lambda lit, out: replayable("b d")(None), "a NoneType is no function"),
    "a method": (lambda lit, out: replayable("b d")(lambda self, config: None), "cannot be called with a config alone"),
    "two of them": (lambda lit, out: _fit_twice(lit, out, lambda make: [make(), make()]), "has two of them"),
    "one given twice": (lambda lit, out: _fit_twice(lit, out, lambda make: [make()] * 2), "has two of them"),
    "a module of another Lightning": (lambda lit, out: _fit_other(lit, out), "pytorch_lightning"),
    "LBFGS": (lambda lit, out: _fit_way(lit, out, "lbfgs"), "LBFGS"),
    "no optimizer": (lambda lit, out: _fit_way(lit, out, "nothing"), "configure_optimizers returned none"),
    "a key of ours": (lambda lit, out: _fit_config(lit, out, {"way": "automatic", "seed": 0, "reprokit": 1}), "rename"),
    "no such entry": (lambda lit, out: _fit_layout(lit, out, {"y": "b"}), "no entry 'y'"),
}


def _fit_config(lit, out, config):
    fit(lit, config, [Record(lit.build, config, out=out, rehearse=False)])


def _fit_twice(lit, out, several):
    config = {"seed": 0, "way": "automatic"}
    fit(lit, config, several(lambda: Record(lit.build, config, out=out, rehearse=False)))


def _fit_other(lit, out):
    class Other(pytorch_lightning.LightningModule):
        def training_step(self, batch, batch_idx):
            return batch["x"].mean()

        def configure_optimizers(self):
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)

    record = Record(lit.build, {"seed": 0, "way": "automatic"}, out=out, rehearse=False)
    quiet = dict.fromkeys(QUIET, False)
    pytorch_lightning.Trainer(accelerator="cpu", max_epochs=1, callbacks=[record], **quiet).fit(Other(), lit.loader())


def _fit_way(lit, out, way):
    _fit_config(lit, out, {"seed": 0, "way": way})


def _fit_layout(lit, out, layout):
    lit.build.given = type(lit.build.given)(layout=layout)
    _fit_way(lit, out, "automatic")


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_followed_is_said_in_one_line(lit, tmp_path, what):
    run, line = REFUSED[what]
    with pytest.raises(BadInput) as refused:
        run(lit, tmp_path / "out")
    assert line in str(refused.value) and "\n" not in str(refused.value)


def test_a_batch_of_a_type_that_cannot_be_stored_is_named_in_one_line(lit, tmp_path):
    class Batch:
        def __init__(self, x):
            self.x = x

    config = {"seed": 0, "way": "automatic"}
    record = Record(lit.build, config, out=tmp_path / "out", rehearse=False)
    batches = torch.utils.data.DataLoader([Batch(torch.rand(6, 4))], batch_size=None)
    quiet = dict.fromkeys(QUIET, False)
    with pytest.raises(BadInput, match="it has only Batch"):
        L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[record], **quiet).fit(lit.build(config), batches)


@pytest.mark.parametrize(("way", "line"), [("nothing", "returned none"), ("two", "multiple optimizers")])
def test_a_module_that_cannot_be_built_alone_is_refused_in_one_line(lit, way, line):
    with pytest.raises(BadInput, match=line) as refused:
        lit.build.harness({"seed": 0, "way": way})
    assert "\n" not in str(refused.value)


def test_what_only_the_user_can_say_is_in_the_harness(lit):
    teacher = torch.nn.Linear(4, 1)
    loader = lambda module: lit.loader()
    given = {"loader": loader, "knobs": {"seed": [1, 2]}, "extra_state": lambda module: {"teacher": teacher}}
    build = replayable({"x": "b d"}, features=lambda module, batch: module.net(batch["x"]), **given)(lit.build._make)
    harness = build.harness({"seed": 0, "way": "automatic"})
    assert harness.extra_state["teacher"] is teacher and harness.knobs == given["knobs"]
    assert len(list(harness.loader)) == 7
    assert harness.features({"x": torch.rand(3, 4)}).shape == (3, 1)


def test_a_stand_in_says_nothing_of_devices_and_of_what_else_there_is(lit, caplog):
    with caplog.at_level("INFO"):
        lit.build.harness({"seed": 0, "way": "automatic"})
    assert "GPU available" not in caplog.text and "Tip" not in caplog.text
    with caplog.at_level("INFO"):
        L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    assert "GPU available" in caplog.text  # a Trainer of the project's own tells as before
