"""The runner never flatters: what breaks has failed, what says nothing has failed, what was not asked is no pass."""

import asyncio
import json
import logging
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
import torch

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.progress import Silence
from reprokit.smoke import junit
from reprokit.smoke.gate import Gate, Verdict
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.leakage import Leakage
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.shapes import Shapes
from reprokit.smoke.smoke import NAMES, PROVES, Report, chosen, smoke

from . import small

PASSED, FAILED, UNASKED = Verdict.PASSED, Verdict.FAILED, Verdict.NOT_APPLICABLE


class Says(Gate):
    """Whatever it is given."""

    name = "says"

    def __init__(self, *findings):
        self._findings = findings

    def look(self, subject):
        for finding in self._findings:
            if isinstance(finding, Exception):
                raise finding
            yield finding


GOOD = Says().passed("fine", "a", "b", number=1.0, odd=float("nan"))
BAD = Says().failed("not fine", "a <&> \x1b[31m", "b\x00", "mend it")
SKIPPED = Says().not_applicable("cannot", "there is none")


@pytest.mark.parametrize(
    ("findings", "passed"),
    [((GOOD,), True), ((GOOD, SKIPPED), True), ((SKIPPED,), False), ((GOOD, BAD), False), ((), False)],
)
def test_a_report_passes_where_something_was_asked_and_nothing_failed(plain, findings, passed):
    assert smoke(plain.subject(), [Says(*findings)]).passed is passed


def test_no_gates_are_no_pass(plain):
    assert not smoke(plain.subject(), []).passed


def test_a_gate_that_says_nothing_or_breaks_has_failed(plain):
    silent, broken = (smoke(plain.subject(), [Says(*said)]).findings for said in ((), (GOOD, ValueError("no\nluck"))))
    assert [one.verdict for one in silent] == [FAILED]
    assert [one.verdict for one in broken] == [PASSED, FAILED]
    assert "ValueError" in broken[1].observed and "no luck" in broken[1].observed


def raising(net, batch):
    raise RuntimeError(f"cannot take {batch['clip'].shape[0]} clips")


def test_a_step_that_raises_is_one_failure_with_its_place(plain):
    subject = plain.subject(lambda: plain.harness(raising))
    report = smoke(subject, [Numbers(), Gradients(), chosen(["resources"])[0]])
    failed = [one for one in report.findings if one.verdict is FAILED]
    assert [one.gate for one in failed] == ["numbers"]
    assert failed[0].observed.startswith("RuntimeError: cannot take 4 clips (")
    assert "raising" in failed[0].observed
    again = [one for one in report.findings if one.gate == "gradients"][-1]
    assert again.verdict is UNASKED
    assert "see numbers" in again.observed


