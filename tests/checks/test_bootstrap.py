"""Intervals cover as often as they say, and are those of scipy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprokit.checks.bootstrap import _place, spread

MEAN = lambda values: float(values.mean())
DRAWN = {
    "normal": (lambda draw, n: draw.normal(size=n), 0.0),
    "exponential": (lambda draw, n: draw.exponential(size=n), 1.0),
    "accuracy": (lambda draw, n: (draw.random(n) < 0.9).astype(float), 0.9),
}


@pytest.mark.slow
@pytest.mark.parametrize(("draw", "truth"), DRAWN.values(), ids=DRAWN)
def test_an_interval_of_95_percent_covers_that_often(draw, truth):
    """Of 50 samples. The bootstrap is an approximation: a percent or two is missing where they are skewed."""
    generator = np.random.default_rng(1)
    covered = shown = 0
    for seed in range(400):
        found = spread(draw(generator, 50), MEAN, resamples=400, seed=seed)
        covered += found.quantile(0.025) <= truth <= found.quantile(0.975)
        shown += found.below(truth) > 0.95
    assert 0.91 <= covered / 400 <= 0.985
    assert shown / 400 <= 0.085


@pytest.mark.parametrize("statistic", [np.mean, np.std])
def test_the_interval_is_scipys(statistic):
    values = np.random.default_rng(3).exponential(size=60)
    found = spread(values, statistic, resamples=4000, seed=1)
    theirs = stats.bootstrap(
        (values,), statistic, n_resamples=4000, method="BCa", rng=np.random.default_rng(2)
    ).confidence_interval
    assert found.quantile(0.025) == pytest.approx(theirs.low, abs=0.2 * found.error)  # draws differ
    assert found.quantile(0.975) == pytest.approx(theirs.high, abs=0.2 * found.error)


def test_the_error_is_that_of_a_mean():
    values = np.random.default_rng(3).exponential(size=60)
    found = spread(values, MEAN, resamples=4000, seed=1)
    assert found.error == pytest.approx(float(np.std(values) / 60**0.5), rel=0.05)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.03, 0.97))
def test_a_quantile_read_backwards_is_its_level(seed, level):
    values = np.random.default_rng(seed).exponential(size=40)
    found = spread(values, MEAN, resamples=500, seed=seed)
    assert found.below(found.quantile(level)) == pytest.approx(level, abs=0.02)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.floats(-1, 4), st.floats(-1, 4))
def test_confidence_grows_with_the_bound(seed, one, other):
    found = spread(np.random.default_rng(seed).exponential(size=40), MEAN, resamples=200, seed=seed)
    low, high = sorted((one, other))
    assert 0 <= found.below(low) <= found.below(high) <= 1


@given(st.lists(st.integers(0, 5), min_size=2, max_size=50), st.integers(0, 5))
def test_ties_do_not_lean_to_either_side(draws, value):
    """An accuracy of few samples is one of few values: at least so much right is at most so much wrong."""
    draws = np.array(draws, float)
    assert _place(draws, value) == pytest.approx(-_place(-draws, -value))


def test_the_same_sample_gives_the_same_answer():
    values = np.random.default_rng(3).normal(size=60)
    one, other = (spread(values, MEAN, resamples=300, seed=5) for _ in range(2))
    assert (one.draws == other.draws).all() and one.acceleration == other.acceleration


def test_blocks_of_a_large_sample_give_the_acceleration_of_single_ones():
    values = np.random.default_rng(3).exponential(size=2000)
    exact = float(stats.skew(values)) / (6 * 2000**0.5)
    assert spread(values, MEAN, resamples=50, seed=1).acceleration == pytest.approx(exact, abs=0.004)


def test_the_generators_of_the_test_are_left_alone():
    np.random.seed(1)
    before = np.random.get_state()[1].copy()
    spread(np.arange(40.0), MEAN, resamples=50, seed=0)
    assert (np.random.get_state()[1] == before).all()
