from math import inf, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.reduce.noise import (
    CLEAN,
    ERROR,
    LIMIT,
    MARGIN,
    Count,
    Indistinct,
    Rates,
    Sprt,
    decide,
    measure,
    measuring,
)
from reprokit.reduce.search import drive, one_minimal, smallest

SETTINGS = [(p, q) for p in (0.9, 0.7, 0.3) for q in (0.0, 0.05)]
PLACEMENTS, N = 50, 256

hypotheses = st.builds(lambda p1, part: (p1 * part, p1), st.floats(0.05, 0.99), st.floats(0.05, 0.65))


def measured(p, q, random, **options):
    return measure(lambda trial: random.random() < (p if trial[0] == "case" else q), **options)


def seen(case, donor=None, **fields):
    """Rates from (fail, n)."""
    count = lambda pair: Count(fail=pair[0], n=pair[1])
    return Rates(case=count(case), donor=count(donor) if donor else None, **fields)


def reduced(believes, p, q, random):
    """What a search finds of two culprits, where each of its questions is answered by `believes(trial)`."""
    culprits = set(random.sample(range(N), 2))
    fails = lambda kept: believes(lambda number: random.random() < (p if culprits <= set(kept) else q))
    found = drive(one_minimal(drive(smallest(range(N)), fails)), fails)
    return set(found), culprits


def exact(test, rate):
    """Of a test of candidates with this rate: how probably it accepts, and its mean number of trials."""
    still, accepted, trials, n = {0: 1.0}, 0.0, 0.0, 0
    while still:
        n, before, still = n + 1, still, {}
        for fail, chance in before.items():
            trials += chance
            for failed, weight in ((0, 1 - rate), (1, rate)):
                answer = test.at(fail + failed, n)
                if answer is None:
                    still[fail + failed] = still.get(fail + failed, 0.0) + chance * weight
                accepted += chance * weight * (answer is True)
    return accepted, trials


@pytest.mark.parametrize(("p", "q"), SETTINGS)
def test_no_bug_is_lost_and_nothing_is_kept_that_can_go_at_rates_that_are_not_given(p, q):
    random = Random(f"placements {p} {q}")
    for _ in range(PLACEMENTS):
        rates = measured(p, q, random)
        found, culprits = reduced(lambda trial: decide(trial, rates), p, q, random)  # noqa: B023
        assert found == culprits


def test_any_of_ten_loses_bugs_as_soon_as_healthy_content_fails_at_times():
    random, lost = Random("any of ten"), 0
    for _ in range(PLACEMENTS):
        found, culprits = reduced(lambda trial: any(map(trial, range(10))), 0.3, 0.05, random)
        lost += not culprits <= found
    assert lost > PLACEMENTS / 2


@pytest.mark.parametrize(("p", "q"), SETTINGS)
def test_a_question_errs_once_in_a_hundred_thousand_at_most(p, q):
    random = Random(f"errors {p} {q}")
    for _ in range(3):
        test = measured(p, q, random).test()
        assert exact(test, p)[0] >= 1 - 1e-5 and exact(test, q)[0] <= 1e-5


@settings(max_examples=25, deadline=None)
@given(hypotheses, st.floats(0, 1), st.floats(0, 1))
def test_errors_are_bounded_at_p0_and_p1_and_beyond(bounds, below, above):
    p0, p1 = bounds
    test = Sprt(p0, p1)
    assert exact(test, p0 * below)[0] <= ERROR
    assert exact(test, p1 + (1 - p1) * above)[0] >= 1 - ERROR - 1e-12


@pytest.mark.parametrize(("p0", "p1"), [(0.1, 0.9), (0.1, 0.3), (0.05, 0.1)])
def test_a_bound_that_misses_by_a_twentieth_makes_no_cliff(p0, p1):
    test = Sprt(p0, p1)
    assert 1 - exact(test, 0.95 * p1)[0] < 10 * ERROR and exact(test, 1.05 * p0)[0] < 10 * ERROR


@settings(max_examples=25, deadline=None)
@given(hypotheses)
def test_trials_are_as_many_as_wald_says(bounds):
    """Between his mean and what it is with the last trial's overshoot, where errors and the end hardly matter."""
    p0, p1 = bounds
    test, up, down = Sprt(p0, p1), log(p1 / p0), log((1 - p0) / (1 - p1))
    drift = lambda rate: abs(rate * up - (1 - rate) * down)
    for rate, step in ((p1, up), (p0, down)):
        expected = test.expected(rate)
        assert expected * 0.99 <= exact(test, rate)[1] <= (expected + step / drift(rate)) * 1.01


@given(hypotheses, st.data())
def test_more_failures_never_turn_an_acceptance_into_a_refusal(bounds, data):
    fewer = data.draw(st.lists(st.booleans(), min_size=1, max_size=300))
    more = [failed or data.draw(st.booleans()) for failed in fewer]
    answers = [], []
    for trials, test, told in zip((fewer, more), (Sprt(*bounds), Sprt(*bounds)), answers):
        told += [test.tell(failed) for failed in trials]
    for one, other in zip(*answers):
        assert not (one is True and other is not True) and not (other is False and one is not False)


