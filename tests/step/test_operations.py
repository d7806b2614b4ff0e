"""Hashes of operations: the same on the same values, and the first other value shows where attempts part."""

import json
from dataclasses import replace

from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.operations import MOST
from reprokit.step.outcome import Outcome, Status
from reprokit.step.worker import Worker


def seen(incident, *cases):
    with Session(incident) as session:
        return [session.evaluate(replace(case, operations=True)) for case in cases]


def test_two_attempts_at_one_case_are_equal_and_name_their_places(make_incident):
    incident = make_incident("x = x * 2", donor="healthy")
    case = Case(incident=incident.path, content="donor")
    first, second = seen(incident, case, case)
    assert first.operations == second.operations and 10 < len(first.operations) < MOST
    names = [name for name, _ in first.operations]
    assert names[0].startswith("aten.mul.Tensor, train") and names[0].endswith("in step")
    assert any("of net.0" in name for name in names) and any("(backward)" in name for name in names)
    assert any("(optimizer)" in name for name in names)
    assert Outcome.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_another_seed_parts_where_it_is_drawn(make_incident):
    incident = make_incident("x = x + 0 * x.sum() + torch.rand(1)")
    one, other = seen(incident, *(Case(incident=incident.path, content="donor", rng=seed) for seed in (1, 2)))
    first = next(i for i, (a, b) in enumerate(zip(one.operations, other.operations)) if a != b)
    assert one.operations[first][0].startswith("aten.rand.default")
    assert one.operations[first][0] == other.operations[first][0]


def test_nobody_pays_who_does_not_ask(make_incident):
    incident = make_incident()
    with Worker(incident) as worker:  # in this process another test may have compiled something
        outcome = worker.evaluate(Case(incident=incident.path), "process", timeout=120)
    assert outcome.operations == () and outcome.compiled is False and outcome.status is Status.FAIL
