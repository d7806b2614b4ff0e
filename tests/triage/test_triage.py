"""`reprokit triage` on real incidents: what decides is named, with counts, and what cannot be asked says why."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from reprokit import pipeline
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.pipeline import Options, Subject
from reprokit.progress import Silence
from reprokit.replay.engines.inline import Inline
from reprokit.step.case import Case
from reprokit.triage.changes import Subject as Known
from reprokit.triage.counterfactuals import known
from reprokit.triage.factors import Seen
from reprokit.triage.triage import GROUPS, check, triage

HASHED = """
import torch
from torch import nn

import reprokit


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)

    def step(batch):
        first = next(iter({f"view{i}" for i in range(4)}))
        return {"loss": (net(batch["x"]) / (first not in ("view0", "view1"))).pow(2).mean()}

    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), 1e-2), step=step,
                            layout={"x": "b d"})


if __name__ == "__main__":
    with reprokit.Recorder(build({}), build=build, config={}, out="incidents", rehearse=False) as recorder:
        recorder.step({"x": torch.ones(4, 4)})
"""


def found(incident, **options):
    with Inline(incident) as engine:
        return triage(incident, Case(incident=incident.path), engine, **options)


QUIET = ("rng", "hashseed", "threads", "deterministic", "autocast", "clock", "workers")


def test_a_mask_that_random_numbers_draw_is_named(captured):
    told = found(captured("z36"), only=QUIET)
    assert told.verdict == "REPRODUCIBLE" and told.part == "factors"
    [rng] = told.decides
    assert rng.factor.name == "rng" and rng.contrast.controls and "RNG" in told.answer()
    assert "the captured state" in told.answer()
    assert told.difference.operation.startswith("aten.rand.default") and "z36.py" in told.difference.operation


def test_what_no_seed_controls_is_said_to_be_so(captured, monkeypatch):
    """The recipe asks the operating system for chance. Here a generator that nobody else knows stands in for it, so
    that attempts are as many of each kind in every run of this test."""
    chance = random.Random(0)
    monkeypatch.setattr(random, "SystemRandom", lambda: chance)
    told = found(captured("z32"), only=QUIET, n=8)
    assert told.verdict == "FLAKY" and told.answer() == "no factor tried controls it" and not told.decides
    assert told.difference.operation.startswith("aten.add.Tensor") and told.difference.same_way
    reasons = {finding.factor.name: finding.why_not for finding in told.findings}
    assert "draws nothing" in reasons["rng"] and "inline" in reasons["hashseed"] and reasons["workers"]


@pytest.mark.slow  # here Hypothesis looks at the clock as well, now and then
def test_a_rate_by_the_clock_is_named(captured):
    subject, options = Subject(incident=captured("z48")), Options(engine="fork", inner="process", n=4)
    told = pipeline.triage(subject, options, Silence(), only=("clock",), part="factors")
    assert [finding.factor.name for finding in told.decides] == ["clock"] and told.decides[0].contrast.controls


def test_an_overflow_in_float16_vanishes_in_float32(captured):
    told = found(captured("z10"))
    assert told.part == "counterfactuals" and told.verdict == "REPRODUCIBLE"
    rows = {row.change.changed: row for row in told.rows}
    float32 = rows["mixed precision: all of it in float32"]
    assert float32.outcome == "passes 6/6" and float32.cured and "float32" in float32.suggestion
    assert rows["inputs: entry global scaled into 0 to 1"].cured and "1498" in float32_range(rows)
    assert rows["inputs: entry locals scaled into 0 to 1"].outcome == "fails 1/1"
    assert rows["fresh state: the same batch on a model that was just built"].tally.fail == 1
    assert "one process" in rows["distributed synchronisation: each rank keeps its own gradients"].why_not
    assert float32.suggestion in told.suggestions and told.answer().startswith("it passes with inputs")
    groups = list(dict.fromkeys(row.change.group for row in told.rows))
    assert groups == list(GROUPS)
    assert json.loads(json.dumps(told.to_json(), allow_nan=False))["changes"][0]["changed"].startswith("inputs:")


def float32_range(rows):
    return rows["inputs: entry global scaled into 0 to 1"].follows


def test_where_code_or_weights_fail_by_themselves_that_is_what_follows(captured):
    told = found(captured("z25"), only=("donor", "fresh", "precision"))
    donor, fresh = (row for row in told.rows if row.change.group in ("donor", "fresh"))
    assert "no donor" in donor.why_not and fresh.tally.fail == 1 and "by themselves" in fresh.follows
    assert not told.suggestions and told.answer() == "it fails in spite of all 4 changes"


def test_too_few_attempts_are_no_answer(captured):
    told = found(captured("z10"), only=("precision", "donor"), n=4)
    assert told.answer().startswith("4 of 4 changes may help") and not told.suggestions


def test_changes_that_a_step_never_comes_to_are_not_asked(captured):
    incident = captured("z10")
    changes = known(replace(Known.of(incident, Case(incident=incident.path), SEEN), back=0, donor=False))
    reasons = {change.changed: change.why_not for change in changes}
    late = [why for changed, why in reasons.items() if changed.startswith(("learning rate", "clipping"))]
    assert len(late) == 4 and all("before there are gradients" in why for why in late)
    assert "no donor" in reasons["donor: the last healthy batch on the same state"]


SEEN = Seen(random=False, compiled=False, engine="inline")


def test_names_of_one_part_say_which_and_of_the_other_part_are_refused(make_incident):
    incident = make_incident()
    assert found(incident, only=("precision",), n=4).part == "counterfactuals"
    told = found(incident, only=("tf32",), n=4)
    assert told.part == "factors" and told.answer() == "no factor could be tried"
    with pytest.raises(BadInput, match="--only precision: nothing of --part factors"):
        check(("precision",), 6, "factors")  # and of both parts it is:
    check(("precision", "rng"), 6, "factors")


@pytest.mark.parametrize(("only", "n", "says"), [(("nothing",), 6, "unknown"), ((), 3, "at least 4")])
def test_what_cannot_be_asked_is_refused(only, n, says):
    with pytest.raises(pipeline.BadInput, match=says):
        check(only, n)


def test_for_people_the_answer_comes_first_and_for_programs_one_object(captured, cli):
    incident = captured("z10")
    words = ["triage", incident.path, "--engine", "inline", "--only", "precision,eager,distributed", "-n", "5"]
    code, out, _ = cli(*words)
    lines = out.splitlines()
    assert code == 0 and lines[0].startswith("nonfinite_loss at loss")
    assert lines[1].startswith("it passes with mixed precision: all of it in float32")
    assert "changed experiment" in out and "not applicable, because the step ran in one process: distributed" in out
    assert any(line.startswith("try: in float32") for line in lines) and lines[-1].startswith("next: reprokit locate")
    code, out, _ = cli(*words, "--json")
    told = json.loads(out)
    assert code == 0 and told["part"] == "counterfactuals" and told["verdict"] == "REPRODUCIBLE" and told["suggestions"]


@pytest.mark.parametrize(
    ("words", "says"), [(["--part", "x"], "one of factors"), (["--only", "x"], "unknown"), (["-n", "2"], "at least 4")]
)
def test_words_that_mean_nothing_are_one_line(captured, cli, words, says):
    code, _, err = cli("triage", captured("z10").path, "--engine", "inline", *words)
    assert code == 2 and says in err and len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_a_failure_that_depends_on_the_hash_seed_alone_is_named(tmp_path, monkeypatch):
    """Each hash seed has an interpreter of its own, and attempts at it are forks: a tenth of the time."""
    monkeypatch.setattr("reprokit.triage.factors.HASH_SEEDS", ("0", "3"))  # one fails, one passes
    (tmp_path / "hashed.py").write_text(HASHED)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONHASHSEED", None)
    for _ in range(40):
        subprocess.run([sys.executable, "hashed.py"], cwd=tmp_path, env=env, capture_output=True, timeout=120)
        if (tmp_path / "incidents").is_dir():
            break
    [path] = (tmp_path / "incidents").iterdir()
    subject = Subject(incident=Incident.open(path))
    options = Options(engine="fork", inner="process", n=4)
    told = pipeline.triage(subject, options, Silence(), only=("hashseed",))
    [hashseed] = told.decides
    assert hashseed.factor.name == "hashseed" and hashseed.contrast.controls
    assert "hash seed" in told.answer() and "hashed.py" in told.difference.operation