@given(hypotheses, st.randoms(use_true_random=False), st.lists(st.booleans()))
def test_it_ends_and_what_comes_later_changes_nothing(bounds, random, later):
    test = Sprt(*bounds)
    rate = random.uniform(*bounds)
    trials = 0
    while test.tell(random.random() < rate) is None:
        trials += 1
    assert trials < test.longest and {test.tell(failed) for failed in later} <= {test.answer}


def test_what_is_still_open_at_the_end_does_not_count_as_failing():
    test = Sprt(0.1, 0.3)
    open_at_the_end = next(fail for fail in range(test.longest) if test.at(fail, test.longest - 1) is None)
    assert test.at(open_at_the_end, test.longest) is False


@pytest.mark.parametrize(("p0", "p1"), [(0.3, 0.3), (0.4, 0.3), (0.0, 0.5), (0.5, 1.0)])
def test_equal_or_certain_rates_cannot_be_tested(p0, p1):
    with pytest.raises(ValueError):
        Sprt(p0, p1)


@settings(max_examples=25, deadline=None)
@given(st.integers(30, 60), st.integers(0, 3))
def test_a_candidate_that_fails_half_as_often_as_the_case_surely_does_is_refused(case_fails, donor_fails):
    rates = seen((case_fails, 60), (donor_fails, 60))
    assert rates.p0 >= MARGIN * rates.p1 and rates.p0 >= rates.donor.high
    assert exact(rates.test(), MARGIN * rates.p1)[0] <= ERROR


@given(st.booleans())
def test_clean_rates_decide_with_one_trial(failed):
    asked = []
    assert decide(lambda number: asked.append(number) or failed, seen((3, 3), (0, 3), clean=True)) is failed
    assert asked == [0]


def test_three_equal_answers_are_clean_only_for_who_says_so():
    assert measured(1, 0, Random(0), clean_after=CLEAN) == seen((3, 3), (0, 3), clean=True)
    rates = measured(1, 0, Random(0))
    assert not rates.clean and rates.case.n <= 20 and rates.cost <= 20


@pytest.mark.parametrize("wrong", [("case", 2), ("donor", 0), ("donor", 2)])
def test_one_contradiction_is_enough_to_count(wrong):
    rates = measure(lambda trial: (trial[0] == "case") != (trial == wrong), clean_after=CLEAN)
    assert not rates.clean and rates.case.n > CLEAN and rates.cost <= rates.case.n


def test_a_trial_more_takes_back_that_one_decides():
    clean = seen((3, 3), (0, 3), clean=True)
    assert not clean.then("case", False).clean and clean.then("donor", True).donor == Count(fail=1, n=4)


def test_trials_are_numbered_for_case_and_donor_apart_and_those_made_before_count():
    asked = []
    watched = lambda trial: asked.append(trial) or trial[0] == "case"
    measure(watched, seen((2, 2), (0, 1)), clean_after=CLEAN)
    assert asked == [("donor", 1), ("case", 2), ("donor", 2)]
    rates = measured(0.7, 0.05, Random(1))
    with pytest.raises(StopIteration) as ended:
        next(measuring(rates))
    assert ended.value.value == rates


def test_the_numbers_of_a_question_count_from_zero():
    numbers = []
    assert decide(lambda number: numbers.append(number) or True, seen((20, 20), (0, 20)))
    assert numbers == list(range(len(numbers))) and len(numbers) > 5


@pytest.mark.parametrize(("p", "q"), [(0.5, 0.5), (0.3, 0.25), (0.01, 0.0), (0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
def test_what_cannot_be_told_apart_is_said_to_be_so_in_bounded_time(p, q):
    found = measured(p, q, Random(f"{p} {q}"))
    assert isinstance(found, Indistinct) and found.rates.case.n <= LIMIT
    assert "\n" not in str(found) and f"{found.rates.case.fail} of {found.rates.case.n}" in str(found)
    assert ("too close" in str(found)) == (q > 0)


def test_a_case_that_never_fails_is_given_up_early():
    assert measured(0, 0, Random(0)).rates.case.n <= 100


def test_without_a_donor_the_margin_alone_counts():
    rates = measured(0.9, None, Random("no donor"), start=Rates(donor=None))
    assert rates.donor is None and rates.p0 == MARGIN * rates.p1 and rates.to_json()["donor"] is None
    assert measure(lambda trial: True, Rates(donor=None), clean_after=2) == seen((2, 2), clean=True)


def test_nothing_measured_supports_no_question():
    assert Rates().cost == inf and seen((1, 60), (30, 60)).cost == inf


def test_rates_are_reported_with_their_bounds():
    case, donor = seen((18, 20), (0, 20)).to_json().values()
    assert (case["fail"], case["n"]) == (18, 20) and case["low"] < 0.9 == case["rate"] < case["high"]
    assert donor["rate"] == 0 == donor["low"] and donor["high"] < 0.3
