"""A cluster of two nodes: incidents go there once, attempts that are lost with their node run again."""

import asyncio
import io
from pathlib import Path

import psutil
import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay import attempts, broker
from reprokit.replay.choose import open_engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.engines.ray import Ray
from reprokit.replay.remote import shared
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def incident(incidents_in, tmp_path_factory, waits):
    return incidents_in(tmp_path_factory.mktemp("ray"))(body=waits, config={"seen": "nowhere"})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Of this machine, which is all nodes: where they fetch incidents to, and the store that is theirs by default."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/reprokit"


@pytest.fixture
def opened(ray_cluster, incident, tmp_path):
    """Nodes started before a test know nothing of its cache: a store of the test's own is named."""

    def make(**options):
        store = str(tmp_path / "store")
        where = {"engine": "ray", "ray_address": ray_cluster.address, "store": store, "inner": "process"}
        return open_engine(incident, EngineOptions(**where | options))

    return make


def waiting(incident, seen):
    return Case(incident=incident.path, variant=Variant(name="waits", config={"seen": str(seen)}))


def test_attempts_run_on_both_nodes_and_those_that_are_lost_run_again(
    ray_cluster, opened, incident, tmp_path, came, until
):
    seen = tmp_path / "seen"
    seen.mkdir()
    dying = ray_cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    with opened() as engine:
        assert engine.capacity == 3
        futures = [engine.submit(waiting(incident, seen)) for _ in range(4)]
        until(lambda: len(came(seen)) == 3)  # one on each
        ray_cluster.remove_node(dying, allow_graceful=False)
        until(lambda: not all(map(psutil.pid_exists, came(seen))))  # an attempt ends with its host
        (seen / "go").touch()
        outcomes = [future.result(timeout=200) for future in futures]
    assert [outcome.status for outcome in outcomes] == [Status.FAIL] * 4, outcomes[0].detail
    assert len(came(seen)) == 4 + 1  # the one that was lost came twice
    assert all(outcome.host for outcome in outcomes)
    assert len({tuple(outcome.fingerprint.items()) for outcome in outcomes}) == 1


def test_a_replay_on_the_cluster_is_one_like_any_other(opened, incident, tmp_path):
    with opened(jobs=2) as engine:
        found = attempts.run(Case(incident=incident.path), engine, 3)
    assert (found.verdict, found.n, found.fail, found.infra) == ("REPRODUCIBLE", 3, 3, 0)
    assert found.engine == "ray"
    stored = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    assert len([path for path in stored if path.parent.name == "incidents"]) == 1


@pytest.mark.parametrize("silent", [1, 10**9])
def test_a_head_that_does_not_answer_is_asked_again_as_long_as_there_is_patience(monkeypatch, silent):
    looks, answers = [], io.StringIO()

    def nodes():
        looks.append(1)
        if len(looks) <= silent:
            raise RuntimeError("Failed to get all node info")
        return []

    monkeypatch.setattr(broker.ray, "nodes", nodes)
    monkeypatch.setattr(broker, "_LOOK", 0.0)

    async def look():
        crew = broker.Crew({"patience": 0.01, "need": None, "gpu": False, "jobs": None}, answers)
        crew.add(broker.Attempt(number=0, id="", case=""))
        keeping = asyncio.create_task(crew.keep())
        while "fatal" not in answers.getvalue() and not keeping.done():
            await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(look())
    assert len(looks) > 1 and "no node had room for 0.01 s" in answers.getvalue()


def test_a_cluster_that_is_not_there_is_one_line(incident):
    with pytest.raises(Infrastructure, match=r"Ray: nobody answers at 127.0.0.1:9 \(.*\); check --ray-address"):
        Ray(incident, address="127.0.0.1:9")


def test_a_gpu_is_not_made_up_for(ray_cluster, incident, monkeypatch):
    monkeypatch.setattr(type(incident), "flags", lambda self: {"device": "cuda:0"})
    with pytest.raises(Infrastructure, match="no node of this cluster has a GPU"):
        Ray(incident, address=ray_cluster.address)


def test_what_all_nodes_refuse_is_said_and_nothing_hangs(ray_cluster, incident, tmp_path):
    options = {"address": ray_cluster.address, "store": str(tmp_path / "store")}
    with Ray(incident, **options, foreign=True) as engine:  # code from elsewhere, and no container for it
        with pytest.raises(BadInput, match="add --trust"):
            engine.submit(Case(incident=incident.path)).result(timeout=200)
        with pytest.raises(BadInput, match="add --trust"):
            engine.submit(Case(incident=incident.path)).result(timeout=200)


def test_a_relative_store_means_the_same_folder_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert shared("here") == str(tmp_path / "here")
    assert shared("s3://bucket/x") == "s3://bucket/x"
    monkeypatch.setenv("REPROKIT_STORE", "s3://bucket/y")
    assert shared(None) == "s3://bucket/y"
    assert Path(shared("z")).is_absolute()
