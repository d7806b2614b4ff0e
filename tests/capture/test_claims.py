"""Who failed first does not depend on who asks, nor in which order ranks answered."""

from hypothesis import given
from hypothesis import strategies as st

from reprokit.capture.claims import claim_of, evidence_of, order
from reprokit.capture.seen import Seen
from reprokit.failure import Kind, Signature, Symptom

GLOO = RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1234")


def claim(rank, kind, error=None, at=""):
    symptoms = (Symptom(kind=kind, where="somewhere", evidence={"at": at}),) if kind else ()
    signature = Signature(kind=kind, where="somewhere") if kind else None
    return claim_of(rank, 7, Seen(signature=signature, symptoms=symptoms), error)


kinds = st.sampled_from([*Kind, None])


@given(st.lists(kinds, min_size=1, max_size=8), st.randoms())
def test_the_first_is_the_same_in_every_order(found, random):
    claims = [claim(rank, kind) for rank, kind in enumerate(found)]
    first = min(claims, key=order)
    random.shuffle(claims)
    assert min(claims, key=order) == first
    assert all(first["kind"] is not None for one in claims if one["kind"] is not None)


def test_a_loss_of_ones_own_comes_before_a_gradient_that_was_exchanged():
    claims = [claim(0, Kind.NONFINITE_GRAD), claim(1, Kind.NONFINITE_LOSS), claim(2, Kind.NONFINITE_GRAD)]
    assert min(claims, key=order)["rank"] == 1


def test_a_collective_that_broke_is_the_effect_of_something_else():
    claims = [claim(0, Kind.EXCEPTION, GLOO), claim(1, Kind.NONFINITE_LOSS), claim(2, Kind.EXCEPTION, ValueError("x"))]
    assert [one["rank"] for one in sorted(claims, key=order)] == [2, 1, 0]


def test_of_ranks_that_hang_the_one_outside_of_a_collective_is_the_first():
    waits = claim(0, Kind.HANG, at="distributed_c10d.py:2911 in all_reduce")
    assert min([waits, claim(1, Kind.HANG, at="train.py:12 in step")], key=order)["rank"] == 1


def test_nobody_stops_for_a_hang_or_for_a_capture_by_hand():
    assert not claim(0, Kind.HANG)["stops"] and not claim(0, None)["stops"]
    assert claim(0, Kind.NONFINITE_LOSS)["quiet"] and not claim(0, Kind.EXCEPTION, ValueError())["quiet"]


def test_the_evidence_speaks_of_every_rank():
    origin = {"rank": 1, "absent": {"2": "it did not answer"}, "claims": {"0": "a at b", "1": "c at d"}}
    expected = {"0": "a at b, later", "1": "c at d", "2": "it did not answer", "3": "had not failed"}
    assert evidence_of(origin, 4) == {"origin": 1, "ranks": expected}
