import pytest

from reprokit.replay import versions
from reprokit.step.outcome import Outcome, Status

CAPTURED = {"torch": "2.3.1+cu121", "python": "3.11.2"}


def ran(status=Status.PASS, **found):
    return Outcome(status=status, versions=CAPTURED | found)


def test_captured_versions_are_read_from_an_environment_that_may_be_anybodys():
    environment = {"torch": "2.3.1+cu121", "python": "3.11.2 (CPython)", "gpus": [{"driver": "550.54"}, {}]}
    assert versions.of(environment) == CAPTURED | {"driver": "550.54"}
    for odd in (None, [], {"torch": 3, "python": " ", "gpus": "x"}, {"gpus": [7]}, {"gpus": [{"driver": None}]}):
        assert versions.of(odd) == {}


@pytest.mark.parametrize(
    ("name", "here", "newer"),
    [
        ("torch", "2.10.0+cpu", True),
        ("torch", "2.3.1+cpu", False),
        ("torch", "2.2.0", False),
        ("torch", "nightly", False),
        ("python", "3.12.0", True),
    ],
)
def test_another_build_or_an_older_version_is_a_change_and_no_upgrade(name, here, newer):
    (change,) = versions.changes(CAPTURED, [ran(**{name: here}), ran(**{name: here}), ran()])
    assert (change.name, change.here, change.newer) == (name, here, newer)
    assert str(change) == f"{name} {here} (captured: {CAPTURED[name]})"


def test_what_an_attempt_does_not_say_is_no_change():
    assert versions.changes(CAPTURED, [Outcome(status=Status.PASS), ran()]) == ()


def test_gone_for_certain_only_where_the_captured_versions_still_fail():
    new, new_fails = ran(torch="2.9.0"), ran(Status.FAIL, torch="2.9.0")
    old_fails, old_passes, silent = ran(Status.FAIL), ran(), Outcome(status=Status.PASS)
    gone = lambda *outcomes: versions.gone(CAPTURED, outcomes)
    assert gone(new, new, silent) is None
    assert gone(new, old_fails) is True
    assert gone(new, old_passes) is False and gone(new, old_fails, old_passes) is False
    assert gone(new, new_fails, old_fails) is False and gone(old_passes) is False and gone() is False
