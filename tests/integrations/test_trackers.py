"""Trackers are told of an incident at its step; none of them can end training, and a healthy step costs nothing."""

import subprocess
import sys

import pytest
import sentry_sdk
import torch
import wandb as wb
from sentry_sdk.transport import Transport
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import reprokit
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.integrations import sentry, tensorboard, wandb


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(3, 1)
    step = lambda batch: {"loss": net(batch["x"]).square().mean()}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"})


def fail(out, on_incident, steps=3, **options):
    """Train until the last of these steps goes NaN; the incident."""
    recorder = reprokit.Recorder(
        build({}), build=build, config={}, out=out, rehearse=False, on_incident=on_incident, **options
    )
    with recorder:
        for step in range(1, steps + 1):
            x = torch.rand(4, 3, generator=torch.Generator().manual_seed(step))
            try:
                recorder.step({"x": x if step < steps else x * float("nan")})
            except reprokit.IncidentCaptured:
                assert step == steps
    return recorder


def test_it_is_called_once_with_each_incident_and_never_for_a_healthy_step(tmp_path):
    told = []
    recorder = fail(tmp_path, told.append)
    assert [incident.path for incident in told] == recorder.incidents and isinstance(told[0], Incident)


def test_a_tracker_that_fails_does_not_reach_training(tmp_path, caplog):
    def broken(incident):
        raise OSError("no route to host")

    recorder = fail(tmp_path, broken, on_failure="skip")
    assert recorder.skipped == [3] and len(recorder.incidents) == 1
    assert any("on_incident was not told" in line and "no route to host" in line for line in caplog.messages)


class Collecting(Transport):
    """Keeps what would be sent."""

    def __init__(self, options=None):
        super().__init__(options)
        self.events = []

    def capture_envelope(self, envelope):
        if (event := envelope.get_event()) is not None:
            self.events.append(event)


def test_sentry_is_sent_one_event_grouped_by_the_signature(tmp_path):
    transport = Collecting()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="http://key@localhost:9/1", transport=transport, default_integrations=False)
        try:
            recorder = fail(tmp_path, sentry.report)
        finally:
            sentry_sdk.init()
    (event,) = transport.events
    (path,) = recorder.incidents
    assert event["message"] == "nonfinite_loss at loss, step 3" and event["level"] == "error"
    assert event["fingerprint"] == ["reprokit", "nonfinite_loss", "loss"] and event["tags"]["reprokit.step"] == "3"
    context = event["contexts"]["reprokit"]
    assert context["path"] == str(path) and context["next"] == f"reprokit replay {path}"
    assert context["incident"] == Incident.open(path).manifest.id


def test_sentry_is_not_told_what_a_recorder_ran_nor_in_which_folder(tmp_path):
    """With Sentry's own integrations, which note each program. Those of training stay."""
    transport = Collecting()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="http://key@localhost:9/1", transport=transport)
        subprocess.run(["true", "of training"], check=True)
        try:
            fail(tmp_path, sentry.report)
            sentry_sdk.capture_message("of training")
        finally:
            sentry_sdk.init()
    ours, theirs = ([one["message"] for one in event["breadcrumbs"]["values"]] for event in transport.events)
    assert ours == ["true of training"]
    assert any(message.startswith("git ") for message in theirs), "nothing was there to be taken out"


def test_tensorboard_shows_a_text_at_the_step(tmp_path):
    with SummaryWriter(str(tmp_path / "board")) as writer:
        (path,) = fail(tmp_path / "out", tensorboard.link(writer)).incidents
    events = EventAccumulator(str(tmp_path / "board")).Reload()
    (event,) = events.Tensors(f"{tensorboard.TAG}/text_summary")
    text = event.tensor_proto.string_val[0].decode()
    assert event.step == 3 and "nonfinite_loss at loss, step 3" in text and str(path) in text


def test_tensorboard_shows_it_where_the_curves_are(tmp_path):
    with SummaryWriter(str(tmp_path / "board")) as writer:
        fail(tmp_path / "out", tensorboard.link(writer, at=lambda: 12), steps_before=100)
    (event,) = EventAccumulator(str(tmp_path / "board")).Reload().Tensors(f"{tensorboard.TAG}/text_summary")
    assert event.step == 12 and "nonfinite_loss at loss, step 103" in event.tensor_proto.string_val[0].decode()


@pytest.mark.slow
def test_wandb_offline_holds_an_alert_and_a_row(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # which would ask the network
    quiet = wb.Settings(x_disable_stats=True, x_disable_meta=True, console="off", x_service_wait=200, init_timeout=200)
    run = wb.init(mode="offline", project="test", dir=str(tmp_path), settings=quiet)
    try:
        (path,) = fail(tmp_path / "out", wandb.link(run)).incidents
        (row,) = run.summary[wandb.KEY]
        assert row["step"] == 3 and row["path"] == str(path)
    finally:
        run.finish()
        wb.teardown()  # its process writes until it ends
    (record,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    data = record.read_bytes()
    assert b"reprokit: nonfinite_loss at loss, step 3" in data and str(path).encode() in data


@pytest.mark.parametrize("what", ["runs/1", None, SummaryWriter])
@pytest.mark.parametrize("link", [tensorboard.link, wandb.link])
def test_what_is_no_tracker_is_refused_with_what_to_hand_over(link, what):
    with pytest.raises(BadInput, match=r"hand over .*pip install 'reprokit\[trackers\]'"):
        link(what)


def test_a_step_in_place_of_what_asks_for_it_is_refused_in_one_line(tmp_path):
    with SummaryWriter(str(tmp_path)) as writer, pytest.raises(BadInput, match="at=3 is no function"):
        tensorboard.link(writer, at=3)


def test_a_tracker_that_is_told_of_something_else_says_so_in_one_line():
    with pytest.raises(BadInput, match="told of a str; it is told of an Incident"):
        sentry.report("incidents/one")


NEEDS = {
    "lightning": ("lightning", "lightning"),
    "transformers": ("transformers", "hf"),
    "accelerate": ("accelerate", "hf"),
    "sentry": ("sentry_sdk", "trackers"),
}


def test_without_its_library_an_adapter_says_what_to_install():
    code = "import sys\nfrom importlib import import_module\nfrom reprokit.errors import BadInput\n"
    for adapter, (library, _) in NEEDS.items():
        code += f"sys.modules[{library!r}] = None\ntry:\n    import_module('reprokit.integrations.{adapter}')\n"
        code += "except BadInput as error:\n    print(error)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    lines = done.stdout.splitlines()
    assert len(lines) == len(NEEDS)
    for line, (library, extra) in zip(lines, NEEDS.values()):
        assert library in line and f"pip install 'reprokit[{extra}]'" in line


def test_the_trackers_are_imported_only_by_who_uses_them():
    code = "import sys, reprokit.integrations, reprokit.integrations.configs, reprokit.integrations.tensorboard\n"
    code += "print(sorted({'wandb', 'tensorboard', 'sentry_sdk', 'omegaconf', 'lightning'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
