"""Fork, write incidents, be killed, again and again; after each kill look at what is there. Prints one JSON object.

    python kill_while_writing.py FOLDER KILLS SEED
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import torch

from reprokit import tree
from reprokit.capture.black_box import Run
from reprokit.capture.seen import Seen
from reprokit.capture.snapshot import Snapshot
from reprokit.capture.writer import Writer
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import DRAFT_PREFIX, Incident, sweep
from reprokit.step import flags, rng

SIGNATURE = Signature(kind=Kind.NONFINITE_LOSS, where="loss")


def main():
    folder, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("def build(config): ...\n")
    out, choose = folder / "out", random.Random(seed)
    run = Run(config={}, entrypoint="train.py:build", layout={"x": "b d"}, root=folder / "code", out=out)
    start, saw = snapshot(), Seen(signature=SIGNATURE, symptoms=(Symptom(kind=Kind.NONFINITE_LOSS, where="loss"),))
    writer = Writer(run, recapture=True)
    writer.write(1, lambda: start, saw, None)
    began = time.perf_counter()
    writer.write(1, lambda: start, saw, None)
    took = time.perf_counter() - began
    found = {"kills": 0, "whole": 0, "broken": [], "drafts": 0, "swept": 0, "left": []}
    for kill in range(kills):
        reader, ended = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            forever(Writer(run, recapture=True), start, saw, ended)
        os.close(ended)
        for _ in range(0 if kill % 4 else choose.randrange(1, 6)):  # some see a few that are whole
            if not os.read(reader, 1):
                raise RuntimeError("the child died by itself")
        time.sleep(choose.uniform(0, 1.5 * took))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reader)
        found["kills"] += 1
        look(out, found)
    for draft in out.iterdir():
        os.utime(draft, (1, time.time() - 3600))
    found["swept"] = len(sweep(out))
    found["left"] = sorted(path.name for path in out.iterdir())
    print(json.dumps(found))


def snapshot():
    state = {"parameters": {"w": torch.rand(300, 300)}, "loop": {"micro": 0}}
    batch = tree.pack({"x": torch.rand(64, 500)})
    about = {"loop": {"micro": 0}, "rng": rng.take(), "flags": flags.take(), "left_out": []}
    return Snapshot(step=1, state=state, batch=batch, donor=batch, **about)


def forever(writer, start, saw, ended):
    try:
        while True:
            writer.write(1, lambda: start, saw, None)
            os.write(ended, b".")
    finally:
        os._exit(1)


def look(out, found):
    """Whatever shows itself is whole; it is removed, so that the next look is quick."""
    for path in list(out.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            Incident.open(path)
            found["whole"] += 1
        except BadInput as reason:
            found["broken"].append(str(reason))
        shutil.rmtree(path)
    found["drafts"] = sum(path.name.startswith(DRAFT_PREFIX) for path in out.iterdir())


if __name__ == "__main__":
    main()
