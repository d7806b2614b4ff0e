import importlib.util
from pathlib import Path
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from reprokit import reducing
from reprokit.replay.live import Live
from reprokit.replay.result import Replay
from reprokit.replay.sentence import sentence
from reprokit.replay.strata import Attempt
from reprokit.replay.verdict import at_most, interval, percent, rate_at_least, rate_below
from reprokit.report import texts
from reprokit.step.outcome import Outcome, Status

REPRODUCE = Path(__file__).parents[2] / "templates" / "bundle" / "reproduce.py"

def number(said):
    return float(said.removesuffix("%"))


@given(st.integers(1, 10**6))
def test_no_number_of_attempts_is_said_to_support_certainty(n):
    assert number(percent(rate_at_least(n))) < 100
    assert number(at_most(rate_below(n))) > 0
    assert number(percent(interval(n, n)[0])) < 100 and number(at_most(interval(0, n)[1])) > 0


@given(st.integers(2, 10**4).flatmap(lambda n: st.tuples(st.integers(1, n - 1), st.just(n))))
def test_what_has_failed_and_passed_is_said_to_fail_neither_never_nor_always(case):
    low, high = interval(*case)
    assert 0 < number(percent(low)) < 100 and number(at_most(high)) > 0
    assert 0 < number(percent(case[0] / case[1])) < 100


@given(st.floats(0.0051, 0.9949))
def test_all_other_rates_are_whole_percents(rate):
    assert percent(rate) == at_most(rate) == f"{rate:.0%}"
    assert [percent(one) for one in (0.0, 0.0014, 0.9996, 1.0)] == ["0%", "0.1%", "99.96%", "100%"]
    assert [at_most(one) for one in (0.0, 0.0004, 0.9996, 1.0)] == ["0%", "0.04%", "100%", "100%"]


def test_one_failure_of_five_is_said_to_happen_wherever_its_rate_is_said(tmp_path):
    outcomes = [Outcome(status=Status.FAIL), *[Outcome(status=Status.PASS)] * 4]
    attempts = tuple(Attempt(index=index, outcome=outcome) for index, outcome in enumerate(outcomes))
    replay = Replay(
        engine="process", asked=5, min_rate=0, stopped="asked", attempts=attempts, captured={}, folder=tmp_path
    )
    shown = []
    Live("process", room=1, gpus=0, say=shown.append, show=lambda *line: shown.append(line[-1]))(replay)
    spec = importlib.util.spec_from_file_location("reproduce", REPRODUCE)
    spec.loader.exec_module(bundled := importlib.util.module_from_spec(spec))
    assert "fails in 0.1% to 80% of attempts" in sentence(replay)
    assert "1 failed, 0.1% to 80%" in shown[0]
    assert "it fails in 0.1% to 80% of attempts" in texts.frequency(replay.to_json())
    assert "fails in 0.1% to 80% of attempts" in bundled.supports("FLAKY", fail=1, n=5, stable=1)
    assert reducing._note(SimpleNamespace(kept={}, rate=1 / 500, left=None)).endswith("fails in 0.2%")
