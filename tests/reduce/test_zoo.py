"""Real failure mechanisms, reduced: what is kept and guilty is what is true of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.reduce.journal import Journal
from reprokit.reduce.oracle import Limits
from reprokit.reduce.reducer import reduce
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

ZOO = Path(__file__).resolve().parents[1] / "zoo"
LONG = 1800  # seconds: fifty reductions are killed, and each is gone on with; two minutes of one core that is free
sys.path.insert(0, str(ZOO))
import adapter  # noqa: E402  # a script's folder, as a user's train.py has

pytestmark = pytest.mark.slow

BLAMED = "z01 z03 z04 z07 z08 z10 z15 z17 z26 z29 z31 z33 z37 z51 z57"
NOT_THE_BATCH = "z25 z54"


@pytest.fixture
def captured(captured):
    """captured(name): the incident of a recipe, and its truth."""
    return lambda name: (captured(name), adapter.load(name).TRUTH)


def shrink(incident, **options):
    with Worker(incident) as worker:
        found = reduce(incident, lambda case, isolation: worker.evaluate(case, isolation, timeout=120), **options)
        again = worker.evaluate(found.case, "process", timeout=120)
    return found, again


def axis_of(found, name):
    """The recipes' "B", "global.T", "ALL.T" as axes of the layout; a private one where there is one."""
    entry, _, letter = name.rpartition(".")
    private = f"{entry}.{letter.lower()}"
    return private if private in found.axes or letter in "CHW" else letter.lower()


def healers(found, truth):
    """Axis -> sets that heal the whole batch, healed along this axis alone."""
    sets = {}
    for heal in truth["heals"]:
        if len(heal) == 1:
            ((name, indices),) = heal.items()
            sets.setdefault("key" if name == "key" else axis_of(found, name), []).append(tuple(indices))
    return sets


def check_kept(found, truth):
    for name, wanted in truth["keep"].items():
        kept, floor = found.axes[axis_of(found, name)].kept, truth.get("floor", {}).get(name, 1)
        groups = [tuple(group) for group in truth.get("any_of", [])] if name == "B" else []
        if groups:
            assert kept in groups
        elif floor > 1:
            assert len(kept) == floor
        else:
            assert len(kept) == len(wanted)


def check_guilty(found, truth):
    sets = healers(found, truth)
    for axis, described in found.axes.items():
        if axis not in sets:
            assert axis == "key" or not described.guilty  # of keys not every truth speaks
        elif described.together:
            assert described.guilty in sets[axis]
        else:
            assert all((index,) in sets[axis] for index in described.guilty)
    for axis in sets.keys() - {"key"}:
        assert found.axes[axis].guilty or found.axes[axis].size == 1, axis


@pytest.mark.parametrize("name", BLAMED.split())
def test_kept_and_guilty_agree_with_the_truth(captured, name):
    incident, truth = captured(name)
    found, again = shrink(incident)
    assert again.status is Status.FAIL and found.one_minimal and found.batch_guilty is True
    check_kept(found, truth)
    check_guilty(found, truth)
    if "region" in truth:
        (region,) = found.regions
        rows, columns = (list(range(*truth["region"][side])) for side in ("y", "x"))
        assert (region["h"], region["w"], region["guilty"]) == (rows, columns, True)
    if groups := truth.get("any_of"):
        assert sorted(group["b"] for group in found.groups) == sorted(map(tuple, groups))
    with Worker(incident) as worker:  # the false minimum: healthy content fails below it
        for name, size in truth.get("floor", {}).items():
            assert len(found.axes[axis_of(found, name)].kept) >= size
            assert worker.evaluate(found.case, timeout=120).status is Status.FAIL


@pytest.mark.parametrize("name", NOT_THE_BATCH.split())
def test_no_part_of_the_batch_is_guilty_where_weights_or_code_are(captured, name):
    incident, _ = captured(name)
    found, again = shrink(incident)
    assert found.batch_guilty is False and not any(axis.guilty for axis in found.axes.values())
    assert again.status is Status.FAIL and all(len(axis.kept) == 1 for axis in found.axes.values())


def test_a_length_that_no_table_has_is_cut_to_a_local_minimum(captured):
    incident, truth = captured("z19")
    found, again = shrink(incident)
    assert again.status is Status.FAIL and found.axes["t"].kept == tuple(truth["keep"]["global.T"])
    assert found.axes["b"].kept == (0,) and not any(axis.guilty for axis in found.axes.values())


def test_the_step_that_poisoned_the_teacher_is_found_among_later_ones(captured):
    incident, truth = captured("z23")
    found, again = shrink(incident)
    assert again.status is Status.FAIL and found.axes["s"].guilty == (1,)
    assert set(found.axes["s"].kept) <= set(truth["keep"]["clips.S"])
    assert found.axes["b"].guilty == (0,) and found.axes["t"].guilty == (3,)


@pytest.mark.timeout(900)  # trials by the hundred: a minute of one core
def test_a_failure_that_random_numbers_decide_is_asked_over_several_of_their_states(captured):
    incident, _ = captured("z36")
    found, again = shrink(incident)
    assert found.depends_on_rng and found.axes["b"].kept == found.axes["b"].guilty == (1,)
    assert again.status is Status.FAIL and isinstance(found.case.rng, int)


@pytest.mark.timeout(900)
def test_a_failure_that_the_clock_decides_is_reduced_with_its_rate(captured):
    incident, _ = captured("z48")
    found, _ = shrink(incident)
    assert found.axes["b"].kept == found.axes["b"].guilty == (2,) and len(found.axes["t"].kept) == 1
    assert 0.1 < found.rate["case"]["rate"] < 0.95 and not found.depends_on_rng


def test_stopped_anywhere_it_goes_on_to_the_identical_result(captured, tmp_path):
    incident, _ = captured("z51")
    whole, _ = shrink(incident)
    path = tmp_path / "journal.jsonl"
    for calls in (5, 17, 31):
        with Journal.open(path, {"incident": incident.manifest.id}) as journal:
            part, _ = shrink(incident, journal=journal, limits=Limits(calls=calls))
        assert not part.complete
    with Journal.open(path, {"incident": incident.manifest.id}) as journal:
        again, _ = shrink(incident, journal=journal)
    assert again.to_json() | {"seconds": 0} == whole.to_json() | {"seconds": 0}


@pytest.mark.timeout(LONG)
def test_killed_at_any_instant_it_goes_on_to_the_identical_result(captured, tmp_path):
    incident, _ = captured("z51")
    script, scratch = Path(__file__).with_name("kill_and_resume.py"), tmp_path / "scratch"
    scratch.mkdir()
    ran = subprocess.run(
        [sys.executable, script, incident.path, scratch, "50"],
        capture_output=True,
        text=True,
        timeout=LONG - 50,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    whole, *others = map(json.loads, ran.stdout.splitlines())
    assert len(others) == 50 and sum(other["killed"] for other in others) > 25
    assert all(other["found"] == whole for other in others)
