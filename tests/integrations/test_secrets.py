"""A secret that a config takes from the environment is not in the incident, and the step replays all the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from reprokit.integrations.lightning import Record
from reprokit.integrations.transformers import record
from reprokit.step.outcome import Status

SCRIPTS = Path(__file__).parent / "scripts"
PLANTED = {  # in two halves, since this file may be captured too
    "TRACKER_API_KEY": "q7Vd-hollow-" + "Lantern-29-marsh",
    "DB_PASSWORD": "Brass81kettle" + "_ofTheNorth",
    "MAIL_PASSWORD": "mul" + "3r7z",  # too short to be looked for in running text
    "FEED_SECRET": "letterswithout" + "anydigit",
}
TYPED = "w4rm-Harbour-" + "of-Glass-77x"  # on the command line
TAKEN = {
    "login": "${oc.env:TRACKER_API_KEY}",
    "url": "postgresql://me:${oc.env:DB_PASSWORD}@host/runs",
    "mail": "${oc.env:MAIL_PASSWORD}",
    "feed": "${oc.env:FEED_SECRET}",
}


def holding(folder, words):
    """The files below it in which one of these words lies."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files for word in words if word.encode() in path.read_bytes()]


@pytest.mark.slow
def test_nothing_of_a_secret_that_hydra_resolved_lies_in_the_incident(tmp_path, again, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    shutil.copy(SCRIPTS / "hydra_train.py", project)
    overrides = [f"+tracker.{name}='{value}'" for name, value in TAKEN.items()]
    overrides += [f"+hub.api_key={TYPED}", "+width=4", f"+out={tmp_path / 'out'}"]
    command = [sys.executable, "-W", "ignore", "hydra_train.py", *overrides]
    env = {**os.environ, **PLANTED}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, timeout=280)
    assert "IncidentCaptured: step 3: nonfinite_loss" in done.stderr, done.stderr[-2000:]
    assert holding(project, [TYPED])  # hydra has written it down
    (path,) = (tmp_path / "out").glob("2*")
    assert holding(path, [*PLANTED.values(), TYPED]) == []
    assert [file for file in path.rglob("overrides.yaml")]  # which was captured beside the script
    monkeypatch.chdir(tmp_path)
    outcome, incident = again(path)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint
    named = " ".join(incident.manifest.redacted)
    assert all(place in named for place in ("config.tracker.login", "config.tracker.url", "config.hub.api_key", "argv"))


def lightning(lit, config, out):
    import lightning.pytorch as L

    found = Record(lit.build, config, out=out, rehearse=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[found], **quiet).fit(lit.build(config), lit.loader(bad=2))


def trainer(hf, config, out):
    made = hf.build(config)
    record(made, hf.build, config, out=out, rehearse=False)
    made.train()


ADAPTERS = {
    "lit_train": (lightning, {"seed": 0, "way": "automatic"}),
    "hf_train": (trainer, {"bad": 9, "out": "trainer"}),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_nothing_of_it_lies_in_the_incident_of_a_trainer(script, tmp_path, again, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    for variable, value in PLANTED.items():
        monkeypatch.setenv(variable, value)
    train, config = ADAPTERS[name]
    with pytest.raises(Exception, match="nonfinite_loss"):
        train(script(name), OmegaConf.create({**config, "tracker": TAKEN}), tmp_path / "out")
    for variable in PLANTED:
        monkeypatch.delenv(variable)  # where it is replayed nobody has them
    (path,) = (tmp_path / "out").glob("2*")
    assert holding(path, PLANTED.values()) == []
    outcome, incident = again(path)
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint
    assert set(incident.config()["tracker"]) == set(TAKEN)
    assert "config.tracker.login" in " ".join(incident.manifest.redacted)
