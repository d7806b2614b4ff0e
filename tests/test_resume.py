"""What a journal of a reduction belongs to, and which of its answers are still good."""

import re
from types import SimpleNamespace

import pytest
import torch

import reprokit
from reprokit import resume
from reprokit.errors import BadInput, Infrastructure, Interrupted
from reprokit.failure import Kind, Signature
from reprokit.pipeline import Options, Subject
from reprokit.reduce.isolation import NotReproduced, Unfinished
from reprokit.step.outcome import Outcome, Status

SUBJECT = Subject(incident=SimpleNamespace(manifest=SimpleNamespace(id="f00d"), path="incident"))


ASKED = {"rewind": 0, "modules": False, "baseline": None}


def header(subject=SUBJECT, asked=ASKED, **options):
    return resume.header(subject, Options(**options), asked)


def test_a_journal_is_another_one_where_answers_would_be_and_not_for_a_deadline(monkeypatch):
    same = header()
    assert header(timeout=3.0, n=7) == same
    assert header(match="x") != same != header(asked=ASKED | {"rewind": 2})
    assert header(Subject(incident=SUBJECT.incident, foreign=True)) != same
    assert (same["reprokit"], same["torch"]) == (reprokit.__version__, torch.__version__)
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert header()["torch"] == "9.9"


@pytest.mark.parametrize(
    ("kind", "seconds", "was", "good"),
    [
        (None, 5, 20, True),
        (None, 11, 20, False),  # would be a hang by now
        (None, 5, None, True),
        (Kind.HANG, 5, 20, True),
        (Kind.HANG, 5, 9, False),  # has not been given as long
        (Kind.HANG, 5, "x", False),
    ],
)
def test_another_deadline_asks_only_what_it_may_change(kind, seconds, was, good):
    signature = Signature(kind=kind, where="step") if kind else None
    outcome = Outcome(status=Status.OTHER, signature=signature, total_seconds=seconds)
    assert resume.good_again(outcome, was, 10.0) is good


@pytest.fixture
def subject(tmp_path):
    return Subject(incident=SimpleNamespace(manifest=SimpleNamespace(id="f00d"), name="x", path=tmp_path / "x"))


ENDS = [
    (KeyboardInterrupt, Interrupted, "interrupted; 1 answer kept in .*x.journal.jsonl: to go on from there"),
    (Unfinished("ended"), Unfinished, "ended; 1 answer kept in .*: to go on from there, .* larger --budget"),
    (Infrastructure("broke"), Infrastructure, "broke"),
    (NotReproduced("does not fail"), NotReproduced, "does not fail"),
    (BadInput("bad option"), BadInput, "bad option"),
]


def ends(subject, out, error, *, answered=True):
    with resume.journal(subject, out, Options(), ASKED) as journal:
        if answered:
            journal.answered("key", Outcome(status=Status.PASS).to_json())
        raise error


@pytest.mark.parametrize(("error", "becomes", "says"), ENDS)
@pytest.mark.parametrize("answered", [True, False])
def test_what_ends_it_says_what_is_kept_and_leaves_nothing_to_go_on_from_that_is_none(
    subject, tmp_path, error, becomes, says, answered
):
    with pytest.raises(becomes) as end:
        ends(subject, tmp_path / "out", error, answered=answered)
    kept = becomes is Infrastructure or (answered and becomes in (Interrupted, Unfinished))
    assert "\n" not in str(end.value) and (tmp_path / "out/x.journal.jsonl").exists() == kept
    assert re.search(says if answered else says.split(";")[0], str(end.value))
    assert answered or becomes not in (Interrupted, Unfinished) or "nothing is kept" in str(end.value)


def test_a_bad_option_met_on_the_way_does_not_cost_a_journal_that_goes_on(subject, tmp_path):
    for error, becomes in [(KeyboardInterrupt, Interrupted), (BadInput, BadInput)]:
        with pytest.raises(becomes):
            ends(subject, tmp_path, error)
    with resume.journal(subject, tmp_path, Options(), ASKED) as journal:
        assert len(journal.answers["key"]) == 2
