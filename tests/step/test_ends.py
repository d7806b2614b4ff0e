"""The end of a process without an outcome, as an outcome."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import Manifest
from reprokit.step.case import Case, Variant
from reprokit.step.ends import Death, conclude, shell_code
from reprokit.step.outcome import Status

CASE = Case(incident=Path("incident"))
CHANGED = replace(CASE, keep={"b": (1,)})
VARIANT = replace(CASE, variant=Variant(name="smaller", config={"depth": 1}))
SIGKILL, SIGSEGV = 137, 139


def captured(kind=Kind.NONFINITE_LOSS, **evidence):
    symptom = Symptom(kind=kind, where="step", evidence=evidence)
    return Manifest(
        id="", signature=Signature(kind=kind, where="step"), symptoms=(symptom,), step=1, entrypoint="train.py:build",
        layout={}, files={},
    )  # fmt: skip


def died(code, manifest=None, case=CASE, **how):
    return conclude(Death(code=code, **{"begun": True} | how), manifest or captured(), case)


@pytest.mark.parametrize(
    ("code", "manifest", "case", "how", "status", "kind"),
    [
        (SIGSEGV, captured(Kind.CRASH, signal="SIGABRT"), CASE, {}, Status.FAIL, Kind.CRASH),
        (SIGSEGV, captured(), CASE, {}, Status.OTHER, Kind.CRASH),
        (3, captured(Kind.CRASH), CASE, {}, Status.FAIL, Kind.CRASH),
        (SIGKILL, captured(), CASE, {}, Status.INFRA, None),
        (SIGKILL, captured(Kind.CRASH, signal="SIGSEGV"), CASE, {}, Status.INFRA, None),
        (SIGKILL, captured(Kind.CRASH, exit_code=3), CASE, {}, Status.INFRA, None),
        (SIGKILL, captured(Kind.CRASH, signal="SIGKILL"), CASE, {}, Status.FAIL, Kind.CRASH),
        (SIGKILL, captured(Kind.CRASH), CASE, {}, Status.FAIL, Kind.CRASH),
        (SIGKILL, captured(), CASE, {"starved": True}, Status.INFRA, None),
        (SIGKILL, captured(), CHANGED, {"starved": True}, Status.OTHER, Kind.OOM),
        (SIGKILL, captured(), VARIANT, {"starved": True}, Status.OTHER, Kind.OOM),
        (SIGKILL, captured(Kind.CRASH, signal="SIGKILL"), CASE, {"starved": True}, Status.INFRA, None),
        (SIGKILL, captured(Kind.OOM, signal="SIGKILL"), CASE, {"starved": True}, Status.FAIL, Kind.OOM),
        (SIGKILL, captured(Kind.OOM), CASE, {"starved": True, "limited": True}, Status.INFRA, None),
        (SIGSEGV, captured(Kind.OOM), CASE, {"starved": True}, Status.OTHER, Kind.CRASH),
        (0, captured(Kind.HANG), CASE, {"overdue": "its step did not end within 3 s"}, Status.FAIL, Kind.HANG),
        (0, captured(), CASE, {"overdue": "its step did not end within 3 s"}, Status.OTHER, Kind.HANG),
        (0, captured(Kind.HANG), CASE, {"overdue": "did not come", "begun": False}, Status.INFRA, None),
        (SIGSEGV, captured(Kind.CRASH), CASE, {"begun": False}, Status.INFRA, None),
        (SIGSEGV, captured(Kind.CRASH), VARIANT, {"begun": False}, Status.INVALID, None),
    ],
)  # fmt: skip
def test_each_end(code, manifest, case, how, status, kind):
    outcome = died(code, manifest, case, log="last words", **how)
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (status, kind)
    assert outcome.detail.endswith("\nlast words") and not outcome.detail.startswith("\n")


def test_a_signal_is_named():
    assert "killed by SIGSEGV in the step" in died(SIGSEGV).detail and "exited with 3" in died(3).detail
    assert "exited with 255" in died(255).detail


@given(st.integers(0, 255), st.booleans(), st.booleans())
def test_what_did_not_come_to_its_step_is_never_the_failure(code, starved, overdue):
    outcome = died(code, captured(Kind.CRASH), begun=False, starved=starved, overdue="late" * overdue)
    assert outcome.status is Status.INFRA and outcome.signature is None


@given(st.integers(-64, 255))
def test_codes_of_shells_keep_codes_and_signals_apart_as_far_as_they_can(code):
    assert shell_code(code) == (code if code >= 0 else 128 + abs(code))
