import json
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.replay.attempts import Attempt, Replay, run, sentence
from reprokit.replay.engines.base import Engine
from reprokit.replay.verdict import PRESETS, Verdict
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

CASE = Case(incident=Path("incident"))
CAPTURED = Signature(kind=Kind.NONFINITE_LOSS, where="pred_loss")
ANOTHER = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", function="train.py:step")

FAIL = Outcome(status=Status.FAIL, signature=CAPTURED, losses={"loss": float("nan")}, fingerprint={"losses": "aa"})
PASS = Outcome(status=Status.PASS, losses={"loss": 1.0}, fingerprint={"losses": "bb", "gradients/encoder": "cc"})
OTHER = Outcome(status=Status.OTHER, signature=ANOTHER)
INFRA = Outcome(status=Status.INFRA, detail="Traceback ...\n  File x\nDockerError: no space left on device\n")
INVALID = Outcome(status=Status.INVALID, detail="build refused")
NEVER = object()


class Scripted(Engine):
    """Plays a list, over and over: outcomes, exceptions of futures, and futures that never end."""

    name = "scripted"

    def __init__(self, *script, capacity=1):
        self.script, self.capacity = script, capacity
        self.futures, self.cases = [], []

    def submit(self, case):
        future = Future()
        played = self.script[len(self.futures) % len(self.script)]
        if isinstance(played, BaseException):
            future.set_exception(played)
        elif played is not NEVER:
            future.set_result(played)
        self.futures.append(future)
        self.cases.append(case)
        return future


class Waves(Scripted):
    """Ends nothing until a whole wave runs, or all that are left; then the youngest first."""

    def __init__(self, *script, capacity, wave, total):
        super().__init__(*script, capacity=capacity)
        self.wave, self.total, self.waiting, self.most = wave, total, [], 0

    def submit(self, case):
        future = Future()
        self.futures.append(future)
        self.waiting.append((future, self.script[(len(self.futures) - 1) % len(self.script)]))
        self.most = max(self.most, len(self.waiting))
        if len(self.waiting) == self.wave or len(self.futures) == self.total:
            while self.waiting:
                ended, played = self.waiting.pop()
                ended.set_result(played)
        return future


def replay_of(*outcomes, asked, min_rate=0.0, stopped="asked"):
    attempts = tuple(Attempt(index=index, outcome=outcome) for index, outcome in enumerate(outcomes))
    return Replay(engine="docker", asked=asked, min_rate=min_rate, stopped=stopped, attempts=attempts)


def test_equal_failures_are_reproducible_and_cost_exactly_what_was_asked():
    engine = Scripted(FAIL)
    replay = run(CASE, engine, 5)
    assert replay.verdict is Verdict.REPRODUCIBLE and replay.stopped == "asked"
    assert (replay.n, replay.fail, replay.passed, replay.other, replay.infra) == (5, 5, 0, 0, 0)
    assert engine.cases == [CASE] * 5


@pytest.mark.parametrize("other", [PASS, OTHER])
def test_a_fail_beside_anything_else_stops_at_once(other):
    engine = Scripted(FAIL, FAIL, other, FAIL)
    replay = run(CASE, engine, 14)
    assert replay.verdict is Verdict.FLAKY and replay.stopped == "flaky"
    assert len(engine.futures) == replay.n == 3 and replay.fail == 2


def test_an_estimate_goes_on_where_it_is_flaky():
    replay = run(CASE, Scripted(FAIL, PASS), 14, estimate=True)
    assert replay.verdict is Verdict.FLAKY and replay.stopped == "asked" and (replay.n, replay.fail) == (14, 7)


def test_no_failure_is_not_reproduced_also_where_something_else_failed():
    assert run(CASE, Scripted(PASS), 5).verdict is Verdict.NOT_REPRODUCED
    replay = run(CASE, Scripted(OTHER, PASS), 5)
    assert replay.verdict is Verdict.NOT_REPRODUCED and (replay.other, replay.passed) == (3, 2)


def test_a_least_rate_that_is_not_reached_is_inconclusive():
    assert run(CASE, Scripted(FAIL), PRESETS["default"], min_rate=0.8).verdict is Verdict.REPRODUCIBLE
    assert run(CASE, Scripted(FAIL), PRESETS["default"], min_rate=0.95).verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("spoiled", [INFRA, INVALID, RuntimeError("engine broke"), Infrastructure("no disk")])
def test_what_the_machinery_spoils_is_not_counted_but_made_up_for(spoiled):
    replay = run(CASE, Scripted(FAIL, spoiled), 5)
    assert replay.verdict is Verdict.REPRODUCIBLE and (replay.n, replay.fail, replay.infra) == (5, 5, 4)


