import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.replay.attempts import Halted, Rules, run
from reprokit.replay.draws import Draws
from reprokit.replay.engines.base import Engine
from reprokit.replay.result import Replay
from reprokit.replay.sentence import sentence
from reprokit.replay.strata import Attempt
from reprokit.replay.verdict import PRESETS, Verdict, interval
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
    replay = run(CASE, Scripted(FAIL, PASS), Rules(n=14, estimate=True))
    assert replay.verdict is Verdict.FLAKY and replay.stopped == "asked" and (replay.n, replay.fail) == (14, 7)


def test_no_failure_is_not_reproduced_also_where_something_else_failed():
    assert run(CASE, Scripted(PASS), 5).verdict is Verdict.NOT_REPRODUCED
    replay = run(CASE, Scripted(OTHER, PASS), 5)
    assert replay.verdict is Verdict.NOT_REPRODUCED and (replay.other, replay.passed) == (3, 2)


def test_a_least_rate_that_is_not_reached_is_inconclusive():
    assert run(CASE, Scripted(FAIL), Rules(n=PRESETS["default"], min_rate=0.8)).verdict is Verdict.REPRODUCIBLE
    assert run(CASE, Scripted(FAIL), Rules(n=PRESETS["default"], min_rate=0.95)).verdict is Verdict.INCONCLUSIVE


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


@pytest.mark.parametrize("before", [0, 3])
def test_who_interrupts_gets_what_is_known_by_then(before):
    with pytest.raises(Halted) as halted:
        run(CASE, Scripted(*[FAIL] * before, KeyboardInterrupt()), 5)
    known = halted.value.replay
    assert (known.n, known.stopped, known.verdict) == (before, "interrupted", Verdict.INCONCLUSIVE)
    counts = ", 3/3 failed, bitwise-stable 3/3: fails in at least 37% of attempts (95% confidence)" if before else ""
    assert sentence(known) == f"interrupted after {before} of 5 attempts{counts}"


def test_each_attempt_says_how_many_ran_when_it_began():
    engine = Waves(FAIL, capacity=3, wave=3, total=5)
    found = [attempt.outcome.concurrency for attempt in run(CASE, engine, 5).attempts]
    assert sorted(found) == [1, 1, 2, 2, 3]


def test_a_predicate_says_what_an_outcome_is():
    flip = {Status.FAIL: Status.PASS, Status.PASS: Status.FAIL}
    judged = lambda outcome: replace(outcome, status=flip[outcome.status])
    assert run(CASE, Scripted(PASS), 5, judged=judged).verdict is Verdict.REPRODUCIBLE


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
    replay = run(CASE, engine, 5, keep=lambda attempt: told.append(attempt), watch=lambda so_far: told.append(so_far.n))
    assert told[::2] == list(replay.attempts) and told[1::2] == [1, 2, 3, 4, 5]
    assert [attempt.index for attempt in replay.attempts] == list(range(5))


def test_thousands_of_attempts_do_not_cost_the_square_of_their_number():
    seen = []
    replay = run(CASE, Scripted(FAIL, PASS), Rules(n=5000, estimate=True), watch=lambda so_far: seen.append(so_far.n))
    assert replay.n == 5000 and sum(seen) < 5000 * 200
    assert seen[:100] == list(range(1, 101)) and seen[-1] == 5000


def test_fewer_than_one_attempt_is_refused():
    with pytest.raises(BadInput, match="-n 0"):
        run(CASE, Scripted(FAIL), 0)


OUTCOMES = st.lists(st.sampled_from([FAIL, PASS, OTHER, INFRA, INVALID]), min_size=1, max_size=12)


@given(OUTCOMES, st.integers(1, 10), st.integers(1, 4), st.booleans())
def test_whatever_an_engine_does_the_counts_add_up_and_nobody_makes_too_many_attempts(script, n, capacity, estimate):
    engine = Scripted(*script, capacity=capacity)
    try:
        replay = run(CASE, engine, Rules(n=n, estimate=estimate))
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
        "engine", "strata", "fingerprints", "attempts", "asked", "min_rate", "depends_on", "versions",
        "gone_after_upgrade", "folder",
    ]  # fmt: skip
    assert found["verdict"] == "REPRODUCIBLE" and found["engine"] == "scripted" and found["confidence"] == 0.95
    assert found["rate_at_least"] == pytest.approx(0.05 ** (1 / 4)) and found["interval"][1] == 1.0
    assert found["fingerprints"] == {"distinct": 1, "stable": 4}
    assert [attempt["index"] for attempt in found["attempts"]] == list(range(len(replay.attempts)))
    assert found["attempts"][0] == {"index": 0, "inputs": {}, "repeat": False} | FAIL.to_json() | {"concurrency": 1}
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
            "(95% confidence); 14 without an answer, the first: DockerError: no space left on device",
        ),
        (
            replay_of(PASS, *[INVALID] * 14, asked=14, stopped="infrastructure"),
            "1 of 14 attempts usable, 0/1 failed as captured, 1 passed: fails in fewer than 95% of attempts "
            "(95% confidence); 14 without an answer, the first: build refused",
        ),
    ],
)
def test_the_sentence_says_the_counts_and_what_they_support(replay, says):
    assert sentence(replay) == says


