"""A model that is calibrated passes as often as alpha says, and one that is not fails."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.checks import Answer, calibration
from reprokit.errors import BadInput


def by_hand(sure, right, bins):
    total = 0.0
    for low in range(bins):
        here = [
            (p, r) for p, r in zip(sure, right) if low / bins <= p < (low + 1) / bins or (p == 1 and low == bins - 1)
        ]
        if here:
            total += abs(np.mean([r for _, r in here]) - np.mean([p for p, _ in here])) * len(here) / len(sure)
    return total


EIGHTHS = st.integers(0, 8).map(lambda k: k / 8)  # which do not fall between two bins by rounding
CASE = st.lists(st.tuples(EIGHTHS, st.booleans()), min_size=8, max_size=40).filter(
    lambda all_: len({p for p, _ in all_}) > 1
)


@settings(max_examples=50)
@given(CASE, st.sampled_from([1, 2, 4, 8]))
def test_the_error_is_that_of_the_definition(case, bins):
    sure, right = zip(*case)
    result = calibration("x", sure, right, at_most=0.99, bins=bins, resamples=20)
    assert result.measured["calibration_error"] == pytest.approx(by_hand(sure, right, bins))
    assert 0 <= result.measured["calibration_error"] <= 1


def test_calibrated_models_fail_as_often_as_alpha_says():
    draw, alarms = np.random.default_rng(1), 0
    for seed in range(400):
        sure = draw.random(100)
        result = calibration("x", sure, draw.random(100) < sure, resamples=100, seed=seed)
        alarms += result.answer is Answer.FAILED
    assert alarms / 400 <= 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5


def test_an_overconfident_model_fails_and_a_sharper_sample_shows_less():
    draw = np.random.default_rng(2)
    truth = draw.uniform(0.3, 0.7, size=1000)
    right = draw.random(1000) < truth
    sure = np.clip(0.5 + 2 * (truth - 0.5), 0, 1)
    result = calibration("x", sure, right)
    assert result.answer is Answer.FAILED
    assert result.p_value == pytest.approx(1 / 1001)  # never 0: of 1,000 draws none was as large
    assert calibration("x", truth, right).answer is Answer.PASSED


def test_a_bound_must_be_above_what_a_perfect_model_shows():
    draw = np.random.default_rng(3)
    sure = draw.random(50)
    right = draw.random(50) < sure
    few = calibration("x", sure, right, at_most=0.05)
    assert few.answer is Answer.UNANSWERED and "a perfect model shows" in few.observed
    sure = draw.random(20000)
    right = draw.random(20000) < sure
    assert calibration("x", sure, right, at_most=0.05, resamples=20).answer is Answer.PASSED
    assert calibration("x", sure, ~right, at_most=0.05, resamples=20).answer is Answer.FAILED


def test_the_same_sample_gives_the_same_answer():
    draw = np.random.default_rng(4)
    sure = draw.random(100)
    right = draw.random(100) < sure
    assert calibration("x", sure, right).p_value == calibration("x", sure, right).p_value


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: calibration("x", [0.5, 0.6], [1]), "2 confidences beside 1"),
        (lambda: calibration("x", [0.5, 3.2], [1, 0]), r"\[1\] is 3.2, no probability; apply softmax"),
        (lambda: calibration("x", [0.5, 0.2], [1, 2]), "prediction == label"),
        (lambda: calibration("x", [0.5, 0.2], [1, 0], bins=0), "bins is 0"),
        (lambda: calibration("x", [0.5, 0.2], [1, 0], resamples=10), "10 resamples"),
        (lambda: calibration("x", [0.5, 0.2], [1, 0], at_most=1.5), "at_most is 1.5"),
        (lambda: calibration("x", [0.5, 0.2], [1, 0], alpha=0), "alpha is 0"),
    ],
)
def test_a_question_that_is_none_is_refused(ask, why):
    with pytest.raises(BadInput, match=why):
        ask()
