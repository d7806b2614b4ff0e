"""Combinations keep the laws of logic as far as three answers go, and false alarms at alpha."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reprokit.checks import Answer, all_of, any_of, at_least, exact, kolmogorov_smirnov, not_
from reprokit.errors import BadInput
from reprokit.triage.exact import holm

PASSED, FAILED, UNANSWERED = Answer.PASSED, Answer.FAILED, Answer.UNANSWERED


def plain(answer, name="x"):
    return replace(exact(name, 1, 1), answer=answer)


def with_p(p_value, least_p=0.0, alpha=0.05, name="t"):
    answer = FAILED if p_value < alpha else PASSED
    return replace(exact(name, 1, 1), answer=answer, p_value=p_value, least_p=least_p, alpha=alpha)


ANSWERS = st.sampled_from(list(Answer))
P_VALUES = st.floats(0, 1) | st.floats(0, 0.06)
PART = st.builds(plain, ANSWERS) | st.builds(with_p, P_VALUES)
PARTS = st.lists(PART, min_size=1, max_size=5)
TREE = st.recursive(
    PART,
    lambda part: (
        st.lists(part, min_size=1, max_size=3).map(lambda parts: all_of(*parts))
        | st.lists(part, min_size=1, max_size=3).map(lambda parts: any_of(*parts))
        | part.map(not_)
    ),
    max_leaves=8,
)


@given(st.lists(ANSWERS, min_size=1, max_size=5))
def test_without_tests_it_is_logic_and_what_was_not_answered_answers_nothing(answers):
    parts = [plain(answer) for answer in answers]
    unanswered = UNANSWERED in answers
    assert all_of(*parts).answer is (UNANSWERED if unanswered else PASSED if set(answers) == {PASSED} else FAILED)
    assert any_of(*parts).answer is (UNANSWERED if unanswered else PASSED if PASSED in answers else FAILED)


@given(TREE)
def test_not_turns_and_twice_is_the_same_answer(result):
    turned = not_(result)
    assert (turned.answer is PASSED) == (result.answer is FAILED)
    assert (turned.answer is UNANSWERED) == (result.answer is UNANSWERED)
    assert not_(turned).answer is result.answer


@given(TREE)
def test_one_part_alone_is_itself(result):
    for whole in (all_of(result), any_of(result)):
        assert (whole.answer, whole.p_value, whole.n) == (result.answer, result.p_value, result.n)


@given(PARTS, PARTS)
def test_how_parts_are_nested_does_not_matter(one, other):
    for combine in (all_of, any_of):
        flat, nested = combine(*one, *other), combine(combine(*one), combine(*other))
        assert (flat.answer, flat.p_value, flat.parts) == (nested.answer, nested.p_value, nested.parts)


@given(PARTS, st.randoms(use_true_random=False))
def test_nor_does_their_order(parts, random):
    mixed = random.sample(parts, len(parts))
    for combine in (all_of, any_of):
        one, other = combine(*parts), combine(*mixed)
        assert (one.answer, one.p_value, one.least_p) == (other.answer, other.p_value, other.least_p)


@given(st.lists(P_VALUES, min_size=1, max_size=6))
def test_all_of_tests_is_holms_correction(values):
    whole = all_of(*map(with_p, values))
    assert [part.answer is FAILED for part in whole.parts] == [p < 0.05 for p in holm(values)]
    assert whole.p_value == min(1.0, len(values) * min(values))
    assert (whole.answer is FAILED) == (whole.p_value < 0.05)
    if len(values) > 1:
        assert [part.corrected_p for part in whole.parts] == holm(values)


@given(st.lists(P_VALUES, min_size=1, max_size=6))
def test_any_of_tests_fails_only_where_each_does(values):
    whole = any_of(*map(with_p, values))
    assert (whole.answer is FAILED) == (max(values) < 0.05)
    assert whole.p_value == max(values)


@given(TREE)
def test_the_answer_of_a_test_is_its_p_value(result):
    if result.p_value is not None:
        assert result.answer is (FAILED if result.p_value < result.alpha else PASSED)


@given(PARTS)
def test_more_tests_never_make_a_pass_a_failure_of_a_part(parts):
    """Correcting only ever raises p-values: what passes alone passes beside others."""
    for part, before in zip(all_of(*parts).parts, parts):
        assert not (part.answer is FAILED and before.answer is PASSED)


def test_what_is_decided_is_not_undone_by_a_correction():
    lost = all_of(plain(FAILED), with_p(0.9))
    assert lost.answer is FAILED and lost.p_value is None
    assert all_of(any_of(lost), with_p(0.9)).answer is FAILED
    assert any_of(plain(PASSED), with_p(0.001)).answer is PASSED
    assert all_of(any_of(plain(PASSED), with_p(0.001)), with_p(0.9)).answer is PASSED


def test_a_part_that_can_no_longer_fail_makes_no_pass():
    alone = with_p(0.5, least_p=0.02)
    assert all_of(alone).answer is PASSED
    assert all_of(alone, with_p(0.5)).answer is PASSED
    assert all_of(alone, with_p(0.5), with_p(0.5)).answer is UNANSWERED


def test_of_ten_tests_at_once_false_alarms_are_as_rare_as_of_one():
    draw, runs, alarms, single = np.random.default_rng(1), 300, 0, 0
    for _ in range(runs):
        parts = [kolmogorov_smirnov("x", draw.normal(size=50), stats.norm.cdf) for _ in range(10)]
        alarms += all_of(*parts).answer is FAILED
        single += any(part.answer is FAILED for part in parts)
    assert alarms / runs <= 0.05 + 3 * (0.05 * 0.95 / runs) ** 0.5
    assert single / runs > 0.3  # what the correction is for


def test_the_next_step_is_that_of_what_is_to_blame():
    whole = all_of(plain(PASSED, "good"), at_least("accuracy", 0.5, 0.9, n=10))
    assert whole.next_step.startswith("accuracy: run it with two other seeds")
    assert whole.n == 1
    assert whole.observed == "good PASSED, accuracy FAILED"


@pytest.mark.parametrize("combine", [all_of, any_of])
def test_combinations_that_are_none_are_refused(combine):
    with pytest.raises(BadInput, match="no checks"):
        combine()
    with pytest.raises(BadInput, match="a bool is no result"):
        combine(plain(PASSED), True)
    with pytest.raises(BadInput, match=r"alpha 0.01, 0.05"):
        combine(with_p(0.5), with_p(0.5, alpha=0.01))
