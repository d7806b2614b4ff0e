"""What of a command is the failure, and what became of one that ended."""

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.replay.criterion import Ending, Exit, Hang, Metric, Output, conclude, parse
from reprokit.step.outcome import Outcome, Status

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("text", "criterion"),
    [
        ("exit=nonzero", Exit()),
        ("nonzero", Exit()),
        ("exit=1,134", Exit(codes=(1, 134))),
        ("exit=0", Exit(codes=(0,))),
        ("metric=loss>10", Metric(name="loss", how=">", bound=10.0)),
        ("metric=loss >= 1e3", Metric(name="loss", how=">=", bound=1000.0)),
        ("metric=train/acc<0.5", Metric(name="train/acc", how="<", bound=0.5)),
        ("metric=loss>-inf", Metric(name="loss", how=">", bound=-INF)),
        ("metric=loss", Metric(name="loss")),
        ("hang", Hang()),
        ("output=a=b>c", Output(pattern=re.compile("a=b>c"))),
    ],
)
def test_what_fails_is_read(text, criterion):
    assert parse(text) == criterion


@pytest.mark.parametrize(
    "text",
    ["", "exit", "exit=", "exit=1,", "exit=256", "exit=-1", "exit=one", "output=", "output=(", "metric=", "metric=>3",
     "metric=loss>", "metric=loss>ten", "metric=loss>nan", "metric=loss>1>2", "loss>10", "signal=9", "HANG"],
)  # fmt: skip
def test_what_nobody_understands_is_one_line(text):
    with pytest.raises(BadInput, match=f"--fails-on {re.escape(text)}: ") as refused:
        parse(text)
    assert "\n" not in str(refused.value)


@given(st.text(max_size=30))
def test_any_text_is_understood_or_refused(text):
    with suppress(BadInput):
        assert parse(text) == parse(text)


@pytest.mark.parametrize(
    ("fails_on", "ending", "status", "kind"),
    [
        ("exit=nonzero", Ending(code=0), Status.PASS, None),
        ("exit=nonzero", Ending(code=1), Status.FAIL, Kind.CRASH),
        ("exit=nonzero", Ending(code=139), Status.FAIL, Kind.CRASH),
        ("exit=3", Ending(code=1), Status.OTHER, Kind.CRASH),
        ("exit=3", Ending(code=3), Status.FAIL, Kind.CRASH),
        ("exit=nonzero", Ending(code=137), Status.INFRA, None),
        ("exit=137", Ending(code=137), Status.FAIL, Kind.CRASH),
        ("exit=nonzero", Ending(code=None, overdue="late"), Status.OTHER, Kind.HANG),
        ("hang", Ending(code=None, overdue="late"), Status.FAIL, Kind.HANG),
        ("hang", Ending(code=1), Status.OTHER, Kind.CRASH),
        ("output=bad", Ending(code=0, matched={"bad": "a bad line"}), Status.FAIL, Kind.EXCEPTION),
        ("output=bad", Ending(code=None, overdue="late", matched={"bad": "bad"}), Status.FAIL, Kind.EXCEPTION),
        ("output=bad", Ending(code=2), Status.OTHER, Kind.CRASH),
        ("output=bad", Ending(code=0), Status.PASS, None),
        ("metric=loss", Ending(code=0, metrics={"loss": NAN}), Status.FAIL, Kind.NONFINITE_LOSS),
        ("metric=loss", Ending(code=0, metrics={"loss": 1e9}), Status.PASS, None),
        ("metric=loss>10", Ending(code=0, metrics={"loss": INF}), Status.FAIL, Kind.LOSS_SPIKE),
        ("metric=loss>10", Ending(code=0, metrics={"loss": 10.0}), Status.PASS, None),
        ("metric=loss>10", Ending(code=0, metrics={"loss": NAN}), Status.PASS, None),
        ("metric=loss", Ending(code=1), Status.OTHER, Kind.CRASH),
        ("exit=nonzero", Ending(code=1, spoiled="the disk is full"), Status.INFRA, None),
    ],
)
def test_what_an_end_means(fails_on, ending, status, kind):
    outcome = conclude(ending, [parse(fails_on)])
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (status, kind)
    assert outcome.exit_code == ending.code and Outcome.from_json(outcome.to_json()).status is status


def test_one_of_several_is_enough():
    several = [parse("exit=3"), parse("metric=loss"), parse("hang")]
    assert conclude(Ending(code=0, metrics={"loss": NAN}), several).status is Status.FAIL
    assert conclude(Ending(code=None, overdue="late"), several).status is Status.FAIL
    assert conclude(Ending(code=4), several).status is Status.OTHER


def test_want_of_memory_is_told_from_a_kill():
    assert "out of memory" in conclude(Ending(code=137, starved=True), [Exit()]).detail
    assert "from outside" in conclude(Ending(code=137), [Exit()]).detail


def test_a_metric_that_nobody_tells_is_the_users_to_mend():
    with pytest.raises(BadInput, match="told no acc; print `acc: VALUE`"):
        conclude(Ending(code=0, metrics={"loss": 1.0}), [parse("metric=acc")])


def test_an_exception_at_the_end_of_the_output_is_told_from_another():
    log = 'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n{}: took 17 s\n'
    one, other = (conclude(Ending(code=1, log=log.format(name)), [Exit()]) for name in ("ValueError", "my.own.Error"))
    assert (one.signature.kind, one.signature.exception) == (Kind.EXCEPTION, "ValueError")
    assert other.signature.exception == "my.own.Error" and other.signature.message == "took # s"
    assert conclude(Ending(code=2, log=log), [Exit()]).signature.kind is Kind.CRASH
