"""The guide for a project like others: its ten lines are run as they stand there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.incident import Incident
from reprokit.step.outcome import Status

HERE = Path(__file__).parent
GUIDE = HERE.parents[1] / "docs" / "adopting.md"


def ten_lines():
    (code,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return code


@pytest.fixture
def project(tmp_path):
    shutil.copytree(HERE / "standin", tmp_path / "standin", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "record.py").write_text(ten_lines())
    return tmp_path


def test_they_are_ten():
    assert sum(bool(line.strip()) for line in ten_lines().splitlines()) == 10


@pytest.mark.slow
def test_a_project_that_adopts_them_gets_an_incident_that_replays(project, again):
    command = [sys.executable, "-W", "ignore", "record.py", "data.black=3", "data.views=10", "data.frames=16"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=280)
    assert "IncidentCaptured: step 4: nonfinite_loss at pred_loss" in done.stderr, done.stderr[-2000:]
    assert "would not replay" not in done.stderr + done.stdout
    (path,) = (project / "incidents").iterdir()
    batch = Incident.open(path).batch()
    shapes = {name: list(value.shape) for name, value in batch.items()}
    assert shapes == {"global_frame": [2, 16, 3, 224, 224], "local_frames": [2, 10, 16, 3, 96, 96]}
    outcome, incident = again(path)
    assert (
        incident.manifest.entrypoint == "record.py:build.harness" and incident.config()["model"]["regulariser"] == 0.02
    )
    assert outcome.status is Status.FAIL and outcome.fingerprint == incident.manifest.fingerprint
    healed, _ = again(path, heal=({"b": (1,), "v": (4,), "t": (7,)},))
    assert healed.status is Status.PASS
