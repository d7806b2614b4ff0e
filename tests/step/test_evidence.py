"""What an attempt tells of its step when it is asked for all of it: small data, and nothing that changes the step."""

import faulthandler
import gzip
import json
from base64 import b64decode
from dataclasses import replace

import pytest
import torch

from reprokit.failure import Kind, Signature, Symptom
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.evidence import Evidence, packed_trace, statistics
from reprokit.step.outcome import Outcome, Status


def evaluated(incident, **changes):
    with Session(incident) as session:
        return session.evaluate(replace(Case(incident=incident.path), evidence=True, **changes))


def test_all_of_it_is_in_the_outcome_and_the_step_is_as_without(make_incident):
    incident = make_incident()
    outcome = evaluated(incident, content="donor")
    with Session(incident) as session:
        plain = session.evaluate(Case(incident=incident.path, content="donor"))
    assert plain.evidence is None and "evidence" not in plain.to_json()
    assert outcome.status is Status.PASS and outcome.fingerprint == plain.fingerprint
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json(), allow_nan=False))) == outcome
    told = outcome.evidence
    assert [one["module"] for one in told["modules"]] == ["net.0", "net.1", "net.2", "net.3", "net"]
    assert all(one["nonfinite"] == 0 and one["min"] <= one["mean"] <= one["max"] for one in told["modules"])
    assert told["counters"]["page_faults"] >= 0 and told["counters"]["threads"] >= 1
    assert any("addmm" in one["operation"] for one in told["top"]) and told["notes"] == []
    trace = json.loads(gzip.decompress(b64decode(told["trace"])))
    assert any(one.get("name") == "aten::addmm" for one in trace["traceEvents"])


def test_the_first_module_with_bad_values_is_seen(make_incident):
    told = evaluated(make_incident()).evidence["modules"]
    assert told[0]["module"] == "net.0" and told[0]["nonfinite"] == 8 and told[0]["max"] is not None


def test_a_step_that_raises_tells_how_far_it_came(make_incident):
    failed = Signature(kind=Kind.EXCEPTION, where="forward")
    outcome = evaluated(make_incident("net[0](x); raise ValueError('no')", signature=failed))
    assert [one["module"] for one in outcome.evidence["modules"]] == ["net.0"] and outcome.evidence["counters"]


def test_where_a_step_hangs_is_asked_for_before_what_may_take_as_long_as_it_may(make_incident, monkeypatch):
    """Else it is killed at its deadline before it has said so."""
    begun = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds: begun.append(seconds))
    monkeypatch.setattr(Evidence, "_start_profiler", lambda self: begun.append("profiler"))
    waited = Symptom(kind=Kind.HANG, where="step", evidence={"hang_after": 10.0})
    evaluated(make_incident(signature=Signature(kind=Kind.HANG, where="step"), symptoms=(waited,)))
    assert begun == [0.8 * 16.0, "profiler"]


def test_a_module_that_returns_anything_and_hooks_that_stay_away(make_incident):
    incident = make_incident("net[0].register_forward_hook(lambda *_: {'a': [x, None, 3]})\nnet[0](x)")
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path, evidence=True))
        assert outcome.evidence["modules"][0]["module"] == "net.0"
        assert not any(module._forward_hooks for module in session.harness.modules["net"][1:])


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.tensor([1.0, 3.0]), {"min": 1.0, "max": 3.0, "mean": 2.0, "std": 1.0, "nonfinite": 0}),
        (torch.tensor([1.0, float("nan"), -float("inf")]), {"min": 1.0, "max": 1.0, "std": 0.0, "nonfinite": 2}),
        (torch.tensor([float("nan")]), {"min": None, "mean": None, "nonfinite": 1}),
        (torch.tensor([3.4e38, 3.4e38]), {"nonfinite": 0, "std": 0.0}),
        (torch.tensor([1.7e308, -1.7e308], dtype=torch.float64), {"nonfinite": 0, "std": None}),
        (torch.tensor([True, False]), {"min": 0.0, "max": 1.0, "mean": 0.5}),
        (torch.tensor([2**62]), {"max": 2.0**62}),
        (torch.tensor([1.0], dtype=torch.bfloat16), {"max": 1.0, "dtype": "bfloat16"}),
        (torch.empty(0), {"min": None, "nonfinite": 0}),
        (torch.tensor([1j]), {"min": None}),
        (torch.eye(2).to_sparse(), {"min": None, "hash": ""}),
        (torch.empty(2, device="meta"), {"min": None, "hash": ""}),
        (torch.ones(3, requires_grad=True), {"mean": 1.0}),
    ],
)
def test_statistics_of_any_tensor_are_strict_json(tensor, expected):
    found = statistics(tensor)
    json.dumps(found, allow_nan=False)
    for name, value in expected.items():
        assert found[name] == (pytest.approx(value) if isinstance(value, float) else value), (name, found)


@pytest.mark.parametrize("evidence", [{"x": float("nan")}, {"x": [float("inf")]}, [], "text"])
def test_evidence_that_no_journal_could_keep_is_no_outcome(evidence):
    with pytest.raises(ValueError):
        Outcome.from_json({**Outcome(status=Status.PASS).to_json(), "evidence": evidence})


def test_a_large_trace_keeps_its_longest_events():
    events = [{"ph": "X", "name": f"op{i}", "dur": i, "args": {"n": str(i) * 20}} for i in range(5000)]
    text = json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]}).encode()
    packed, note = packed_trace(text, most=20_000)
    kept = json.loads(gzip.decompress(packed))["traceEvents"]
    assert len(packed) <= 20_000 and kept[0]["ph"] == "M" and kept[1]["dur"] == 4999 and 100 < len(kept) < 5000
    assert note == f"trace: the {len(kept) - 1} longest of 5001 events are kept"
    assert packed_trace(b"{}") == (gzip.compress(b"{}", mtime=0), "")
