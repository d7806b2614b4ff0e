"""Better never fails where worse passes; margins are what they say."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprokit.checks import Answer, Bootstrap, History, all_of, at_least, at_most
from reprokit.errors import BadInput

VALUE = st.floats(-100, 100)
PASSED = Answer.PASSED


@given(VALUE, VALUE, VALUE, st.floats(0, 10))
def test_more_passes_where_less_does(one, other, bound, margin):
    less, more = sorted((one, other))
    if at_least("x", less, bound, margin=margin, n=1).answer is PASSED:
        assert at_least("x", more, bound, margin=margin, n=1).answer is PASSED
    if at_most("x", more, bound, margin=margin, n=1).answer is PASSED:
        assert at_most("x", less, bound, margin=margin, n=1).answer is PASSED


@given(VALUE, VALUE, st.floats(0, 10), st.floats(0, 10))
def test_a_wider_margin_passes_where_a_narrower_does(value, bound, one, other):
    narrow, wide = sorted((one, other))
    if at_least("x", value, bound, margin=narrow, n=1).answer is PASSED:
        assert at_least("x", value, bound, margin=wide, n=1).answer is PASSED


@given(VALUE, VALUE, st.floats(0, 10))
def test_at_most_is_at_least_turned_around(value, bound, margin):
    one, other = at_most("x", value, bound, margin=margin, n=1), at_least("x", -value, -bound, margin=margin, n=1)
    assert one.answer is other.answer


@given(VALUE, VALUE)
def test_without_a_margin_it_is_the_comparison(value, bound):
    assert (at_least("x", value, bound, n=1).answer is PASSED) == (value >= bound)
    assert (at_most("x", value, bound, n=1).answer is PASSED) == (value <= bound)


@given(st.lists(VALUE, min_size=1, max_size=20), VALUE)
def test_of_values_a_sample_it_is_the_mean(values, bound):
    result = at_least("x", values, bound)
    assert result.n == len(values)
    assert result.answer is at_least("x", float(np.mean(values)), bound, n=len(values)).answer


HISTORY = st.lists(st.integers(-1000, 1000), min_size=2, max_size=12).filter(lambda past: len(set(past)) > 1)


@given(HISTORY, st.integers(-3000, 3000))
def test_without_a_bound_a_history_is_the_one_sided_test_of_one_more_value(past, value):
    scale = np.std(past, ddof=1) * np.sqrt(1 + 1 / len(past))
    p_value = stats.t.cdf((value - np.mean(past)) / scale, len(past) - 1)
    result = at_least("x", value, margin=History(values=past), n=5)
    assert result.p_value == pytest.approx(p_value)
    assert (result.answer is PASSED) == (p_value >= 0.05)
    edge = result.measured["bound"] - result.measured["margin"]
    if abs(value - edge) > 1e-6:
        assert (result.answer is PASSED) == (value > edge)


@pytest.mark.parametrize("m", [2, 5, 20])
@pytest.mark.parametrize("bound", [None, 0.0])
def test_a_healthy_run_fails_beside_its_history_as_often_as_alpha_says(m, bound):
    draw = np.random.default_rng(m)
    failed = 0
    for _ in range(2000):
        past, value = draw.normal(size=m), draw.normal()
        result = at_most("loss", float(value), bound, margin=History(values=past.tolist()), n=10)
        failed += result.answer is Answer.FAILED
    assert 0.035 <= failed / 2000 <= 0.065  # 0.05, within three standard errors


@settings(max_examples=20)
@given(st.integers(0, 40), st.integers(0, 40), st.booleans(), st.integers(0, 10**6))
def test_a_bootstrap_too_passes_more_where_less_passes(one, other, strict, seed):
    draws = np.random.default_rng(seed).normal(size=40)
    less, more = sorted((one, other))
    ask = lambda shift: at_least("x", draws + shift / 20, 1.0, margin=Bootstrap(strict=strict, resamples=200))
    if ask(less).answer is PASSED:
        assert ask(more).answer is PASSED


@pytest.mark.parametrize("sign", [1, -1])
def test_strict_asks_for_evidence_and_lenient_for_evidence_against(sign):
    draws = np.random.default_rng(1).normal(size=100)
    ask = at_least if sign > 0 else at_most
    near, good, bad = (sign * (draws + shift) for shift in (0.05, 1.0, -1.0))
    answers = lambda values: [ask("x", values, 0.0, margin=Bootstrap(strict=strict)).answer for strict in (False, True)]
    assert answers(near) == [PASSED, Answer.FAILED]
    assert answers(good) == [PASSED, PASSED]
    assert answers(bad) == [Answer.FAILED, Answer.FAILED]


def test_the_edge_in_the_message_is_where_the_answer_turns():
    draws = np.random.default_rng(2).exponential(size=80)
    for ask in (at_least, at_most):
        for strict in (False, True):
            for bound in np.linspace(0.6, 1.6, 21):
                result = ask("x", draws, bound, margin=Bootstrap(strict=strict))
                sign = 1 if ask is at_least else -1
                edge = result.measured["bound"] - sign * result.measured["margin"]
                distance = sign * (draws.mean() - edge)
                if abs(distance) > 0.005:
                    assert (result.answer is PASSED) == (distance > 0)


def test_the_condition_reads_as_what_was_asked():
    assert at_least("a", 1, 0.9, margin=0.02, n=1).condition == "a >= 0.9 - 0.02 (margin given)"
    assert at_most("a", 1, 0.9, margin=0.02, n=1).condition == "a <= 0.9 + 0.02 (margin given)"
    assert at_most("a", 1, 0.9, n=1).condition == "a <= 0.9"
    past = History(values=[1.0, 2.0, 3.0])
    assert at_least("a", 1, margin=past, n=1).condition == "a >= 2 - 3.37171 (margin of 3 earlier values, alpha 0.05)"
    hits = [1.0] * 90 + [0.0] * 10
    strict = at_least("a", hits, 0.8, margin=Bootstrap(strict=True)).condition
    assert strict.startswith("a >= 0.8 + 0.0") and strict.endswith("(margin by 2000 resamples, alpha 0.05, strict)")


def test_another_statistic_may_be_asked_for():
    draws = np.random.default_rng(1).lognormal(size=100)
    result = at_most("median", draws, 1.1, margin=Bootstrap(statistic=np.median, resamples=500))
    assert result.measured["median"] == np.median(draws)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: at_least("x", 1.0, n=1), "no bound"),
        (lambda: at_least("x", 1.0, float("nan"), n=1), "the bound is nan"),
        (lambda: at_least("x", 1.0, True, n=1), "the bound is True"),
        (lambda: at_least("x", 1.0, 0.5), "n is None"),
        (lambda: at_least("x", 1.0, 0.5, n=-1), "n is -1"),
        (lambda: at_least("x", 1.0, 0.5, n=True), "n is True"),
        (lambda: at_least("x", 1.0, 0.5, n=1, margin=-0.1), "the margin is -0.1"),
        (lambda: at_least("x", 1.0, 0.5, n=1, margin=float("nan")), "the margin is nan"),
        (lambda: at_least("x", "high", 0.5), "a str"),
        (lambda: at_least("x", True, 0.5, n=1), "a bool"),
        (lambda: at_least("x", ["a"], 0.5), "not one number a sample"),
        (lambda: at_least("x", [[1.0], [2.0]], 0.5), r"shape \(2, 1\)"),
        (lambda: at_least("x", 1.0, 0.5, n=1, margin=Bootstrap()), "one value a sample"),
        (lambda: at_least("x", [1.0, 2.0], 0.5, margin=Bootstrap(alpha=0.0)), "alpha is 0.0"),
        (lambda: at_least("x", [1.0, 2.0], 0.5, margin=Bootstrap(resamples=10)), "10 resamples"),
        (lambda: at_least("x", 1.0, 0.5, n=1, margin=History(values=[1.0], alpha=2)), "alpha is 2"),
    ],
)
def test_a_question_that_is_none_is_refused_whatever_the_data_are(ask, why):
    with pytest.raises(BadInput, match=why):
        ask()


def test_a_part_of_several_bootstraps_that_can_no_longer_fail_makes_no_pass():
    """A skewed sample has a least p-value however far off the bound is; times ten it is above alpha."""
    draws = np.append(np.zeros(38), [5.0, 9.0])
    far = at_least("x", draws, 1e9, margin=Bootstrap(resamples=500))
    assert far.answer is Answer.FAILED and far.p_value == pytest.approx(far.least_p)
    many = round(2 * far.alpha / far.least_p)
    assert all_of(*[at_least("x", draws, 1e9, margin=Bootstrap(resamples=500))] * many).answer is Answer.UNANSWERED


@pytest.mark.parametrize(
    "values",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1.0, 2.0]),
        torch.tensor([1.0, 2.0]).bfloat16(),
        torch.ones(2, requires_grad=True) * 2,
        [torch.tensor(1.0), torch.tensor(2.0, requires_grad=True)],
    ],
)
@pytest.mark.filterwarnings("error")
def test_samples_come_in_any_form(values):
    assert at_least("x", values, 1.5).answer is PASSED


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "values",
    [["1", "2"], [1j, 1], np.array([1j, 1]), torch.tensor([1j]), np.array(["2020-01-01"], dtype="M8[s]"), [b"1"]],
)
def test_what_is_no_number_is_no_sample(values):
    with pytest.raises(BadInput, match="not one number a sample"):
        at_least("x", values, 0.5)


def test_finite_values_whose_mean_is_not_answer_nothing():
    for bound in (at_least, at_most):
        assert bound("x", [1.7e308] * 3, 1e308).answer is Answer.UNANSWERED


def test_a_loss_that_has_a_gradient_is_a_number():
    assert at_most("loss", torch.tensor(0.5, requires_grad=True) * 1, 1.0, n=3).answer is PASSED


@pytest.mark.parametrize("statistic", [lambda v: float("nan"), lambda v: float("nan") if v[0] > 0 else 1.0 + v[1]])
def test_a_statistic_that_is_no_number_answers_nothing(statistic):
    values = np.random.default_rng(1).normal(size=40)
    result = at_least("x", values, -9.0, margin=Bootstrap(statistic=statistic, resamples=50))
    assert result.answer is Answer.UNANSWERED and result.p_value is None
