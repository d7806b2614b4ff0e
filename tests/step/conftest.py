"""Incidents made by hand: what the step room is given, without the recorder that usually makes it."""

import random

import pytest
import torch

from reprokit.failure import Kind, Signature
from reprokit.harness import take_state
from reprokit.incident import Draft
from reprokit.step import flags, rng
from reprokit.step.load import load_entrypoint

SCRIPT = """
import torch
from torch import nn

import reprokit


def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(config["dropout"]), nn.Linear(8, 1))
    count = [0]

    def step(batch):
        x = batch["x"]
        {body}
        return {{"loss": net(x).pow(2).mean()}}

    return reprokit.Harness(modules={{"net": net}}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={{"x": "b d"}})
"""


@pytest.fixture
def make_incident(tmp_path):
    """make_incident(body="", batch=..., donor=..., signature=...) -> Incident whose step runs `body` on x first."""

    def make(body="pass", batch=None, donor="healthy", signature=None, variables=None):
        name = f"train{random.getrandbits(40):x}"  # each its own module: scripts of other tests stay out of it
        source = tmp_path / name
        source.mkdir()
        (source / f"{name}.py").write_text(SCRIPT.format(body=body.replace("\n", "\n        ")))
        config = {"seed": 3, "dropout": 0.5}
        harness = load_entrypoint(f"{name}.py:build", source)(config)
        healthy = {"x": torch.rand(4, 4, generator=torch.Generator().manual_seed(1))}
        if batch is None:
            batch = {"x": healthy["x"].clone()}
            batch["x"][2, 1] = float("nan")
        with Draft(tmp_path / "incidents") as draft:
            draft.write_yaml("config.yaml", config)
            draft.write_json("command.json", {"argv": [], "cwd": ".", "path": []})
            draft.write_json("environment.json", {"variables": variables or {}})
            draft.write_json("flags.json", {**flags.take(), "device": "cpu"})
            draft.write_text("requirements.txt", "")
            draft.write_tree("state", "state", {**take_state(harness), "loop": {"micro": 0}})
            draft.write_tree("ranks/00", "batch", batch)
            if donor == "healthy":
                draft.write_tree("ranks/00", "donor", healthy)
            draft.write_tree("ranks/00", "rng", rng.take())
            draft.write_text(f"source/tree/{name}.py", (source / f"{name}.py").read_text())
            return draft.publish(
                "incident",
                signature=signature or Signature(kind=Kind.NONFINITE_LOSS, where="loss"),
                step=1,
                entrypoint=f"{name}.py:build",
                layout={"x": "b d"},
            )

    return make
