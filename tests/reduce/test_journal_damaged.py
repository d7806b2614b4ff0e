"""Whatever somebody does to a journal's records, going on from it is a result or one line."""

import json
from copy import deepcopy
from random import Random

import pytest

from reprokit.errors import BadInput, ReprokitError
from reprokit.failure import Kind, Signature, Symptom
from reprokit.reduce.journal import Journal
from reprokit.step.outcome import Status

NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
HEADER = {"incident": "f00d"}
ANYTHING = (None, True, -1, 10**30, float("nan"), "", "x", [], [[]], {}, {"x": {}}, [{"x": []}])


@pytest.fixture
def bench(make):
    def damage(batch):
        batch["global"][2, 3] = float("nan")

    bench = make(damage, lambda batch: NAN if batch["global"].isnan().any() else None, b=3, t=4)
    plain = bench.evaluate

    def evaluate(case, isolation):
        outcome, fields = plain(case, isolation), {"losses": {"loss": 1.5}, "host": "here", "device": "cpu"}
        if outcome.status is Status.FAIL:
            fields |= {"symptoms": (Symptom(kind=NAN.kind, where="loss", evidence={"value": "nan"}),), "bad_rows": (2,)}
        return type(outcome)(**{name: getattr(outcome, name) for name in outcome.__slots__} | fields)

    bench.evaluate = evaluate
    return bench


def places(value, at=()):
    """Every key and index of a nest."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield (*at, key)
        yield from places(inside, (*at, key))


def changed(record, place, how):
    record = deepcopy(record)
    *parents, last = place
    inside = record
    for key in parents:
        inside = inside[key]
    if how == "dropped":
        del inside[last]
    elif how == "renamed":
        inside.insert(last, "x") if isinstance(inside, list) else inside.update({"x": inside.pop(last)})
    else:
        inside[last] = how
    return record


def test_each_record_with_each_of_its_parts_dropped_or_altered(bench, tmp_path):
    path = tmp_path / "journal"
    with Journal.open(path, HEADER, about={"timeout": 9}) as journal:
        whole = bench.reduce(journal=journal).to_json() | {"seconds": 0}
    lines = path.read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    every = [(i, place, how) for i, one in enumerate(records) for place in places(one)
             for how in ("dropped", "renamed", *ANYTHING)]  # fmt: skip
    refused = []
    for i, place, how in Random(0).sample(every, 250):
        damaged = [*lines[:i], json.dumps(changed(records[i], place, how)).encode() + b"\n", *lines[i + 1 :]]
        path.write_bytes(b"".join(damaged))
        try:
            with Journal.open(path, HEADER) as journal:
                bench.reduce(journal=journal)
        except ReprokitError as error:
            refused.append((i, error))
    assert len(refused) > 100 and not any("\n" in str(error) for _, error in refused)
    lines_named = [f"{path}: line {i + 1} is damaged; delete it" in str(error) for i, error in refused
                   if i and isinstance(error, BadInput)]  # fmt: skip
    assert lines_named and all(lines_named)
    path.write_bytes(b"".join(lines))
    with Journal.open(path, HEADER) as journal:
        assert bench.reduce(journal=journal).to_json() | {"seconds": 0} == whole
