from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.sentence import percent
from reprokit.replay.verdict import interval, rate_at_least, rate_below


@given(st.integers(1, 10**6))
def test_no_number_of_attempts_is_said_to_support_certainty(n):
    assert percent(rate_at_least(n)) != "100%" and float(percent(rate_at_least(n))[:-1]) < 100
    assert float(percent(rate_below(n))[:-1]) > 0
    low, high = interval(n, n)
    assert float(percent(low)[:-1]) < 100 and percent(high) == "100%"


@given(st.floats(0.0051, 0.9949))
def test_all_other_rates_are_whole_percents(rate):
    assert percent(rate) == f"{rate:.0%}"
    assert (percent(0), percent(1), percent(0.9996), percent(0.0004)) == ("0%", "100%", "99.96%", "0.04%")
