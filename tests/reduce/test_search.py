from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.reduce.search import contiguous, crop, drive, one_minimal, smallest

placements = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=12))
)


def asked(search, fails):
    """What a search finds, and the questions it asked; each must be asked once."""
    questions = []
    found = drive(search, lambda question: questions.append(question) or fails(question))
    return found, questions


@given(placements)
def test_crop_is_the_tightest_window(case):
    n, needed = case
    assert drive(crop(range(n)), needed.issubset) == tuple(range(min(needed), max(needed) + 1))


@given(placements)
def test_smallest_is_exactly_what_is_needed_where_failing_is_monotone(case):
    n, needed = case
    assert drive(smallest(range(n)), needed.issubset) == tuple(sorted(needed))
    assert drive(contiguous(range(n)), needed.issubset) == tuple(sorted(needed))


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(2, 7))
def test_one_minimal_even_where_failing_is_not_monotone(items, modulus):
    fails = lambda kept: len(kept) % modulus == len(items) % modulus
    kept = drive(one_minimal(sorted(items)), fails)
    assert fails(kept) and (len(kept) == 1 or not any(fails(kept[:i] + kept[i + 1 :]) for i in range(len(kept))))


@given(st.sets(st.integers(0, 40), min_size=1), st.randoms(use_true_random=False))
def test_what_a_search_returns_was_seen_to_fail_whatever_the_answers(items, random):
    start, failing = tuple(sorted(items)), set()
    failing.add(start)

    def fails(question):
        assert question and set(question) <= items and list(question) == sorted(question)
        answer = question in failing or random.random() < 0.5
        failing.update({question} if answer else ())
        return answer

    for search in (crop, smallest, contiguous, one_minimal):
        assert drive(search(start), fails) in failing


@pytest.mark.parametrize("search", [crop, smallest, contiguous])
@settings(max_examples=40)
@given(st.integers(1, 2**14).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_culprit_costs_log2_n_and_one(search, case):
    n, culprit = case
    found, questions = asked(search(range(n)), lambda kept: culprit in kept)
    assert found == (culprit,) and len(questions) <= ceil(log2(n)) + 1


@settings(max_examples=20)
@given(st.sets(st.integers(0, 2**14 - 1), min_size=8, max_size=8))
def test_scattered_culprits_cost_log2_n_each(needed):
    found, questions = asked(smallest(range(2**14)), needed.issubset)
    assert found == tuple(sorted(needed)) and len(questions) <= 8 * (14 + 3)


@settings(max_examples=20)
@given(st.integers(0, 2**14 - 256))
def test_neighbours_cost_one_each(start):
    needed = set(range(start, start + 256))
    found, questions = asked(smallest(range(2**14)), needed.issubset)
    assert found == tuple(sorted(needed)) and len(questions) <= 256 + 2 * 14 + 2


@settings(max_examples=20)
@given(st.integers(0, 2**14 - 256))
def test_a_range_is_cropped_in_two_bisections(start):
    _, questions = asked(crop(range(2**14)), set(range(start, start + 256)).issubset)
    assert len(questions) <= 29


def test_lengths_that_fail_at_random_end_in_a_true_local_minimum():
    fails = lambda kept: len(kept) in (2, 3, 5, 6)
    for search in (crop, smallest, contiguous):
        kept = drive(one_minimal(drive(search(range(6)), fails)), fails)
        assert len(kept) == 2