@pytest.mark.parametrize(("n", "cap"), [(1, 3), (3, 3), (14, 14)])
@pytest.mark.parametrize("capacity", [1, 4])
def test_an_engine_that_keeps_breaking_is_tried_as_often_as_the_cap_and_never_more(n, cap, capacity):
    engine = Scripted(INFRA, capacity=capacity)
    with pytest.raises(Infrastructure) as raised:
        run(CASE, engine, n)
    assert len(engine.futures) == cap
    said = f"engine scripted: none of {cap} attempts could run; the first: DockerError: no space left on device"
    assert str(raised.value) == said


@pytest.mark.parametrize("n", [1, 14])
def test_a_case_that_cannot_be_built_is_the_users_to_mend_and_soon_given_up(n):
    engine = Scripted(INVALID)
    with pytest.raises(BadInput, match="cannot be rebuilt here: build refused"):
        run(CASE, engine, n)
    assert len(engine.futures) == 3


def test_an_engine_that_breaks_too_often_leaves_what_it_did_support():
    replay = run(CASE, Scripted(FAIL, INFRA, INFRA, INFRA), 5)
    assert replay.verdict is Verdict.INCONCLUSIVE and replay.stopped == "infrastructure"
    assert (replay.n, replay.infra) == (2, 5)


@pytest.mark.parametrize(
    ("error", "says"),
    [(RuntimeError("engine\nbroke"), "broke"), (Infrastructure("no disk"), "no disk"), (OSError(), "OSError:")],
)
def test_exceptions_of_futures_are_infrastructure_in_one_line(error, says):
    with pytest.raises(Infrastructure, match=f"the first: {says}$"):
        run(CASE, Scripted(error), 1)


def test_what_breaks_in_submit_counts_like_what_breaks_later():
    class Refusing(Scripted):
        def submit(self, case):
            raise OSError("no more processes")

    with pytest.raises(Infrastructure, match="none of 3 attempts could run; the first: OSError: no more processes"):
        run(CASE, Refusing(), 1)


@pytest.mark.parametrize("error", [BadInput("incident: it does not match its hash"), KeyboardInterrupt()])
def test_what_the_user_can_mend_or_did_ends_it_and_cancels_the_rest(error):
    engine = Scripted(error, NEVER, NEVER, capacity=3)
    with pytest.raises(type(error)):
        run(CASE, engine, 5)
    assert [future.cancelled() for future in engine.futures] == [False, True, True]


def test_attempts_that_wait_are_cancelled_once_it_is_settled():
    engine = Scripted(FAIL, PASS, NEVER, capacity=3)
    assert run(CASE, engine, 14).verdict is Verdict.FLAKY
    assert [future.cancelled() for future in engine.futures] == [False, False, True]


@pytest.mark.parametrize(("jobs", "most"), [(None, 3), (2, 2), (8, 3)])
def test_no_more_run_at_once_than_the_engine_takes_and_jobs_allow(jobs, most):
    engine = Waves(FAIL, capacity=3, wave=most, total=7)
    assert run(CASE, engine, 7, jobs=jobs).n == 7
    assert engine.most == most and len(engine.futures) == 7


def test_attempts_are_numbered_as_they_end_and_told_of_as_they_do():
    told = []
    engine = Waves(FAIL, capacity=3, wave=3, total=5)
    replay = run(CASE, engine, 5, on_attempt=lambda index, outcome: told.append((index, outcome)))
    assert told == [(attempt.index, attempt.outcome) for attempt in replay.attempts]
    assert [index for index, _ in told] == list(range(5))


def test_fewer_than_one_attempt_is_refused():
    with pytest.raises(BadInput, match="-n 0"):
        run(CASE, Scripted(FAIL), 0)


OUTCOMES = st.lists(st.sampled_from([FAIL, PASS, OTHER, INFRA, INVALID]), min_size=1, max_size=12)


@given(OUTCOMES, st.integers(1, 10), st.integers(1, 4), st.booleans())
def test_whatever_an_engine_does_the_counts_add_up_and_nobody_makes_too_many_attempts(script, n, capacity, estimate):
    engine = Scripted(*script, capacity=capacity)
    try:
        replay = run(CASE, engine, n, estimate=estimate)
    except (Infrastructure, BadInput):
        assert all(outcome.status in (Status.INFRA, Status.INVALID) for outcome in (script * 20)[: len(engine.futures)])
        return
    assert len(replay.attempts) == replay.n + replay.infra == len(engine.futures)
    assert replay.n == replay.fail + replay.passed + replay.other <= n and replay.infra <= max(3, n)
    assert replay.stopped == "asked" or replay.n < n
    assert replay.stopped != "flaky" or (replay.verdict is Verdict.FLAKY and not estimate)
    assert sentence(replay).count("\n") == 0
    json.dumps(replay.to_json(), allow_nan=False)


