"""Train in children that are killed at random instants, and look at what each left in its black box.

`python kill_in_box.py FOLDER TIMES SEED` prints one JSON object: how many died in a step and between two, and whether
all that could be read was whole. Children are forks of a process that has imported and computed nothing: a matrix
product here would hang them there.
"""

import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

import reprokit
from reprokit.capture import black_box
from reprokit.capture.black_box import PLACE, WANTED
from reprokit.capture.remains import Death, finish, in_step

ROWS = 4096  # of a batch: a write of it takes long enough to be hit


def build(config):
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 1)
    optimizer = torch.optim.Adam(net.parameters())

    def step(batch):
        time.sleep(0.01)  # as long as what lies between two steps: both must be hit
        return net(batch["x"]).mean()

    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"})


def base(draft, run):
    """Of what does not change, next to nothing: it is written once, before any child is killed."""
    draft.write_yaml("config.yaml", run.config)
    about = {"entrypoint": run.entrypoint, "layout": run.layout, "commit": None}
    return {"out": str(run.out), "redacted": [], "left_out": [], **about}


def train(folder, begun):
    torch.set_num_threads(1)
    black_box._write_base = base
    os.environ |= {PLACE: str(folder / "boxes"), WANTED: "1"}
    logging.disable()
    harness = build({})
    with reprokit.Recorder(harness, build=build, config={}, out=folder / "out", rehearse=False) as recorder:
        while True:
            recorder.step({"x": torch.rand(ROWS, 16)})
            os.write(begun, b".")


def killed_child(folder, chance):
    """Let one train for a few steps and a random moment, and kill it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        train(folder, writer)
    os.close(writer)
    for _ in range(chance.randint(1, 8)):
        if not os.read(reader, 1):
            raise RuntimeError("the child died by itself")
    time.sleep(chance.random() * 0.04)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)


def main():
    folder, times, chance = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    (folder / "boxes").mkdir(parents=True)
    build({})  # an optimizer is what imports most, and that once
    seen = {"in a step": 0, "between": 0, "steps held": []}
    for _ in range(times):
        killed_child(folder, chance)
        [box] = (folder / "boxes").iterdir()
        if in_step(box) is None:
            seen["between"] += 1
        else:
            incident = reprokit.Incident.open(finish(box, Death(signal=signal.SIGKILL)))
            held = [step["step"] for step in incident.history()]
            last = incident.manifest.step
            assert incident.anchor() and held == list(range(last - len(held), last)), (held, last)
            assert incident.batch()["x"].shape == (ROWS, 16) and incident.rng() and incident.loop() == {"micro": 0}
            seen["in a step"] += 1
            seen["steps held"].append(len(held))
        box.rename(folder / f"done-{seen['in a step']}-{seen['between']}")
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
