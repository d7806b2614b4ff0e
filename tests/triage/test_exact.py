"""The arithmetic of few attempts, beside scipy's, and what it promises."""

import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from reprokit.triage.exact import ALPHA, fisher, holm

TABLE = st.tuples(st.integers(0, 14), st.integers(0, 14), st.integers(0, 14), st.integers(0, 14))


@given(TABLE)
def test_fisher_is_scipys(table):
    fail, passed, other_fail, other_passed = table
    expected = fisher_exact([[fail, passed], [other_fail, other_passed]]).pvalue
    assert fisher(fail, fail + passed, other_fail, other_fail + other_passed) == pytest.approx(expected, rel=1e-6)


@given(TABLE)
def test_which_setting_comes_first_does_not_matter(table):
    fail, passed, other_fail, other_passed = table
    one, other = (fail, fail + passed), (other_fail, other_fail + other_passed)
    assert fisher(*one, *other) == pytest.approx(fisher(*other, *one))
    assert fisher(passed, one[1], other_passed, other[1]) == pytest.approx(fisher(*one, *other))


@pytest.mark.parametrize("n", [3, 4, 6, 14])
def test_all_beside_none_is_the_least_likely_of_all(n):
    assert fisher(n, n, 0, n) == pytest.approx(2 / comb(2 * n, n))


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_keeps_the_order_and_lies_between_the_raw_and_bonferroni(values):
    adjusted = holm(values)
    assert all(p <= q <= min(1.0, p * len(values)) + 1e-12 for p, q in zip(values, adjusted))
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


def test_holm_of_an_example_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_where_nothing_differs_something_is_found_in_at_most_one_of_twenty():
    draw = random.Random(1)
    found = 0
    for _ in range(1000):
        rates = [draw.random() for _ in range(8)]
        counts = [[sum(draw.random() < rate for _ in range(6)) for _ in range(2)] for rate in rates]
        found += min(holm([fisher(one, 6, other, 6) for one, other in counts])) < ALPHA
    assert found / 1000 <= ALPHA
