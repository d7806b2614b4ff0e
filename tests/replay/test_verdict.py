from itertools import accumulate
from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.verdict import (
    ALPHA,
    PRESETS,
    Tally,
    Verdict,
    agree_by_chance,
    attempts_for,
    interval,
    judge,
    log_martingale,
    rate_at_least,
    rate_below,
)

RUNS, LOOKS = 2000, 100


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 300))
def test_a_fail_next_to_anything_else_is_flaky_however_few_they_are(fail, other, asked):
    assert judge(Tally(fail=fail, other=other, asked=asked)) is Verdict.FLAKY


@given(st.integers(1, 300), st.integers(0, 300))
def test_equal_answers_decide_only_once_all_that_were_asked_for_are_in(asked, n):
    enough = n >= asked
    failed, passed = Tally(fail=n, other=0, asked=asked), Tally(fail=0, other=n, asked=asked)
    assert judge(failed) is (Verdict.REPRODUCIBLE if enough else Verdict.INCONCLUSIVE)
    assert judge(passed) is (Verdict.NOT_REPRODUCED if enough else Verdict.INCONCLUSIVE)


def test_nothing_asked_proves_nothing():
    assert judge(Tally(fail=0, other=0, asked=0)) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("preset", "rate"), [("quick", 0.54), ("default", 0.8), ("strict", 0.95)])
def test_presets_support_their_rates_and_one_attempt_less_does_not(preset, rate):
    n = PRESETS[preset]
    assert judge(Tally(fail=n, other=0, asked=n, min_rate=rate)) is Verdict.REPRODUCIBLE
    assert attempts_for(rate) == n
    assert judge(Tally(fail=n - 1, other=0, asked=n - 1, min_rate=rate)) is Verdict.INCONCLUSIVE


@given(st.floats(0.01, 0.999))
def test_attempts_for_is_the_least_number_that_supports_a_rate(rate):
    n = attempts_for(rate)
    assert rate_at_least(n) >= rate and (n == 1 or rate_at_least(n - 1) < rate)


@given(st.floats(0, 1), st.integers(1, 100), st.floats(0, 0.999))
def test_a_rate_under_the_least_rate_is_called_reproducible_once_in_twenty_at_most(p, n, min_rate):
    reproducible = judge(Tally(fail=n, other=0, asked=n, min_rate=min_rate)) is Verdict.REPRODUCIBLE
    assert not (reproducible and p < min_rate) or p**n <= ALPHA * (1 + 1e-9)


@given(st.integers(1, 300))
def test_bounds_are_where_n_equal_answers_become_a_one_in_twenty_surprise(n):
    assert rate_at_least(n) ** n == pytest.approx(ALPHA)
    assert (1 - rate_below(n)) ** n == pytest.approx(ALPHA)


@pytest.mark.parametrize(("rate", "n"), [(0.5, 5), (0.79, 14), (0.949, 59)])
def test_simulated_false_reproducible_at_the_least_rate_stays_under_alpha(rate, n):
    random, wrong = Random(f"{rate} {n}"), 0
    for _ in range(RUNS):
        fail = 0
        while fail < n and random.random() < rate:
            fail += 1
        tally = Tally(fail=fail, other=int(fail < n), asked=n, min_rate=rate)
        wrong += judge(tally) is Verdict.REPRODUCIBLE
    assert wrong / RUNS <= ALPHA


@pytest.mark.parametrize("p", [0.02, 0.2, 0.5, 0.8, 0.98])
def test_simulated_interval_covers_the_true_rate_at_every_look_at_once(p):
    random, limit, missed = Random(f"coverage {p}"), log(1 / ALPHA), 0
    evidence = {(k, n): log_martingale(p, k, n) for n in range(1, LOOKS + 1) for k in range(n + 1)}
    for _ in range(RUNS):
        fails = accumulate(random.random() < p for _ in range(LOOKS))
        missed += any(evidence[int(k), n] >= limit for n, k in enumerate(fails, 1))
    assert missed / RUNS <= ALPHA


def test_an_interval_for_a_fixed_n_looked_at_after_every_attempt_is_wrong_far_more_often():
    """Why the anytime-valid interval is used: Wald's, under the same eyes, misses several times as often as it says."""
    random, p, missed = Random("wald"), 0.5, 0
    for _ in range(RUNS):
        fails = list(accumulate(random.random() < p for _ in range(LOOKS)))
        missed += any(
            abs(k / n - p) > 1.96 * (k / n * (1 - k / n) / n) ** 0.5 for n, k in enumerate(fails, 1) if n >= 10
        )
    assert missed / RUNS > 2 * ALPHA


@given(st.integers(0, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.001, 0.999))
def test_the_interval_is_the_set_of_rates_that_are_not_rejected(counts, p):
    fail, n = counts
    low, high = interval(fail, n)
    evidence = log_martingale(p, fail, n) - log(1 / ALPHA)
    assert abs(evidence) < 1e-3 or (low <= p <= high) == (evidence < 0)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_what_was_seen_and_mirrors(counts):
    fail, n = counts
    low, high = interval(fail, n)
    assert 0 <= low <= fail / n <= high <= 1
    assert interval(n - fail, n) == pytest.approx((1 - high, 1 - low), abs=1e-5)


def test_no_attempts_rule_nothing_out():
    assert interval(0, 0) == (0.0, 1.0) and rate_at_least(0) == 0.0


@pytest.mark.parametrize(("preset", "p"), [("quick", 0.5), ("default", 0.8), ("default", 0.3), ("strict", 0.95)])
def test_attempts_are_made_until_both_answers_are_there_and_no_longer(preset, p):
    """The expected number, in closed form: attempt k + 1 is made if the first k agree."""
    random, n = Random(f"attempts {preset} {p}"), PRESETS[preset]
    expected = 1 + sum(p**k + (1 - p) ** k for k in range(1, n))
    made = 0
    for _ in range(RUNS):
        fail = other = 0
        while fail + other < n and judge(Tally(fail=fail, other=other, asked=n)) is not Verdict.FLAKY:
            failed = random.random() < p
            fail, other = fail + failed, other + (not failed)
        made += fail + other
    assert made / RUNS == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("alpha", [0.2, 0.01])
def test_another_confidence_is_kept_as_well(alpha):
    n = attempts_for(0.8, alpha)
    assert judge(Tally(fail=n, other=0, asked=n, min_rate=0.8, alpha=alpha)) is Verdict.REPRODUCIBLE
    assert judge(Tally(fail=n - 1, other=0, asked=n - 1, min_rate=0.8, alpha=alpha)) is Verdict.INCONCLUSIVE
    low, high = interval(7, 14, alpha)
    assert (low < interval(7, 14)[0]) == (high > interval(7, 14)[1]) == (alpha < ALPHA)


@given(st.integers(0, 40), st.integers(0, 40), st.floats(0, 1))
def test_repeats_agree_by_chance_most_likely_at_the_rate_that_is_assumed(fail, other, p):
    assert p**fail * (1 - p) ** other <= agree_by_chance(fail, other) * (1 + 1e-9)
    assert agree_by_chance(fail, other) == agree_by_chance(other, fail)


def test_five_repeats_of_both_sides_show_that_inputs_decide_and_four_do_not():
    assert agree_by_chance(3, 2) <= ALPHA < agree_by_chance(2, 2)
    assert agree_by_chance(9, 0) == agree_by_chance(0, 0) == 1.0  # of one side alone they show nothing
