"""Gate zero."""

import sys

import pytest

from reprokit.capture import rehearsal
from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates import rehearsal as gate
from reprokit.smoke.gates.rehearsal import REPLAYS, RUNS, Rehearsal

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


@pytest.mark.slow
def test_a_step_replays_in_a_fresh_process_and_one_with_hidden_state_does_not(plain, mutants):
    found = plain.rows(Rehearsal(), mutants.subject())
    assert (found[RUNS].verdict, found[REPLAYS].verdict) == (PASSED, PASSED)
    assert found[REPLAYS].observed == "2 of 2 steps"
    found = plain.rows(Rehearsal(), mutants.subject(mutants.private_generator))
    assert found[REPLAYS].verdict is FAILED
    assert "private torch.Generator" in found[REPLAYS].observed


def test_no_news_is_no_replay(plain, mutants, monkeypatch):
    """A rehearsal that is never held is not one that found nothing."""
    monkeypatch.setattr(rehearsal.Rehearsals, "after", lambda self, *_: [])
    found = plain.rows(Rehearsal(), mutants.subject())[REPLAYS]
    assert found.verdict is FAILED
    assert "0 of 2" in found.observed


def test_what_a_rehearsal_names_is_what_the_row_says(plain, mutants, monkeypatch):
    monkeypatch.setattr(rehearsal, "rehearse", lambda write: ["a teacher moves"])
    found = plain.rows(Rehearsal(), mutants.subject())[REPLAYS]
    assert (found.verdict, found.lap) == (FAILED, 1)
    assert "a teacher moves" in found.observed


@pytest.mark.parametrize("mutant", ["detached_loss", "not_finite"])
def test_a_step_that_cannot_be_healthy_is_not_rehearsed(plain, mutants, mutant):
    found = plain.rows(Rehearsal(), mutants.subject(getattr(mutants, mutant)))
    assert (found[RUNS].verdict, found[REPLAYS].verdict) == (PASSED, UNASKED)


def test_several_ranks_are_not_rehearsed(plain, mutants, monkeypatch):
    monkeypatch.setattr(gate, "in_company", lambda: True)
    assert plain.rows(Rehearsal(), mutants.subject())[REPLAYS].verdict is UNASKED


def test_without_a_loader_it_is_not_asked(plain):
    assert {one.verdict for one in plain.rows(Rehearsal(), plain.subject(batches=[])).values()} == {UNASKED}


def test_a_build_that_no_process_can_import_leaves_the_gate_as_bad_input(plain):
    from reprokit.smoke.smoke import smoke

    report = smoke(plain.subject(), [Rehearsal()])
    assert not report.passed
    assert "no other process can import" in report.findings[-1].observed


def test_nothing_of_it_stays(plain, mutants, tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "rehearse", lambda write: [])
    monkeypatch.chdir(tmp_path)
    plain.rows(Rehearsal(), mutants.subject(mutants.not_finite))
    assert list(tmp_path.iterdir()) == []
    assert "mutants" in sys.modules
