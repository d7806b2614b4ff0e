"""How long an evaluation may take; a captured hang says how long its step may."""

import pytest

from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Manifest
from reprokit.step import deadline
from reprokit.step.deadline import Deadline, patience


def manifest(kind, **evidence):
    symptoms = (Symptom(kind=kind, where="forward", evidence=evidence),)
    signature = Signature(kind=kind, where="forward")
    return Manifest(signature=signature, symptoms=symptoms, step=1, entrypoint="a:b", layout={}, files={})


def test_a_hang_says_how_long_its_steps_may_take():
    assert patience(manifest(Kind.HANG, hang_after=60)) == 91
    assert patience(manifest(Kind.HANG, hang_after=60.0), steps=3) == 3 * 91
    assert patience(manifest(Kind.CRASH, hang_after=60)) is None


@pytest.mark.parametrize("told", ["60", True, float("nan"), float("inf"), -1, None, []])
def test_what_no_recorder_writes_is_no_deadline(told):
    assert patience(manifest(Kind.HANG, hang_after=told)) is None


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(deadline, "monotonic", lambda: now[0])
    return now


def test_the_step_s_own_deadline_runs_from_where_it_begins(clock, tmp_path):
    marker = tmp_path / "begun"
    one = Deadline(900.0, marker, 10.0)
    clock[0] += 500
    assert not one.passed()  # a slow build is no hang
    marker.touch()
    assert not one.passed()
    clock[0] += 9.9
    assert not one.passed()
    clock[0] += 0.2
    assert one.passed() and one.why() == "its step did not end within 10 s"


def test_the_whole_has_one_as_well(clock, tmp_path):
    one = Deadline(20.0, tmp_path / "begun", 100.0)
    (tmp_path / "begun").touch()
    clock[0] += 19
    assert not one.passed()
    clock[0] += 1
    assert one.passed() and "within 20 s" in one.why()


def test_without_a_step_nothing_hangs(clock, tmp_path):
    one = Deadline(5.0, tmp_path / "begun")
    clock[0] += 5
    assert one.passed() and one.why() == "did not come to its step within 5 s"
    assert not Deadline(None, tmp_path / "begun").passed()