@pytest.mark.parametrize("leaving", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_a_step_that_exits_is_a_failure_that_leaves_the_report(plain, tmp_path, leaving):
    def exiting(net, batch):
        raise leaving(0)

    report = smoke(plain.subject(lambda: plain.harness(exiting), out=tmp_path), [Numbers(), Gradients()])
    failed = [one for one in report.findings if one.verdict is FAILED]
    assert [one.gate for one in failed] == ["numbers"]
    assert failed[0].observed.startswith(f"{leaving.__name__}: 0 (")
    assert [gate for gate, _ in report.incidents] == ["numbers"] or report.uncaptured


def test_a_step_that_returns_a_tuple_is_a_failure_and_not_a_pass(plain):
    step = lambda net, batch: (net(batch["clip"].flatten(0, 1).float() / 255).mean(), 1)
    report = smoke(plain.subject(lambda: plain.harness(step)), [Shapes(), Numbers(), Gradients(), Leakage()])
    assert not report.passed
    assert any("tuple" in one.observed for one in report.findings if one.verdict is FAILED)


def test_generators_of_the_caller_are_left_where_they_were(plain):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    smoke(plain.subject(), [Numbers()])
    assert torch.equal(torch.rand(1), expected)


def test_batches_are_not_written_into(plain):
    def step(net, batch):
        batch["clip"].zero_()
        return net(batch["clip"].flatten(0, 1).float() / 255).mean()

    subject = plain.subject(lambda: plain.harness(step))
    smoke(subject, [Shapes(), Numbers(), Gradients()])
    assert torch.equal(subject.batches[0]["clip"], plain.clips(0))


def test_the_same_question_has_the_same_answer(mutants):
    subject = mutants.subject(config=mutants.small(drop=0.95))
    asked = lambda: [(one.check, one.observed, one.measured) for one in smoke(subject, [Numbers(), Leakage()]).findings]
    assert asked() == asked()


def test_a_failed_gate_leaves_an_incident_that_names_it(mutants, tmp_path):
    subject = replace(mutants.subject(mutants.cls_visible), out=tmp_path)
    report = smoke(subject, [Shapes(), Leakage()])
    ((gate, path),) = report.incidents
    incident = Incident.open(path)
    assert gate == "leakage" and "leakage" in path.name
    assert "smoke gate leakage" in (path / "logs" / "reason.txt").read_text()
    assert incident.manifest.signature is None
    assert torch.equal(incident.batch()["global"], subject.batches[0]["global"])


def test_a_step_that_fails_by_itself_keeps_its_signature(mutants, tmp_path):
    report = smoke(replace(mutants.subject(mutants.not_finite), out=tmp_path), [Numbers()])
    ((_, path),) = report.incidents
    assert Incident.open(path).manifest.signature.kind == "nonfinite_loss"
    assert "smoke gate numbers" in (path / "logs" / "reason.txt").read_text()


def test_each_failing_batch_of_a_gate_has_its_incident(mutants, tmp_path):
    subject = mutants.subject()
    dead = {**subject.batches[1], "local": torch.zeros_like(subject.batches[1]["local"])}
    report = smoke(replace(subject, batches=[subject.batches[0], dead], out=tmp_path), [Numbers()])
    ((_, path),) = report.incidents
    assert not Incident.open(path).batch()["local"].any()


def test_a_batch_that_a_gate_made_is_the_one_that_its_incident_holds(mutants, tmp_path):
    subject = mutants.subject(mutants.floats)
    made = {**subject.batches[0], "global": torch.full_like(subject.batches[0]["global"], float("nan"))}
    report = smoke(replace(subject, out=tmp_path), [Says(replace(BAD, batch=made))])
    ((_, path),) = report.incidents
    incident = Incident.open(path)
    assert incident.batch()["global"].isnan().all()
    assert incident.manifest.signature.kind == "nonfinite_loss"


def test_a_step_that_raises_on_what_a_gate_made_leaves_that_batch(mutants, tmp_path):
    class Asks(Says):
        def look(self, subject):
            batch = subject.batches[0]
            subject.harness().step({**batch, "local": batch["local"][:, :, :, :2]})  # a channel is missing

    report = smoke(replace(mutants.subject(), out=tmp_path), [Asks()])
    ((_, path),) = report.incidents
    incident = Incident.open(path)
    assert incident.manifest.signature.exception == "RuntimeError"
    assert incident.batch()["local"].shape[3] == 2


def test_why_a_failure_is_not_captured_is_said(plain, tmp_path):
    subject = plain.subject(batches=[], out=tmp_path)
    report = smoke(subject, [Says(BAD)])
    assert report.incidents == ()
    assert report.uncaptured == ("says: no incident, because the harness has no loader",)


def test_a_build_that_no_replay_can_find_is_said(plain, tmp_path):
    report = smoke(plain.subject(out=tmp_path), [Says(BAD)])  # its build is a lambda
    assert "no incident: BadInput" in report.uncaptured[0]


def test_what_reprokit_logs_meanwhile_is_not_on_the_screen(plain, capsys):
    class Logs(Says):
        def look(self, subject):
            logging.getLogger("reprokit").warning("overheard")
            yield GOOD

    smoke(plain.subject(), [Logs()])
    assert "overheard" not in "".join(capsys.readouterr())
    assert logging.getLogger("reprokit").handlers == []


def test_the_report_is_strict_json():
    text = json.dumps(Report(findings=(GOOD, BAD, SKIPPED)).to_json(), allow_nan=False)
    data = json.loads(text)
    assert data["passed"] is False
    assert data["counts"] == {"passed": 1, "failed": 1, "not_applicable": 1}
    assert data["findings"][0]["measured"] == {"number": 1.0, "odd": "nan"}
    assert "not accuracy" in data["proves"] and data["proves"] == PROVES


def test_junit_holds_each_finding_whatever_its_text(tmp_path):
    junit.write(Report(findings=(GOOD, BAD, SKIPPED)), "train.py:build", tmp_path / "deep" / "out.xml")
    suite = ET.fromstring((tmp_path / "deep" / "out.xml").read_bytes()).find("testsuite")
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped", "errors")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
        "errors": "0",
    }
    cases = suite.findall("testcase")
    assert [case.get("classname") for case in cases] == ["says"] * 3
    assert cases[1].find("failure").get("message") == "b?"
    assert "a <&> ?[31m" in cases[1].find("failure").text
    assert cases[2].find("skipped") is not None
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["out.xml"]


def test_gates_of_which_nothing_could_be_asked_are_told_with_their_reason():
    skipped = [replace(SKIPPED, gate=gate, observed=f"not applicable, because {why}") for gate, why in UNLIKE]
    report = Report(findings=(GOOD, SKIPPED, *skipped))
    assert report.passed
    assert report.not_asked == {"one": ["a", "c"], "two": ["b"]}
    assert [one["gate"] for one in report.to_json()["not_asked"]] == ["a", "c", "b"]
    properties = ET.fromstring(junit.xml(report, "train.py:build")).iter("property")
    told = [one.get("value") for one in properties if one.get("name") == "not asked"]
    assert told == ["a, c: one", "b: two"]


UNLIKE = [("a", "one"), ("b", "two"), ("a", "three"), ("c", "one")]


def test_junit_that_cannot_be_written_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="--junit"):
        junit.write(Report(findings=(GOOD,)), "x", tmp_path / "file" / "out.xml")


def test_a_gate_that_takes_long_says_what_it_does_meanwhile():
    class Noted(Silence):
        def show(self, what, done, total, note=""):
            shown.append((what, done, total, note))

    shown = []
    smoke(small.subject(batches=[], no_batches="none are asked"), chosen(["rehearsal", "shapes"]), Noted())
    assert [one[:3] for one in shown] == [("gate rehearsal", 0, 2), ("gate shapes", 1, 2)]
    assert "a fresh process imports" in shown[0][3] and shown[1][3] == ""


def test_gates_are_chosen_by_name():
    assert [gate.name for gate in chosen()] == list(NAMES[:6])
    assert [gate.name for gate in chosen(["leakage", "shapes"])] == ["shapes", "leakage"]
    assert [gate.name for gate in chosen(["overfit", "extremes"])] == ["overfit", "extremes"]
    assert [gate.name for gate in chosen(overfit=60, extremes=True)] == list(NAMES)
    with pytest.raises(BadInput, match="--only nonsense"):
        chosen(["nonsense"])
