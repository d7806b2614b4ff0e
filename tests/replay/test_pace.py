from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.pace import gpu_hours, left, spoken


@given(st.floats(1, 100), st.integers(1, 50), st.integers(1, 8), st.integers(0, 50))
def test_attempts_in_waves_of_equal_length_are_foretold_exactly(each, done, room, more):
    total = done + more
    waves = lambda count: -(-count // room)
    elapsed = each * waves(done)
    assert abs(left(elapsed, done, total, room) - each * waves(more)) < 1e-6 * each * total


def test_the_first_of_a_wave_speaks_for_all_of_it():
    assert left(30.0, 1, 14, 2) == 30.0 * 7
    assert left(30.0, 14, 14, 2) == 0.0 and left(0.0, 0, 14, 2) == 0.0


def test_gpus_are_held_by_every_attempt_under_way():
    assert gpu_hours(3600, 14, 2, 4) == 8 and gpu_hours(1800, 1, 2, 1) == 0.5


def test_what_is_said_is_no_more_precise_than_it_is_known():
    assert [spoken(seconds) for seconds in (0.2, 59.6, 100, 600, 6000)] == ["1 s", "60 s", "2 min", "10 min", "1.7 h"]
