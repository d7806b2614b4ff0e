"""Two incidents: one that a tiny training script ran into, and one that says hostile things wherever it can."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reprokit
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Draft, Incident

TRAIN = """
import torch
import reprokit

def build(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"])
    step = lambda batch: {"loss": model(batch["x"] / batch["x"].std(dim=1, keepdim=True)).square().mean()}
    return reprokit.Harness(modules={"model": model}, optimizer=optimizer, step=step, layout={"x": "b t"})

if __name__ == "__main__":
    config = {"lr": 0.1}
    with reprokit.Recorder(build(config), build=build, config=config, out="incidents", rehearse=False) as recorder:
        for number in range(3):
            x = torch.randn(3, 4)
            x[1] = x[1] if number < 2 else 0.0
            recorder.step({"x": x})
"""
HOSTILE = "x` | <img src=x onerror=a> [bold]b[/] @all {{ 7 * 7 }} \x1b[2J\x07\u202e ```\n# false heading\n$(touch evil)"


@pytest.fixture(scope="session")
def captured(tmp_path_factory) -> Incident:
    """A NaN: a constant sample, divided by its deviation."""
    folder = tmp_path_factory.mktemp("training")
    (folder / "train.py").write_text(TRAIN)
    package = Path(reprokit.__file__).parents[1]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(package), "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run([sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True, text=True)
    found = list((folder / "incidents").glob("*/incident.json"))
    assert len(found) == 1, done.stderr
    return Incident.open(found[0].parent)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Incident:
    with Draft(tmp_path_factory.mktemp("hostile")) as draft:
        draft.write_yaml("config.yaml", {HOSTILE: HOSTILE})
        draft.write_json("command.json", {"argv": [HOSTILE, "--x"], "cwd": HOSTILE, "launcher": HOSTILE})
        draft.write_json("environment.json", {"os": HOSTILE, "python": HOSTILE, "gpus": [HOSTILE], HOSTILE: HOSTILE})
        draft.write_json("flags.json", {"device": HOSTILE})
        draft.write_text("requirements.txt", "torch==2.13.0\n")
        draft.write_tree("state", "state", {})
        draft.write_tree("ranks/00", "batch", {HOSTILE: torch.zeros(2, 3)})
        draft.write_tree("ranks/00", "rng", {})
        for name in ("traceback.txt", "stdout.txt", "stderr.txt", "metrics.jsonl"):
            draft.write_text(f"logs/{name}", HOSTILE)
        return draft.publish(
            "hostile",
            parent=HOSTILE,
            signature=Signature(
                kind=Kind.EXCEPTION, where=HOSTILE, exception=HOSTILE, function=HOSTILE, message=HOSTILE
            ),
            symptoms=(Symptom(kind=Kind.EXCEPTION, where=HOSTILE, evidence={HOSTILE: HOSTILE, "n": [1, None]}),),
            step=3,
            world_size=1,
            entrypoint=HOSTILE,
            layout={HOSTILE: "b t"},
            created=HOSTILE,
            commit=HOSTILE,
            fingerprint={},
            redacted=(HOSTILE,),
            left_out=(HOSTILE,),
            certificate={
                "axes": {HOSTILE: {"size": HOSTILE, "kept": [HOSTILE], "guilty": HOSTILE}},
                "verified": {"n": HOSTILE},
            },
        )


@pytest.fixture
def copy(captured, tmp_path) -> Path:
    """Of the captured incident's folder, to be damaged."""
    return Path(shutil.copytree(captured.path, tmp_path / captured.path.name))
