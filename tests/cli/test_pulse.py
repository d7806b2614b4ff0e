"""A log shows life: a line now and then, never many, and none where a verb is quick."""

import io
import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from reprokit.cli import common
from reprokit.cli.pulse import EVERY, Pulse


@given(st.lists(st.floats(0, 3 * EVERY), max_size=30))
def test_two_lines_are_never_closer_than_every_and_silence_never_much_longer_than_the_looks(waits):
    now, said = [100.0], []
    pulse = Pulse(lambda line: said.append((now[0], line)), lambda: now[0])
    pulse.tell("reduce b", 0, None, "")
    for wait in waits:
        now[0] += wait
        pulse.look()
        assert now[0] - (said[-1][0] if said else 100.0) < EVERY
    times = [100.0, *(time for time, _ in said)]
    assert all(later - earlier >= EVERY for earlier, later in pairwise(times))


def test_a_line_says_what_is_under_way_how_far_it_is_and_since_when():
    now, said = [0.0], []
    pulse = Pulse(said.append, lambda: now[0])
    now[0] = 60.0
    pulse.look()  # nothing is under way
    pulse.tell("replay in docker", 3, 14, "2 failed")
    now[0] = 75.0
    pulse.look()
    assert said == ["replay in docker  3/14  2 failed  after 60 s", "replay in docker  3/14  2 failed  after 75 s"]


def test_without_a_terminal_it_is_told_on_stderr_and_with_one_it_is_drawn(monkeypatch, capsys):
    monkeypatch.setattr("reprokit.cli.pulse.EVERY", 0.0)
    with common.progress() as bars:
        common.Reporter(bars).show("reduce b", 21, None, "b 2 \x1b[2J[bold]")
    said = capsys.readouterr()
    assert said.out == "" and re.match(r"  reduce b  21  b 2 \\x1b\[2J\[bold\]  after \d+ s\n", said.err)
    monkeypatch.setattr(common, "err", Console(file=io.StringIO(), force_terminal=True))
    with common.progress() as bars:
        assert bars.pulse is None
