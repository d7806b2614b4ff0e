from itertools import chain
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.reduce.search import contiguous, crop, drive, minimal, once, one_minimal, smallest

law = settings(deadline=None)  # the machine may be busy
few = settings(deadline=None, max_examples=20)
placements = st.integers(1, 300).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=12))
)
hinted = placements.flatmap(lambda case: st.tuples(st.just(case), st.sets(st.integers(0, case[0] - 1), max_size=5)))


def asked(search, fails):
    """What a search finds, and the questions it asked."""
    questions = []
    found = drive(search, lambda question: questions.append(question) or fails(question))
    return found, questions


def is_one_minimal(kept, fails):
    return fails(kept) and (len(kept) == 1 or not any(fails(kept[:i] + kept[i + 1 :]) for i in range(len(kept))))


@law
@given(placements)
def test_crop_is_the_tightest_window(case):
    n, needed = case
    assert drive(crop(range(n)), needed.issubset) == tuple(range(min(needed), max(needed) + 1))


@law
@given(placements)
def test_smallest_is_exactly_what_is_needed_where_failing_is_monotone(case):
    n, needed = case
    assert drive(smallest(range(n)), needed.issubset) == tuple(sorted(needed))
    assert drive(contiguous(range(n)), needed.issubset) == tuple(sorted(needed))


@law
@given(st.sets(st.integers(0, 30), min_size=1), st.integers(2, 7))
def test_one_minimal_even_where_failing_is_not_monotone(items, modulus):
    fails = lambda kept: len(kept) % modulus == len(items) % modulus
    assert is_one_minimal(drive(one_minimal(sorted(items)), fails), fails)


@law
@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 40)), st.randoms(use_true_random=False))
def test_what_a_search_returns_was_seen_to_fail_whatever_the_answers(items, suspects, random):
    start, failing = tuple(sorted(items)), set()
    failing.add(start)

    def fails(question):
        assert question and set(question) <= items and list(question) == sorted(question)
        answer = question in failing or random.random() < 0.5
        failing.update({question} if answer else ())
        return answer

    for search in (crop, smallest, contiguous, one_minimal, minimal):
        assert drive(search(start), fails) in failing
        assert drive(search(start, multiple=3), fails) in failing
    for search in (crop, smallest, contiguous, minimal):
        assert drive(search(start, suspects=suspects), fails) in failing


@law
@given(st.integers(1, 14), st.sets(st.integers(1, 14)), st.booleans())
def test_lengths_that_fail_at_random_end_in_a_true_local_minimum(n, lengths, ordered):
    fails = lambda kept: len(kept) in lengths | {n}
    assert is_one_minimal(drive(minimal(range(n), ordered=ordered), fails), fails)


def test_a_clip_that_fails_with_2_3_and_5_frames_is_cut_to_2():
    fails = lambda kept: len(kept) in (2, 3, 5)
    assert len(drive(minimal(range(5), ordered=True), fails)) == 2


@law
@given(hinted, st.booleans())
def test_minimal_asks_nothing_twice_and_shows_that_each_element_matters(case, ordered):
    (n, needed), suspects = case
    found, questions = asked(minimal(range(n), ordered=ordered, suspects=suspects), needed.issubset)
    assert found == tuple(sorted(needed)) and len(questions) == len(set(questions))
    assert len(found) == 1 or all(found[:i] + found[i + 1 :] in questions for i in range(len(found)))


@law
@given(placements, st.integers(2, 9))
def test_blocks_stay_or_go_whole(case, multiple):
    n, needed = case

    def blocks(some):
        hit = {item // multiple for item in some}
        return tuple(item for item in range(n) if item // multiple in hit)

    whole = lambda question: question == blocks(question)
    for search in (smallest, contiguous, minimal):
        found, questions = asked(search(range(n), multiple=multiple), needed.issubset)
        assert found == blocks(needed) and all(map(whole, questions))
    window, questions = asked(crop(range(n), multiple=multiple), needed.issubset)
    assert window == blocks(range(min(needed), max(needed) + 1))
    assert all(question == tuple(range(question[0], question[-1] + 1)) for question in questions)
    assert all(map(whole, questions))


@law
@given(placements)
def test_the_right_suspects_are_enough_with_one_question(case):
    n, needed = case
    for search in (crop, smallest, contiguous):
        _, questions = asked(search(range(n), suspects=needed), needed.issubset)
        enough = sorted(needed) if search is smallest else range(min(needed), max(needed) + 1)
        _, without = asked(search(enough), needed.issubset)
        assert len(questions) <= 1 + len(without)


@law
@given(hinted)
def test_wrong_suspects_cost_two_questions(case):
    (n, needed), suspects = case
    if wrong := suspects - needed:
        _, questions = asked(smallest(range(n), suspects=wrong), needed.issubset)
        _, without = asked(smallest([item for item in range(n) if item not in wrong]), needed.issubset)
        assert len(questions) <= 2 + len(without)
        span = range(min(wrong), max(wrong) + 1)
        if not needed.issubset(span):
            _, questions = asked(crop(range(n), suspects=wrong), needed.issubset)
            _, without = asked(crop(range(n)), needed.issubset)
            assert len(questions) <= 2 + len(without) + 2  # each bisection of another length may take one more


def test_from_a_suspect_that_is_part_of_it_the_search_goes_outwards():
    needed = set(range(700, 708))
    found, questions = asked(smallest(range(2**14), suspects=[704]), needed.issubset)
    _, without = asked(smallest(range(2**14)), needed.issubset)
    assert found == tuple(range(700, 708)) and len(questions) < len(without)


def test_once_leaves_out_what_is_known():
    def ask():
        return [(yield (1,)), (yield (2,)), (yield (1,))]

    found, questions = asked(once(ask(), {(2,): True}), lambda _: False)
    assert found == [False, True, False] and questions == [(1,)]


@pytest.mark.parametrize("search", [crop, smallest, contiguous, minimal])
@few
@given(st.integers(1, 2**14).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))))
def test_one_culprit_costs_log2_n_and_one(search, case):
    n, culprit = case
    found, questions = asked(search(range(n)), lambda kept: culprit in kept)
    assert found == (culprit,) and len(questions) <= ceil(log2(n)) + 1


@few
@given(st.sets(st.integers(0, 2**14 - 1), min_size=8, max_size=8))
def test_scattered_culprits_cost_log2_n_each(needed):
    found, questions = asked(minimal(range(2**14)), needed.issubset)
    assert found == tuple(sorted(needed)) and len(questions) <= 8 * (14 + 3)


@few
@given(st.integers(0, 2**14 - 256))
def test_neighbours_cost_one_each_their_proof_included(start):
    needed = set(range(start, start + 256))
    found, questions = asked(minimal(range(2**14)), needed.issubset)
    assert found == tuple(sorted(needed)) and len(questions) <= 256 + 3 * 14


@few
@given(st.integers(0, 2**14 - 256))
def test_a_range_is_cropped_in_two_bisections(start):
    _, questions = asked(crop(range(2**14)), set(range(start, start + 256)).issubset)
    assert len(questions) <= 29


def test_the_same_answers_lead_to_the_same_questions():
    fails = lambda kept: set(chain(range(3, 6), (40, 90))).issubset(kept)
    assert asked(minimal(range(100)), fails) == asked(minimal(range(100)), fails)
