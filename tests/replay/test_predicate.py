import sys

import pytest

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.replay import predicate
from reprokit.step.outcome import Outcome, Status

SIGNATURE = Signature(kind=Kind.NONFINITE_LOSS, where="loss")


@pytest.fixture
def written(tmp_path, monkeypatch):
    """written(body) -> the predicate whose function has that body, by file; `mine:fails` beside it by module."""
    monkeypatch.chdir(tmp_path)

    def write(body, name="mine.py:fails"):
        (tmp_path / "mine.py").write_text(f"def fails(outcome):\n    {body}\n")
        return predicate.load(name)

    return write


def outcome(status, **losses):
    signature = None if status is Status.PASS else SIGNATURE
    return Outcome(status=status, signature=signature, losses=losses)


def test_its_word_narrows_and_widens(written):
    judged = written("return outcome['losses'].get('loss', 0) > 3").judged
    assert judged(outcome(Status.PASS, loss=4.0)).status is Status.FAIL
    assert judged(outcome(Status.PASS, loss=1.0)).status is Status.PASS
    assert judged(outcome(Status.FAIL, loss=1.0)).status is Status.OTHER
    assert judged(outcome(Status.OTHER, loss=4.0)).status is Status.FAIL


@pytest.mark.parametrize("status", [Status.INFRA, Status.INVALID])
def test_what_the_machinery_spoiled_it_is_not_asked_about(written, status):
    assert written("raise SystemError").judged(outcome(status)).status is status


def test_a_module_beside_where_the_user_stands_does_as_well(written, monkeypatch):
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    by_file, by_module = written("return True"), written("return True", "mine:fails")
    assert by_module.judged(outcome(Status.PASS)).status is Status.FAIL
    assert by_file.digest == by_module.digest != written("return False").digest


@pytest.mark.parametrize("name", ["mine", ":fails", "mine.py:", "mine.py:nothing", "no.py:fails", "no.where:fails"])
def test_what_is_no_function_is_refused_in_one_line(written, name):
    with pytest.raises(BadInput, match="--predicate") as refused:
        written("return True", name)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("body", "says"), [("return 1", "returned int"), ("1 / 0", "raised ZeroDivisionError")])
def test_one_that_gives_no_answer_ends_it(written, body, says):
    with pytest.raises(BadInput, match=says):
        written(body).judged(outcome(Status.FAIL))
