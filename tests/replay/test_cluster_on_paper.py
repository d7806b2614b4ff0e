"""The simulation of a large cluster keeps to what can be computed."""

import importlib
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def paper():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("cluster")
        sys.modules.pop("cluster")


@settings(max_examples=30)
@given(
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(1, 300),
    st.floats(0.1, 5.0),
    st.floats(1e-4, 0.2),
    st.floats(0.0, 5.0),
    st.floats(1e8, 1e10),
)
def test_no_replay_is_faster_than_what_it_is_made_of(paper, nodes, places, attempts, seconds, asking, lost, store):
    sizes = {"nodes": nodes, "places": places, "attempts": attempts, "spread": 0.0, "store": store}
    plant = paper.Plant(**sizes, seconds=seconds, asking=asking, lost=lost)
    run = paper.simulate(plant)
    fetch = plant.incident / min(store, plant.network)
    assert run.seconds >= max(attempts * plant.turn(0), attempts * seconds / (nodes * places), fetch + seconds) * 0.999
    assert run.asking <= 1.001 and run.places <= 1.001
    assert run.fetched >= fetch * 0.999
    assert lost or run.again == 0


def test_where_places_are_few_they_are_busy_and_where_they_are_many_whoever_asks_is(paper):
    swift = {"incident": 1.0, "opening": 0.0, "starting": 1e-6, "lost": 0.0, "spread": 0.0, "growing": 0.0}
    swift |= {"attempts": 20_000, "asking": 0.0025}
    few = paper.simulate(paper.Plant(nodes=10, **swift))
    many = paper.simulate(paper.Plant(nodes=2_000, **swift))
    assert few.places > 0.99 > few.asking
    assert many.asking > 0.9 > many.places  # the last attempts are waited for
    for nodes, run in ((10, few), (2_000, many)):
        assert run.rate == pytest.approx(paper.limit(paper.Plant(nodes=nodes, **swift))[0], rel=0.02)


def test_transfers_share_the_store_and_no_node_is_faster_than_its_own_network(paper):
    plant = paper.Plant(nodes=4, incident=100.0, store=10.0, network=8.0)
    transfers = paper.Shared(plant)
    transfers.add(0.0, 1, 0)
    assert transfers.next() == pytest.approx(100 / 8)
    transfers.add(5.0, 2, 0)  # the first has 40, and both get 5 a second from here on
    assert transfers.next() == pytest.approx(5 + 60 / 5)
    assert transfers.end(17.0) == (1, 0)
    assert transfers.next() == pytest.approx(17 + 40 / 8)
