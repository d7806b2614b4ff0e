"""Every message holds all of its parts, and nothing passes that was not answered."""

import json
import logging
import re
import subprocess

import numpy as np
import pytest
import torch

from reprokit import checks
from reprokit.checks import About, Answer, CheckFailed, check
from reprokit.checks.result import message
from reprokit.errors import BadInput


def lines_of(text):
    """The parts of a message that are not of a part of a combination, by name."""
    head, *rest = text.splitlines()
    return head, dict(re.fullmatch(r"  (\w+) +(.+)", line).groups() for line in rest if not line.startswith("    "))


def holds_its_parts(result, about):
    with pytest.raises(CheckFailed) as raised:
        check(result, about)
    head, parts = lines_of(str(raised.value))
    assert head == f"{result.name}: {result.answer}"
    assert {"condition", "observed", "expected", result.unit, "dataset", "seed", "version", "next"} <= set(parts)
    assert parts["condition"] == result.condition
    assert parts["observed"].startswith(result.observed)
    assert parts[result.unit] == str(result.n)
    assert (parts["dataset"], parts["seed"], parts["version"]) == ("three clips, v2", "1234", "abc123")
    assert parts["next"] == result.next_step
    return parts


def test_a_failure_says_all_that_a_person_needs(every_failure, about):
    result = every_failure()
    assert result.answer is Answer.FAILED
    holds_its_parts(result, about)


def test_data_that_cannot_tell_do_not_pass_and_say_why(every_unanswered, about):
    result = every_unanswered()
    assert result.answer is Answer.UNANSWERED and result.p_value is None
    holds_its_parts(result, about)


def test_nor_does_the_negation_of_what_data_cannot_tell(every_unanswered, about):
    holds_its_parts(checks.not_(every_unanswered()), about)


def test_nor_does_a_combination_with_it(every_unanswered, about):
    sure = checks.exact("one", 1, 1)
    assert checks.any_of(sure, every_unanswered()).answer is Answer.UNANSWERED
    assert checks.all_of(sure, every_unanswered()).answer is Answer.UNANSWERED


def test_what_was_observed_is_logged_on_success_too(every_pass, about, caplog):
    caplog.set_level(logging.INFO, "reprokit")
    result = every_pass()
    assert check(result, about) is result
    [record] = caplog.records
    said = record.getMessage()
    assert record.levelno == logging.INFO and "\n" not in said
    logged = json.loads(said.removeprefix("check "))
    assert logged == record.check
    assert (logged["check"], logged["answer"], logged["n"]) == (result.name, "PASSED", result.n)
    assert logged["unit"] == result.unit
    assert (logged["dataset"], logged["seed"], logged["version"]) == ("three clips, v2", 1234, "abc123")
    assert logged["condition"] == result.condition and logged["observed"] == result.observed
    assert result.measured or result.parts or result.name.startswith("not ")


def test_a_statistical_pass_says_what_it_does_not_show(every_pass):
    result = every_pass()
    for part in result.parts or [result]:
        assert part.limits or part.alpha is None


def test_a_failure_is_logged_as_a_warning(every_failure, about, caplog):
    with pytest.raises(CheckFailed):
        check(every_failure(), about)
    [record] = caplog.records
    assert record.levelno == logging.WARNING and record.check["answer"] == "FAILED"


def test_numbers_that_json_lacks_are_words(about, caplog):
    with pytest.raises(CheckFailed):
        check(checks.at_most("loss", float("inf"), 1.0, n=3), about)
    [record] = caplog.records
    assert record.check["measured"]["loss"] == "inf"
    json.dumps(record.check, allow_nan=False)


def test_parts_of_a_combination_have_theirs(about):
    result = checks.all_of(checks.exact("tokens", 1, 2), checks.at_least("accuracy", 0.5, 0.9, n=7))
    text = message(result, about)
    for part in result.parts:
        assert f"    {part.name}: FAILED" in text
        for value in (part.condition, part.observed, part.expected):
            assert value in text
    assert "      samples    7" in text


def test_what_is_compared_element_by_element_is_not_said_to_be_samples(about):
    clips = torch.zeros(4, 4)
    for result in (checks.close("time flip", clips, clips), checks.exact("time flip", clips, clips)):
        assert re.search("^  elements +16$", message(result, about), re.MULTILINE)
        few = checks.at_least("accuracy", 0.95, 0.9, n=7)
        assert re.search("^  samples +7$", message(checks.all_of(result, few), about), re.MULTILINE)
        assert "not time flip" in (text := message(checks.not_(result), about)) and "  elements   16" in text


def test_where_nan_is_why_there_is_no_answer_the_next_step_is_to_find_what_made_it(every_unanswered, about):
    result = every_unanswered()
    if re.search(r"\bnan|\binf", result.observed, re.IGNORECASE) and "distance" not in result.observed:
        assert re.match("find what (made the NaN|makes the first value that is not finite)", result.next_step), result
    assert not re.search("rtol|TF32", result.next_step)


def test_a_result_is_no_bool():
    with pytest.raises(BadInput, match="three answers"):
        assert checks.exact("one", 1, 2)
    with pytest.raises(BadInput, match="three answers"):
        assert not checks.exact("one", float("nan"), float("nan"))


def test_the_next_step_may_be_the_callers(about):
    with pytest.raises(CheckFailed, match="next       ask the loader"):
        check(checks.exact("one", 1, 2), about, next_step="ask the loader")


def test_no_value_can_break_its_line(about):
    result = checks.exact("a\nname\x1b[31m", "x\ny", "x\nz\x1b")
    text = message(result, About(dataset="clips\nseed 9", seed=1, version="v"))
    assert len(text.splitlines()) == 9 and "\x1b" not in text


def test_what_was_not_drawn_has_no_seed():
    assert "seed       none: nothing was drawn" in message(checks.exact("x", 1, 1), About(dataset="d", seed=None))


@pytest.mark.parametrize(("seed", "logged"), [(np.int64(3), 3), (torch.tensor(3), "tensor(3)"), ((1, 2), [1, 2])])
def test_a_seed_of_another_type_is_logged_too(seed, logged, caplog):
    with caplog.at_level(logging.INFO, "reprokit"):
        check(checks.exact("x", 1, 1), About(dataset="three clips", seed=seed, version="a"))
    assert caplog.records[-1].check["seed"] == logged


def test_a_dataset_must_be_named():
    with pytest.raises(BadInput, match="dataset"):
        About(dataset=" ", seed=0)


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def version_in(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return re.search("version +(.*)", message(checks.exact("x", 1, 1), About(dataset="d", seed=0)))[1]


def test_the_version_is_the_commit_by_default(tmp_path, monkeypatch):
    clean, changed, none = (tmp_path / name for name in ("clean", "changed", "none"))
    for folder in (clean, changed):
        folder.mkdir()
        (folder / "a.py").write_text("1")
        git(folder, "init", "-q"), git(folder, "add", "."), git(folder, "commit", "-qm", "x")
    (changed / "a.py").write_text("2")
    none.mkdir()
    assert re.fullmatch("[0-9a-f]{12}", version_in(clean, monkeypatch))
    assert re.fullmatch("[0-9a-f]{12} with changes", version_in(changed, monkeypatch))
    assert version_in(none, monkeypatch) == "not known: no commit here; give About(version=...)"
    none.rmdir()
    assert "the working directory is gone" in message(checks.exact("x", 1, 1), About(dataset="d", seed=0))
