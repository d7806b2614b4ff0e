import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from docker.errors import APIError
from docker.models.images import ImageCollection
from requests import Response

from reprokit.failure import Kind
from reprokit.replay import daemon
from reprokit.replay.container import LABEL, Limits
from reprokit.replay.engines.docker import Docker
from reprokit.replay.machine import Subject

MakeWheel = Callable[..., Path]


@pytest.fixture
def limits() -> Limits:
    """Small, for containers of a few lines of Python."""
    return Limits(memory=256 << 20, cpus=1.0, deadline=60.0, pids=64, shm=32 << 20, tmp=64 << 20)


@pytest.fixture
def engine(base_image: str, limits: Limits) -> Callable[..., Docker]:
    """An engine whose worker is a few lines of Python, and whose incidents had a failure of this kind."""

    def make(script: str, *, kind: Kind = Kind.NONFINITE_LOSS, gpus: bool = False, **options) -> Docker:
        subject = Subject(kind=kind, environment={"PYTHONHASHSEED": "7", "HOME": "/home/me"}, gpus=gpus)
        options = {"limits": limits, "jobs": 1} | options
        command = ("python3", "-c", textwrap.dedent(script))
        return Docker(base_image, command=command, describe=lambda case: subject, **options)

    return make


@pytest.fixture
def containers() -> Callable[[Docker], list[str]]:
    """containers(engine): those that it has started and not removed."""

    def listed(engine: Docker) -> list[str]:
        mine = {"label": f"{LABEL}.run={engine.run}"}
        found = daemon.connect().containers.list(all=True, filters=mine, ignore_removed=True)
        return [container.id for container in found]

    return listed


@pytest.fixture
def prunes_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else prunes images, which an engine does for one at a time."""

    def refuses(*_, **__):
        response = Response()
        response.status_code = 409
        raise APIError("a prune operation is already running", response)

    monkeypatch.setattr(ImageCollection, "prune", refuses)


@pytest.fixture
def make_wheel() -> MakeWheel:
    """Makes a wheel of one module by hand: no index and no build tool is needed."""

    def make(folder: Path, name: str, version: str, *, says: str = "hello") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"SAYS = {says!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(path, "w") as wheel:
            for inside, text in files.items():
                wheel.writestr(zipfile.ZipInfo(inside), text)  # without a date: the same content is the same file
            wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(f"{f},,\n" for f in [*files, f"{info}/RECORD"]))
        return path

    return make


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip as it is set up on no machine: it knows no index at all."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def ray_cluster():
    """A Ray cluster of this machine, with two nodes of one core each; more can be added, and killed."""
    from ray.cluster_utils import Cluster

    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 6}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        node = {"num_cpus": 1, "object_store_memory": 80 << 20}
        cluster = Cluster(
            initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": soon}
        )
        try:
            cluster.add_node(**node)
            yield cluster
        finally:
            cluster.shutdown()


@pytest.fixture(scope="session")
def waits() -> str:
    """The body of a step that leaves its process's id in the folder `seen` of its config, and waits for `go` there."""
    return """
import os, pathlib, time
seen = pathlib.Path(config["seen"])
if config["seen"] != "nowhere":
    (seen / str(os.getpid())).touch()
    while not (seen / "go").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def came():
    """came(seen): processes that came to such a step."""
    return lambda seen: {int(one.name) for one in seen.iterdir() if one.name != "go"}


@pytest.fixture
def until():
    """until(holds): waits."""

    def wait(holds, within=400.0):  # processes that import torch, several at once, on a machine that has more to do
        end = time.monotonic() + within
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.05)

    return wait