def of_seed(share):
    """Fails where the seed is below that share of all seeds: what decides is drawn."""
    return lambda inputs: FAIL if inputs["rng"] < share * 2**32 else PASS


class Answering(Scripted):
    """Each case is answered by what was drawn for it."""

    def __init__(self, answer, capacity=1):
        super().__init__(capacity=capacity)
        self.answer = answer

    def submit(self, case):
        self.cases.append(case)
        drawn = {"rng": case.rng, **case.variant.flags}
        future = Future()
        future.set_result(self.answer(drawn))
        return future


@pytest.mark.parametrize("capacity", [1, 2, 4])
@pytest.mark.parametrize("base", range(8))
def test_where_the_seed_decides_that_is_said_after_few_repeats(base, capacity):
    replay = run(CASE, Answering(of_seed(0.5), capacity), Rules(n=30, draws=Draws(names=("rng",), base=base)))
    assert (replay.verdict, replay.stopped, replay.depends_on) == (Verdict.FLAKY, "depends", ("rng",))
    assert sum(attempt.repeat for attempt in replay.attempts) in range(5, 5 + capacity)
    assert "depends on RNG (all" in sentence(replay) and not any(one.mixed for one in replay.strata)
    assert len({case.rng for case in Answering(of_seed(0.5)).cases}) <= replay.n


@pytest.mark.parametrize("base", range(8))
def test_where_it_does_not_identical_inputs_disagree_and_that_is_said(base):
    random = Random(base)
    engine = Answering(lambda drawn: random.choice([FAIL, PASS]))
    replay = run(CASE, engine, Rules(n=59, draws=Draws(names=("rng",), base=base)))
    assert (replay.verdict, replay.depends_on) == (Verdict.FLAKY, ())
    if replay.stopped == "flaky":
        assert "the same RNG gave both answers, so something else decides" in sentence(replay)


def test_inputs_that_decide_nothing_are_blamed_once_in_twenty_at_most():
    """However seldom it fails, and with the repeats chosen by what was seen."""
    for rate in (0.1, 0.5, 0.8):
        random, blamed = Random(f"blame {rate}"), 0
        answer = lambda drawn, random=random, rate=rate: FAIL if random.random() < rate else PASS
        for base in range(400):
            rules = Rules(n=40, draws=Draws(names=("rng",), base=base))
            blamed += run(CASE, Answering(answer), rules).stopped == "depends"
        assert blamed / 400 <= 0.05


def test_a_rate_over_drawn_inputs_leaves_out_what_was_made_again():
    rules = Rules(n=40, estimate=True, draws=Draws(names=("rng",), base=1))
    replay = run(CASE, Answering(of_seed(0.5)), rules)
    draws = [attempt for attempt in replay.attempts if not attempt.repeat]
    assert replay.n == 40 and 5 <= 40 - len(draws) <= 6 and replay.depends_on == ("rng",)
    assert replay.interval == interval(sum(attempt.failed for attempt in draws), len(draws))


def test_of_several_factors_the_one_that_suffices_is_named_where_the_others_differ_beside_it():
    answer = lambda drawn: FAIL if drawn["threads"] == 1 else PASS
    rules = Rules(n=59, estimate=True, draws=Draws(names=("rng", "threads"), base=3, cores=4))
    assert run(CASE, Answering(answer), rules).depends_on == ("threads",)
    seed = run(CASE, Answering(of_seed(0.5)), rules)  # each comes with one thread count: perhaps both must be right
    assert seed.depends_on == ("rng", "threads") and "depends on RNG or thread count" in sentence(seed)


def test_of_two_seeds_that_never_differ_apart_neither_is_cleared():
    rules = Rules(n=30, draws=Draws(names=("rng", "hashseed"), base=3))
    replay = run(CASE, Answering(of_seed(0.5)), rules)
    assert replay.depends_on == ("rng", "hashseed") and "depends on RNG or hash seed" in sentence(replay)


