"""P-values are scipy's, false alarms are as rare as alpha says, and what is claimed to be seen is seen."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from reprokit.checks import Answer, chi_square, kl_divergence, kolmogorov_smirnov
from reprokit.errors import BadInput

SAMPLE = st.lists(st.floats(-100, 100), min_size=8, max_size=40).filter(lambda values: len(set(values)) > 1)
COUNTS = st.lists(st.integers(20, 500), min_size=2, max_size=6)


@given(SAMPLE, SAMPLE)
def test_kolmogorov_smirnov_of_two_samples_is_scipys(one, other):
    result, theirs = kolmogorov_smirnov("x", one, other), stats.ks_2samp(one, other)
    assert result.p_value == pytest.approx(theirs.pvalue)
    assert result.measured["distance"] == pytest.approx(theirs.statistic)
    assert result.answer is (Answer.FAILED if theirs.pvalue < 0.05 else Answer.PASSED)


@given(SAMPLE)
def test_kolmogorov_smirnov_of_a_distribution_is_scipys(values):
    cdf = stats.norm(0, 50).cdf
    assert kolmogorov_smirnov("x", values, cdf).p_value == pytest.approx(stats.ks_1samp(values, cdf).pvalue)


@given(st.integers(2, 12), st.integers(2, 12))
def test_the_least_p_is_that_of_samples_which_do_not_overlap(n, m):
    one, other = list(range(n)), list(range(100, 100 + m))
    result, theirs = kolmogorov_smirnov("x", one, other), stats.ks_2samp(one, other)
    assert result.least_p == pytest.approx(theirs.pvalue)
    assert result.answer is (Answer.FAILED if theirs.pvalue < 0.05 else Answer.UNANSWERED)


@settings(max_examples=50)
@given(SAMPLE, SAMPLE, st.floats(0.001, 0.5), st.floats(0.001, 0.5))
def test_a_smaller_alpha_passes_what_a_larger_one_passes(one, other, a, b):
    small, large = sorted((a, b))
    if kolmogorov_smirnov("x", one, other, alpha=large).answer is Answer.PASSED:
        assert kolmogorov_smirnov("x", one, other, alpha=small).answer is not Answer.FAILED


@given(
    COUNTS.flatmap(
        lambda row: st.tuples(st.just(row), st.lists(st.integers(1, 9), min_size=len(row), max_size=len(row)))
    )
)
def test_chi_square_of_shares_is_scipys(case):
    counts, shares = case
    wanted = np.array(shares) / sum(shares) * sum(counts)
    assume(wanted.min() >= 5)
    theirs = stats.chisquare(counts, wanted)
    result = chi_square("x", counts, expected=shares)
    assert result.p_value == pytest.approx(theirs.pvalue, abs=1e-12)
    assert result.measured["chi_square"] == pytest.approx(theirs.statistic)
    assert result.n == sum(counts)


@given(
    COUNTS.flatmap(lambda row: st.tuples(*[st.lists(st.integers(20, 500), min_size=len(row), max_size=len(row))] * 2))
)
def test_chi_square_of_two_samples_is_scipys(case):
    one, other = case
    assume(stats.contingency.expected_freq([one, other]).min() >= 5)
    theirs = stats.chi2_contingency([one, other], correction=False)
    assert chi_square("x", one, reference=other).p_value == pytest.approx(theirs.pvalue, abs=1e-12)


def test_parameters_that_were_fitted_cost_freedom():
    counts, shares = [30, 60, 30, 10], [1, 2, 1, 1]
    theirs = stats.chisquare(counts, np.array(shares) / 5 * 130, ddof=1)
    assert chi_square("x", counts, expected=shares, estimated=1).p_value == pytest.approx(theirs.pvalue)
    assert chi_square("x", [30, 60], expected=[1, 1], estimated=1).answer is Answer.UNANSWERED


def test_a_category_that_nobody_expects_is_no_question_of_chance():
    for result in (chi_square("x", [1000, 1], expected=[1, 0]), kl_divergence("x", [1000, 1], [1, 0], at_most=9.0)):
        assert result.answer is Answer.FAILED and "category 1" in result.observed
        assert result.p_value is None  # no correction can undo it


def test_a_category_that_nobody_has_is_left_out():
    assert chi_square("x", [50, 0, 50], expected=[1, 0, 1]).p_value == 1.0
    assert chi_square("x", [50, 0, 50], reference=[50, 0, 50]).p_value == 1.0


@given(COUNTS, st.floats(0.01, 5))
def test_kl_is_scipys_entropy_and_never_negative(counts, bound):
    shares = list(range(1, len(counts) + 1))
    result = kl_divergence("x", counts, shares, at_most=bound)
    theirs = stats.entropy(counts, shares)
    assert result.measured["x_kl"] == pytest.approx(theirs, abs=1e-12) and result.measured["x_kl"] >= 0
    if result.answer is not Answer.UNANSWERED:
        assert result.answer is (Answer.PASSED if theirs <= bound else Answer.FAILED)


@given(COUNTS)
def test_a_distribution_has_no_divergence_from_itself(counts):
    assert kl_divergence("x", counts, counts, at_most=0.5).measured["x_kl"] == pytest.approx(0, abs=1e-12)


def test_false_alarms_are_at_most_as_frequent_as_alpha():
    draw, runs = np.random.default_rng(1), 600
    p_values = {"two samples": [], "distribution": [], "shares": [], "counts": []}
    for _ in range(runs):
        one, other = draw.normal(size=40), draw.normal(size=60)
        counts, more = (draw.multinomial(size, [0.2, 0.3, 0.5]) for size in (100, 150))
        p_values["two samples"].append(kolmogorov_smirnov("x", one, other).p_value)
        p_values["distribution"].append(kolmogorov_smirnov("x", one, stats.norm.cdf).p_value)
        p_values["shares"].append(chi_square("x", counts, expected=[2, 3, 5]).p_value)
        p_values["counts"].append(chi_square("x", counts, reference=more).p_value)
    for alpha in (0.01, 0.05, 0.2):
        allowed = alpha + 3 * (alpha * (1 - alpha) / runs) ** 0.5
        assert {name: np.mean(np.array(all_) < alpha) for name, all_ in p_values.items()} == {
            name: pytest.approx(allowed / 2, abs=allowed / 2) for name in p_values
        }


def test_what_a_message_says_to_be_seen_is_seen_with_that_power():
    """Of the effect of a chi-square exactly; of a distance at least, since its variance is taken at its largest."""
    draw, runs = np.random.default_rng(2), 400
    seen = chi_square("x", [50, 50, 100], expected=[1, 1, 2]).measured["detectable"]
    shares = np.array([0.25, 0.25, 0.5]) + seen * np.array([1, -1, 0]) * (0.125**0.5)
    assert np.sum((shares - [0.25, 0.25, 0.5]) ** 2 / [0.25, 0.25, 0.5]) ** 0.5 == pytest.approx(seen)
    chi = sum(
        chi_square("x", draw.multinomial(200, shares), expected=[1, 1, 2]).answer is Answer.FAILED for _ in range(runs)
    )
    assert 0.74 <= chi / runs <= 0.86
    distance = kolmogorov_smirnov("x", draw.random(100), draw.random(100)).measured["detectable"]
    ks = sum(
        kolmogorov_smirnov("x", draw.random(100), draw.random(100) + distance).answer is Answer.FAILED
        for _ in range(runs)
    )
    assert ks / runs >= 0.76
    halves = lambda share: draw.random(100) / 2 + (draw.random(100) < share) / 2  # which differ most at their middle
    ks = sum(
        kolmogorov_smirnov("x", halves(0.5 - distance / 2), halves(0.5 + distance / 2)).answer is Answer.FAILED
        for _ in range(runs)
    )
    assert 0.72 <= ks / runs <= 0.9


def test_a_sample_that_cannot_see_what_must_be_seen_is_no_answer():
    draw = np.random.default_rng(1)
    ask = lambda n: kolmogorov_smirnov("x", draw.normal(size=n), stats.norm.cdf, detect=0.1)
    assert ask(100).answer is Answer.UNANSWERED and "not of 0.1" in ask(100).observed
    assert ask(1000).answer is Answer.PASSED


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], [1.0, 2.0], alpha=1.0), "alpha is 1.0"),
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], [1.0, 2.0], detect=0), "detect is 0"),
        (lambda: kolmogorov_smirnov("x", [[1.0], [2.0]], [1.0, 2.0]), "shape"),
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], "norm"), "a str"),
        (lambda: kolmogorov_smirnov("x", [-1.0, 0.0, 1.0], stats.norm.pdf), "falls where values rise"),
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], lambda x: x * 0 + 2), "one probability a value"),
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], lambda x: x * float("nan")), "one probability a value"),
        (lambda: kolmogorov_smirnov("x", [1.0, 2.0], lambda x: 0.5), "one probability a value"),
        (lambda: chi_square("x", [1, 2], expected=[1, 1], estimated=-1), "estimated is -1"),
        (lambda: chi_square("x", [1, 2]), "one of them"),
        (lambda: chi_square("x", [1, 2], expected=[1, 1], reference=[1, 1]), "one of them"),
        (lambda: chi_square("x", [1, 2], expected=[1, 1, 1]), "2 categories beside 3"),
        (lambda: chi_square("x", [1, -2], expected=[1, 1]), "-2 is below 0"),
        (lambda: chi_square("x", [0.5, 0.5], expected=[1, 1]), "whole numbers"),
        (lambda: kl_divergence("x", [0.5, 0.5], [1, 1], at_most=1.0), "whole numbers"),
        (lambda: kl_divergence("x", [1, 1], [1, 1], at_most=0.0), "at_most is 0.0"),
        (lambda: kl_divergence("x", [1, 1], [1, 1], at_most=float("nan")), "at_most is nan"),
    ],
)
def test_a_question_that_is_none_is_refused(ask, why):
    with pytest.raises(BadInput, match=why):
        ask()
