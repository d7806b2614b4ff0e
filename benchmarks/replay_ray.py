"""How much faster two nodes of a Ray cluster make attempts than one, and what each attempt costs whoever asks for it.

Both nodes are this machine, and take one attempt at a time: on a machine with two cores, that is a core each. Attempts
are fresh processes whose step is small, so that most of each is one thread that imports torch.

    python benchmarks/replay_ray.py [--json] [--pairs 5] [--attempts 6]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from recorder_pairs import in_turn, ratio, seconds
from tables import rows_table

import reprokit
from reprokit.incident import Incident
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.engines.ray import Ray
from reprokit.step.case import Case

TRAIN = """
import torch
import reprokit

def build(config):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = lambda batch: {"loss": model(batch["x"] / batch["x"].std(dim=1, keepdim=True)).square().mean()}
    return reprokit.Harness(modules={"model": model}, optimizer=optimizer, step=step, layout={"x": "b t"})

if __name__ == "__main__":
    with reprokit.Recorder(build({}), build=build, config={}, out="incidents", rehearse=False) as recorder:
        recorder.step({"x": torch.randn(3, 4)})
        recorder.step({"x": torch.zeros(3, 4)})
"""
QUICK = 500  # attempts that build nothing, so that who asks is never idle
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20}  # Ray's cores: two engines are open at once here


def rows(pairs: int, attempts: int = 6) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="reprokit-ray-") as scratch, cluster() as address:
        folder = Path(scratch)
        os.environ.setdefault("XDG_CACHE_HOME", str(folder / "cache"))
        incident = captured(folder)
        open_ = lambda jobs: Ray(incident, address=address, store=str(folder / "store"), jobs=jobs)
        with open_(1) as one, open_(2) as two:
            run = lambda engine: lambda: _run(engine, incident, attempts)
            took = in_turn(pairs, {"one": run(one), "two": run(two)})
        bare = EngineOptions(engine="inline")
        with Ray(incident, address=address, store=str(folder / "store"), there=bare, jobs=2) as quick:
            _run(quick, incident, 2)  # nodes import and build
            before = _cpu()
            _run(quick, incident, QUICK)
            each = (_cpu() - before) / QUICK
    yield ratio("two ray nodes / one, rate", took["one"], took["two"])
    yield seconds(f"{attempts} attempts, one ray node", took["one"])
    yield seconds(f"{attempts} attempts, two ray nodes", took["two"])
    yield {"name": "CPU of who asks, an attempt", "value": each, "low": each, "high": each, "unit": "s"}


def captured(folder: Path) -> Incident:
    """A small step whose loss is NaN."""
    (folder / "train.py").write_text(TRAIN)
    here = str(Path(reprokit.__file__).parents[1])
    subprocess.run([sys.executable, "train.py"], cwd=folder, env={**os.environ, "PYTHONPATH": here}, stderr=-3)
    [found] = (folder / "incidents").glob("*/incident.json")
    return Incident.open(found.parent)


@contextmanager
def cluster() -> Iterator[str]:
    """Two nodes on this machine; the address of their head."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        nodes.add_node(**NODE)
        yield nodes.address
    finally:
        nodes.shutdown()


def _run(engine: Ray, incident: Incident, attempts: int) -> None:
    outcomes = [future.result() for future in [engine.submit(Case(incident=incident.path)) for _ in range(attempts)]]
    assert {outcome.status for outcome in outcomes} == {"FAIL"}, outcomes[0].detail


def _cpu() -> float:
    """Seconds of this process and of those that speak with the cluster for it."""
    mine = psutil.Process()
    brokers = [one for one in mine.children() if "reprokit.replay.broker" in one.cmdline()]
    return sum(sum(one.cpu_times()[:2]) for one in (mine, *brokers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of a table")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=6, help="of each run")
    options = parser.parse_args()
    found = list(rows(options.pairs, options.attempts))
    print(json.dumps({"rows": found}) if options.json else "\n".join(rows_table(found)))


if __name__ == "__main__":
    main()
