"""One case in, one outcome out; and nothing left behind."""

import torch

from reprokit.failure import Kind, Signature
from reprokit.incident import Incident
from reprokit.step.case import Case, Variant
from reprokit.step.evaluate import Session, evaluate
from reprokit.step.outcome import Status


def case(incident, **changes):
    return Case(incident=incident.path, **changes)


def test_the_incident_itself_fails_and_its_donor_passes(make_incident):
    incident = make_incident()
    assert evaluate(case(incident)).status is Status.FAIL
    assert evaluate(case(incident, content="donor")).status is Status.PASS


def test_every_evaluation_starts_from_the_captured_state(make_incident):
    incident = make_incident()
    asked = [
        case(incident),
        case(incident, content="donor"),
        case(incident, keep={"b": (2, 3)}),
        case(incident, heal=({},)),
    ]
    fresh = [evaluate(one) for one in asked]
    with Session(incident) as session:
        for _ in range(2):
            for one, alone in zip(asked, fresh):
                outcome = session.evaluate(one)
                assert (outcome.status, outcome.fingerprint) == (alone.status, alone.fingerprint)


def test_dropping_and_healing_change_what_the_step_sees(make_incident):
    incident = make_incident()
    statuses = {
        (0, 1, 3): Status.PASS,
        (2, 3): Status.FAIL,
        (2,): Status.OTHER,  # BatchNorm refuses one sample: another failure
    }
    for kept, status in statuses.items():
        assert evaluate(case(incident, keep={"b": kept})).status is status
    assert evaluate(case(incident, heal=({"b": (2,)},))).status is Status.PASS
    assert evaluate(case(incident, heal=({"b": (0, 1)}, {"b": (3,)}))).status is Status.FAIL


def test_a_step_that_writes_into_its_batch_does_not_reach_the_next(make_incident):
    incident = make_incident(body="x.nan_to_num_(7.0)", batch={"x": torch.full((4, 4), float("nan"))})
    with Session(incident) as session:
        outcomes = [session.evaluate(case(incident)) for _ in range(2)]
    assert outcomes[0].fingerprint == outcomes[1].fingerprint and outcomes[0].status is Status.PASS


def test_what_the_harness_does_not_know_needs_a_rebuild(make_incident):
    incident = make_incident(body="count[0] += 1\nif count[0] == 1: x = x.nan_to_num()")
    with Session(incident) as session:
        assert [session.evaluate(case(incident)).status for _ in range(2)] == [Status.PASS, Status.FAIL]
        assert session.evaluate(case(incident), "rebuild").status is Status.PASS


def test_a_candidate_runs_only_as_far_as_the_signature_needs(make_incident):
    incident = make_incident()
    short, whole = (evaluate(case(incident, thorough=thorough)) for thorough in (False, True))
    assert list(short.fingerprint) == ["losses"] and len(whole.fingerprint) == 3
    assert short.status is whole.status is Status.FAIL and short.losses.keys() == whole.losses.keys()


def test_another_failure_is_other_and_what_cannot_run_is_invalid(make_incident):
    incident = make_incident()
    assert evaluate(case(incident, keep={"b": (9,)})).status is Status.INVALID
    assert evaluate(case(incident, variant=Variant(config={"no.such": 1}))).status is Status.INVALID
    assert evaluate(case(incident, variant=Variant(config={"dropout": "much"}))).status is Status.INVALID
    outcome = evaluate(case(make_incident(body="raise KeyError('pixel')")))
    assert outcome.status is Status.OTHER and outcome.signature.exception == "KeyError"
    assert "raise KeyError" in outcome.detail


def test_the_same_exception_is_the_captured_failure(make_incident):
    seen = evaluate(case(make_incident(body="raise ValueError(f'{x.shape} at {id(x)}')"))).signature
    assert seen.kind is Kind.EXCEPTION
    name = seen.function.partition(".py")[0]
    incident = make_incident(body="raise ValueError(f'{x.shape} at {id(x)}')", signature=seen)
    outcome = evaluate(case(incident, keep={"b": (0, 1)}))
    assert outcome.signature.message == seen.message and name != incident.manifest.entrypoint.partition(".py")[0]


def test_a_config_variant_reaches_build(make_incident):
    incident = make_incident(donor=None)
    with Session(incident) as session:
        plain = session.evaluate(case(incident, keep={"b": (0, 1)}))
        without = session.evaluate(case(incident, keep={"b": (0, 1)}, variant=Variant(config={"dropout": 0.0})))
        again = session.evaluate(case(incident, keep={"b": (0, 1)}))
    assert plain.fingerprint == again.fingerprint != without.fingerprint


def test_another_seed_gives_another_step_and_the_same_seed_the_same(make_incident):
    incident = make_incident()
    prints = [evaluate(case(incident, content="donor", rng=seed)).fingerprint for seed in ("captured", 5, 5)]
    assert prints[0] != prints[1] == prints[2]


def test_without_a_donor_smooth_content_heals(make_incident):
    outcome = evaluate(case(make_incident(donor=None), heal=({},)))
    assert outcome.status in (Status.PASS, Status.FAIL, Status.OTHER) and "donor" not in outcome.detail


def test_flags_are_the_captured_ones(make_incident):
    incident = make_incident(body="assert torch.get_num_threads() == 1 and torch.backends.cudnn.benchmark")
    flags = Variant(flags={"threads": 1, "cudnn_benchmark": True})
    before = torch.get_num_threads()
    try:
        assert evaluate(case(incident, variant=flags)).status is Status.FAIL
    finally:
        torch.set_num_threads(before)
        torch.backends.cudnn.benchmark = False


def test_an_incident_is_not_written_to(make_incident):
    incident = make_incident(body="import pathlib; pathlib.Path(__file__).with_name('left.txt').write_text('here')")
    evaluate(case(incident))
    Incident.open(incident.path)  # refuses files that the manifest does not list


def test_a_gpu_incident_is_no_cpu_replay(make_incident, monkeypatch):
    monkeypatch.setattr(Incident, "flags", lambda self: {"device": "cuda:0"})
    outcome = evaluate(case(make_incident()))
    assert outcome.status is Status.INFRA and "captured on cuda:0" in outcome.detail


def test_signatures_compare_by_match_where_one_is_given(make_incident):
    captured = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", function="", message="old words")
    incident = make_incident(body="raise ValueError('new words')", signature=captured)
    with Session(incident, match="words") as session:
        outcome = session.evaluate(case(incident))
    assert outcome.signature.message == "new words"
