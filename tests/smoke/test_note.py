"""What the incident of a failed gate says can be read again, and makes nobody run anything but the gates."""

import pytest

from reprokit.smoke import note
from reprokit.smoke.gate import Finding, Verdict

FINDING = Finding(
    gate="gradients",
    check="encoder: reached",
    expected="some",
    observed="no\nne",
    verdict=Verdict.FAILED,
    advice="look",
)
AGAIN = ["reprokit", "smoke", "my train.py:build", "--config", "a $HOME.yaml", "--only", "gradients"]


def test_what_was_written_is_read():
    found = note.read(note.text([FINDING], AGAIN))
    assert found.gate == "gradients" and found.checks == ("encoder: reached",)
    assert found.said == ("encoder: reached: expected some; observed no ne", "advice: look")
    assert list(found.again) == AGAIN


def test_without_a_command_there_is_none():
    assert note.read(note.text([FINDING], [])).again == ()


@pytest.mark.parametrize("reason", ["", "SIGUSR1", "the loss looks odd\nsmoke gate gradients"])
def test_a_reason_of_somebody_else_is_no_note(reason):
    assert note.read(reason) is None


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf reprokit smoke",
        "reprokit run -- rm",
        "reprokit smoke a:b --junit /etc/passwd",
        "reprokit smoke a:b --only 'x' --out /",
        "reprokit smoke --junit=/etc/passwd",
        "reprokit smoke a:b --only",
        "reprokit smoke",
        "reprokit smoke 'a:b",
    ],
)
def test_a_command_that_does_more_than_ask_is_not_taken(command):
    assert note.read(f"smoke gate gradients\nagain: {command}").again == ()
