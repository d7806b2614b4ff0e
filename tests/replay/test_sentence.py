from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.sentence import at_least, at_most
from reprokit.replay.verdict import interval, rate_at_least, rate_below


@given(st.integers(1, 10**6))
def test_no_number_of_attempts_is_said_to_support_certainty(n):
    assert float(at_least(rate_at_least(n))[:-1]) < 100
    assert float(at_most(rate_below(n))[:-1]) > 0
    assert float(at_least(interval(n, n)[0])[:-1]) < 100 and float(at_most(interval(0, n)[1])[:-1]) > 0


@given(st.floats(0.0051, 0.9949))
def test_all_other_rates_are_whole_percents(rate):
    assert at_least(rate) == at_most(rate) == f"{rate:.0%}"
    assert [at_least(one) for one in (0.0, 0.0004, 0.9996, 1.0)] == ["0%", "0%", "99.96%", "100%"]
    assert [at_most(one) for one in (0.0, 0.0004, 0.9996, 1.0)] == ["0%", "0.04%", "100%", "100%"]