def test_the_json_is_the_designs():
    replay = run(CASE, Scripted(FAIL, FAIL, INFRA), 4)
    found = json.loads(json.dumps(replay.to_json(), allow_nan=False))
    assert list(found) == [
        "verdict", "n", "fail", "pass", "other", "infra", "rate_at_least", "interval", "confidence", "stopped",
        "engine", "strata", "fingerprints", "attempts",
    ]  # fmt: skip
    assert found["verdict"] == "REPRODUCIBLE" and found["engine"] == "scripted" and found["confidence"] == 0.95
    assert found["rate_at_least"] == pytest.approx(0.05 ** (1 / 4)) and found["interval"][1] == 1.0
    assert found["fingerprints"] == {"distinct": 1, "stable": 4}
    assert [attempt["index"] for attempt in found["attempts"]] == list(range(len(replay.attempts)))
    assert found["attempts"][0] == {"index": 0} | FAIL.to_json()
    assert [attempt["status"] for attempt in found["attempts"]] == ["FAIL", "FAIL", "INFRA", "FAIL", "FAIL"]


def test_the_lower_bound_of_what_is_flaky_is_that_of_its_interval():
    flaky = replay_of(FAIL, PASS, asked=14).to_json()
    assert flaky["rate_at_least"] == flaky["interval"][0] > 0
    assert replay_of(PASS, asked=1).to_json()["rate_at_least"] == 0.0


def test_fingerprints_count_the_commonest_and_leave_out_what_has_none():
    crash = Outcome(status=Status.FAIL, signature=CAPTURED)
    other_bits = Outcome(status=Status.FAIL, signature=CAPTURED, fingerprint={"losses": "ff"})
    assert replay_of(crash, asked=1).to_json()["fingerprints"] == {"distinct": 0, "stable": 0}
    found = replay_of(FAIL, FAIL, other_bits, crash, INFRA, asked=4).to_json()
    assert found["fingerprints"] == {"distinct": 2, "stable": 2}


@pytest.mark.parametrize(
    ("replay", "says"),
    [
        (
            replay_of(*[FAIL] * 14, asked=14),
            "14/14 failed, bitwise-stable 14/14: fails in at least 81% of attempts (95% confidence)",
        ),
        (
            replay_of(*[Outcome(status=Status.FAIL, signature=CAPTURED)] * 5, asked=5),
            "5/5 failed: fails in at least 55% of attempts (95% confidence)",
        ),
        (
            replay_of(FAIL, Outcome(status=Status.FAIL, fingerprint={"losses": "zz"}), asked=2),
            "2/2 failed, 2 fingerprints that differ first in losses: "
            "fails in at least 22% of attempts (95% confidence)",
        ),
        (
            replay_of(FAIL, FAIL, PASS, asked=14, stopped="flaky"),
            "2/3 failed as captured, 1 passed: fails in 6% to 100% of attempts (95% confidence); "
            "fingerprints differ first in losses",
        ),
        (
            replay_of(FAIL, Outcome(status=Status.PASS, fingerprint={"losses": "aa"}), asked=14, stopped="flaky"),
            "1/2 failed as captured, 1 passed: fails in 1% to 99% of attempts (95% confidence); "
            "same fingerprint, another outcome: state outside the tensors decides",
        ),
        (
            replay_of(FAIL, OTHER, asked=14, stopped="flaky"),
            "1/2 failed as captured, 1 in another way (ValueError at forward in train.py:step): "
            "fails in 1% to 99% of attempts (95% confidence)",
        ),
        (
            replay_of(*[PASS] * 14, asked=14),
            "0/14 failed as captured, 14 passed, bitwise-stable 14/14: "
            "fails in fewer than 19% of attempts (95% confidence)",
        ),
        (
            replay_of(*[OTHER] * 5, asked=5),
            "0/5 failed as captured, 5 in another way (ValueError at forward in train.py:step): "
            "fails in fewer than 45% of attempts (95% confidence)",
        ),
        (
            replay_of(*[FAIL] * 14, asked=14, min_rate=0.95),
            "14/14 failed, bitwise-stable 14/14: fails in at least 81% of attempts (95% confidence), "
            "not the 95% asked for; that takes 59 attempts",
        ),
        (
            replay_of(FAIL, asked=1, min_rate=1.0),
            "1/1 failed: fails in at least 5% of attempts (95% confidence), not the 100% asked for",
        ),
        (
            replay_of(FAIL, FAIL, FAIL, *[INFRA] * 14, asked=14, stopped="infrastructure"),
            "3 of 14 attempts usable, 3/3 failed, bitwise-stable 3/3: fails in at least 37% of attempts "
            "(95% confidence); 14 broke, the first: DockerError: no space left on device",
        ),
        (
            replay_of(PASS, *[INVALID] * 14, asked=14, stopped="infrastructure"),
            "1 of 14 attempts usable, 0/1 failed as captured, 1 passed: fails in fewer than 95% of attempts "
            "(95% confidence); 14 broke, the first: build refused",
        ),
    ],
)
def test_the_sentence_says_the_counts_and_what_they_support(replay, says):
    assert sentence(replay) == says
