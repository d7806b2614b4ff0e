"""Reduce an incident in children that are killed at random instants, and again to the end: prints what came of it.

python kill_and_resume.py INCIDENT SCRATCH TIMES: one JSON object a line, the first of an undisturbed reduction. A fork
in place of a fresh interpreter saves its imports; this parent computes nothing, or its children would hang.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from reprokit.incident import Incident
from reprokit.reduce.journal import Journal
from reprokit.reduce.reducer import reduce
from reprokit.step.evaluate import Session


def child(incident, journal, result):
    """The process id of a child that reduces and writes the result, whole or not at all."""
    pid = os.fork()
    if pid:
        return pid
    try:
        torch.set_num_threads(1)
        opened = Incident.open(incident)
        with Session(opened) as session, Journal.open(journal, {"incident": opened.manifest.id}) as written:
            found = reduce(opened, session.evaluate, journal=written).to_json() | {"seconds": 0}
        result.with_suffix(".part").write_text(json.dumps(found))
        result.with_suffix(".part").replace(result)
    finally:
        os._exit(0)


def runs(pid):
    """Of a child that nobody has waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def main():
    incident, scratch, times = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    started = time.monotonic()
    os.waitpid(child(incident, scratch / "whole.jsonl", scratch / "whole.json"), 0)
    length = time.monotonic() - started
    written = (scratch / "whole.jsonl").read_bytes()
    size, records = len(written), written.count(b"\n")
    print((scratch / "whole.json").read_text(), flush=True)
    dice = random.Random(0)
    for index in range(times):
        journal, result = scratch / f"{index}.jsonl", scratch / f"{index}.json"
        pid = child(incident, journal, result)
        enough = dice.random() * size  # how far it comes in a second depends on what else the machine does
        while runs(pid) and not (journal.exists() and journal.stat().st_size >= enough):
            time.sleep(0.001)
        time.sleep(dice.random() * length / records)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        killed = not result.exists()
        result.unlink(missing_ok=True)
        os.waitpid(child(incident, journal, result), 0)
        print(json.dumps({"killed": killed, "found": json.loads(result.read_text())}), flush=True)


if __name__ == "__main__":
    main()
