"""An incident that every verb can take, and the command line as a function."""

import pytest
import torch

from reprokit.failure import Kind, Signature
from reprokit.harness import Harness
from reprokit.incident import Draft

SCRIPT = """
import torch, reprokit
from torch import nn

def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                            step=lambda batch: net(batch["x"]).mean(), layout={"x": "b t d"})
"""


@pytest.fixture
def made(tmp_path, fill):
    """made(**changes) -> the folder of an incident whose script or entrypoint may be changed; script: how the text is
    edited."""

    def make(
        script=lambda script: script, entrypoint="train.py:build", bad=True, name="incident", config="{}\n", failed=True
    ):
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        harness = Harness(modules={"net": net}, optimizer=optimizer, step=None, layout={"x": "b t d"})
        batch = {"x": torch.rand(4, 3, 4)}
        if bad:
            batch["x"][2, 1, 0] = float("nan")
        with Draft(tmp_path) as draft:
            fill(draft, harness, {}, batch, {"x": torch.rand(4, 3, 4)})
            draft.write_text("config.yaml", config)
            draft.write_text("source/tree/train.py", script(SCRIPT))
            return draft.publish(
                name,
                signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss") if failed else None,
                step=1,
                entrypoint=entrypoint,
                layout={"x": "b t d"},
            ).path

    return make
