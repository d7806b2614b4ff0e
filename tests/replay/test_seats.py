"""Where attempts sit on a cluster."""

from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.seats import seats

GIB = 1 << 30


def node(name, cpus=4, memory=64, gpus=0, alive=True):
    resources = {"CPU": float(cpus), "GPU": float(gpus), "memory": float(memory * GIB)}
    return {"NodeID": name, "Alive": alive, "Resources": {k: v for k, v in resources.items() if v}}


NODES = st.lists(
    st.tuples(st.integers(0, 8), st.integers(1, 64), st.integers(0, 3), st.booleans()), max_size=6
).map(lambda found: [node(f"n{i}", *one) for i, one in enumerate(found)])


@given(NODES, st.booleans(), st.none() | st.integers(1, 40))
def test_no_node_gets_more_than_it_has(nodes, gpu, jobs):
    found = seats(nodes, need=3 * GIB, gpu=gpu, jobs=jobs)
    assert len({seat.place for seat in found}) == len(found)
    for one in nodes:
        here = [seat for seat in found if seat.node == one["NodeID"]]
        has = one["Resources"]
        assert sum(seat.cpus for seat in here) <= has.get("CPU", 0)
        assert sum(seat.gpus for seat in here) <= has.get("GPU", 0)
        assert not here or one["Alive"]
        assert sum(seat.jobs for seat in here) * 3 * GIB <= max(has["memory"], 3 * GIB) or gpu
    assert all(seat.jobs >= 1 and seat.cpus >= 1 for seat in found)


@given(NODES, st.booleans(), st.integers(1, 40))
def test_fewer_jobs_are_spread_evenly(nodes, gpu, jobs):
    everything = seats(nodes, need=3 * GIB, gpu=gpu)
    found = seats(nodes, need=3 * GIB, gpu=gpu, jobs=jobs)
    assert sum(seat.jobs for seat in found) == min(jobs, sum(seat.jobs for seat in everything))
    room = {seat.place: seat.jobs for seat in everything}
    most = max((seat.jobs for seat in found), default=0)
    assert all(seat.jobs >= min(most - 1, room[seat.place]) for seat in found)


def test_a_gpu_is_one_attempt():
    nodes = [node("a", cpus=8, gpus=2), node("b"), node("head", cpus=0, gpus=1)]
    found = seats(nodes, need=3 * GIB, gpu=True)
    assert [(seat.node, seat.number, seat.jobs, seat.cpus, seat.gpus) for seat in found] == [
        ("a", 0, 1, 4, 1),
        ("a", 1, 1, 4, 1),
    ]


def test_a_node_with_little_memory_takes_one_attempt():
    [seat] = seats([node("a", cpus=16, memory=2)], need=3 * GIB, gpu=False)
    assert (seat.jobs, seat.cpus) == (1, 1)