def test_where_all_draws_fail_it_is_reproducible_and_none_is_made_again():
    replay = run(CASE, Scripted(FAIL), Rules(n=14, draws=Draws(names=("rng",), base=1)))
    assert replay.verdict is Verdict.REPRODUCIBLE and len(replay.strata) == 14
    assert [one["inputs"] for one in replay.to_json()["strata"]] == [dict(one.inputs) for one in replay.attempts]


def test_too_few_repeats_blame_nobody():
    replay = run(CASE, Answering(of_seed(0.5)), Rules(n=4, draws=Draws(names=("rng",), base=1)))
    assert replay.verdict is Verdict.FLAKY and replay.depends_on == ()
    assert "may depend on RNG, or on chance" in sentence(replay)


HERE = {"torch": "2.9.0", "python": "3.11.2"}
FAIL_HERE, PASS_HERE = (replace(outcome, host="a", device="cpu", versions=HERE) for outcome in (FAIL, PASS))
PASS_THERE = replace(PASS, host="b", device="cpu", versions=HERE | {"torch": "2.13.0"})


def test_unlike_hosts_are_strata_and_a_process_that_was_killed_belongs_to_its_host():
    killed = replace(FAIL, host="a", fingerprint={})
    found = replay_of(*[FAIL_HERE, killed, PASS_THERE] * 4, asked=12)
    assert [(one.n, one.fail) for one in found.strata] == [(8, 8), (4, 0)]
    assert found.depends_on == ("host",) and "depends on host" in sentence(found)
    assert replay_of(*[FAIL_HERE, killed, replace(PASS_HERE, host="c")] * 4, asked=12).strata == []


def test_on_unlike_hosts_a_fail_beside_a_pass_is_not_settled_at_once():
    replay = run(CASE, Scripted(FAIL_HERE, PASS_THERE), 30)
    assert replay.stopped == "depends" and replay.n == 7
    assert run(CASE, Scripted(FAIL_HERE, replace(PASS_HERE, host="c")), 30).n == 2


def test_gone_after_an_upgrade_is_told_from_not_reproduced():
    asked = {"asked": 4}
    newer = replace(replay_of(*[PASS_THERE] * 4, **asked), captured=HERE)
    assert newer.verdict is Verdict.NOT_REPRODUCED and newer.gone_after_upgrade is None
    assert "gone after an upgrade to torch 2.13.0 (captured: 2.9.0), or seldom" in sentence(newer)
    same = replace(replay_of(*[PASS_HERE] * 4, **asked), captured=HERE)
    assert same.gone_after_upgrade is False and "upgrade" not in sentence(same)
    older = replace(replay_of(*[PASS_THERE] * 4, **asked), captured=HERE | {"torch": "2.14.0"})
    assert older.gone_after_upgrade is False and "upgrade" not in sentence(older)
    both = replace(replay_of(*[FAIL_HERE, PASS_THERE] * 6, asked=12), captured=HERE)
    assert both.gone_after_upgrade is True and "gone after an upgrade" in sentence(both)


@given(OUTCOMES, st.integers(1, 10), st.integers(0, 9), st.booleans(), st.booleans())
def test_one_that_goes_on_ends_like_one_that_was_never_interrupted(script, n, cut, estimate, fresh):
    """One at a time; the answer depends on the case and on how often it was asked, as an experiment's does."""
    rules = Rules(n=n, estimate=estimate, draws=Draws(names=("rng",) if fresh else (), base=5))
    try:
        whole = run(CASE, Scripted(*script), rules)
    except (Infrastructure, BadInput):
        return
    kept = whole.attempts[: min(cut, len(whole.attempts))]
    rest = [script[index % len(script)] for index in range(len(kept), len(whole.attempts))]
    if not rest and whole.stopped != "infrastructure":
        rest = [BadInput("asked, though it is settled")]
    again = run(CASE, Scripted(*rest, *script), rules, kept=kept)
    assert again.attempts[: len(whole.attempts)] == whole.attempts
    assert again == whole or whole.stopped == "infrastructure"  # which may have been mended since


def test_draws_that_were_interrupted_are_made_before_new_ones():
    kept = [Attempt(index=0, outcome=FAIL, number=2), Attempt(index=1, outcome=FAIL, number=0)]
    replay = run(CASE, Scripted(FAIL), Rules(n=5, draws=Draws(names=("rng",), base=1)), kept=kept)
    assert [attempt.number for attempt in replay.attempts] == [2, 0, 1, 3, 4]
