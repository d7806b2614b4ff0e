"""A twin without the data: the same failure, from noise, with nothing of the original left in it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.harness import take_state
from reprokit.incident import Draft, Incident
from reprokit.layout import Layout
from reprokit.reduce.isolation import NotReproduced
from reprokit.reduce.synthetic import describe, leaks, publish_synthetic, synthesise
from reprokit.report import synthetic as scripts
from reprokit.step import flags, rng
from reprokit.step.case import Case
from reprokit.step.evaluate import Session, evaluate
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

ZOO = Path(__file__).parents[1] / "zoo"
SECRET = "/data/clips/someone.mp4"


def bits(value):
    return json.dumps(tree.pack(value).data), [block.memory.tolist() for block in tree.pack(value).blocks]


def capture(folder, name):
    """A recipe's incident: a healthy step has not moved the weights, so what fails is what the batch brings."""
    source = folder / "repository"
    source.mkdir()
    for file in ("adapter.py", f"{name}.py"):
        (source / file).write_text((ZOO / file).read_text())
    config = {"recipe": name}
    harness = load_entrypoint("adapter.py:build", source)(config)
    recipe = load_entrypoint("adapter.py:load", source)(name)
    with Draft(folder) as draft:
        for file in source.iterdir():
            if file.is_file():
                draft.write_text(f"source/tree/{file.name}", file.read_text())
        draft.write_yaml("config.yaml", config)
        draft.write_json("command.json", {"argv": [], "cwd": ".", "path": []})
        draft.write_json("environment.json", {"variables": {"OMP_NUM_THREADS": "1"}})
        draft.write_json("flags.json", {**flags.take(), "device": "cpu"})
        draft.write_text("requirements.txt", "torch\n")
        draft.write_text("logs/stdout.txt", SECRET)
        draft.write_text("telemetry.jsonl", SECRET)
        draft.write_text("ranks/00/history.json", SECRET)
        draft.write_text("ranks/01/batch.json", SECRET)
        draft.write_tree("state", "state", {**take_state(harness), "loop": {"micro": 0}})
        draft.write_tree("ranks/00", "batch", recipe.make_batch(0) | {"paths": [SECRET] * recipe.B})
        draft.write_tree("ranks/00", "donor", recipe.make_donor() | {"paths": [SECRET] * recipe.B})
        draft.write_tree("ranks/00", "rng", rng.take())
        kind = Kind.NONFINITE_GRAD if recipe.TRUTH["kind"] == "nan_grad" else Kind.NONFINITE_LOSS
        return draft.publish(
            name,
            signature=Signature(kind=kind, where="loss" if kind is Kind.NONFINITE_LOSS else "backward"),
            step=2,
            entrypoint="adapter.py:build",
            layout=harness.layout,
            left_out=("something else",),
        )


def inline(incident, case):
    return evaluate(case, incident)


@pytest.mark.parametrize(
    ("recipe", "level"),
    [
        ("z01", "noise"),  # the mask is structure
        ("z03", "repeats"),
        ("z07", "flat"),
        ("z17", "special"),
        ("z26", "repeats"),
        pytest.param("z33", "repeats", marks=pytest.mark.slow),  # its loader has workers
        ("z51", "special"),
    ],
)
def test_the_twin_fails_in_the_same_way_and_holds_nothing_of_the_data(tmp_path, recipe, level):
    incident = capture(tmp_path, recipe)
    found = synthesise(incident, tmp_path / "out", inline)
    assert found.level == level and found.tries[-1].status == "FAIL" and found.tries[-1].donor == "PASS"
    assert not any(one.status == "FAIL" for one in found.tries[:-1])  # nothing coarser does
    assert [path.name for path in (tmp_path / "out").iterdir()] == [f"{recipe}-synthetic"]

    twin = Incident.open(found.incident.path)
    layout = Layout.parse(twin.manifest.layout)
    for old in (incident.batch(), incident.donor()):
        for new in (twin.batch(), twin.donor()):
            assert leaks(old, new, layout) == []
    for file in twin.path.rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    assert not any(path.startswith(("logs", "telem", "ranks/01", "ranks/00/hist")) for path in twin.manifest.files)

    with Session(twin) as session:
        outcome = session.evaluate(Case(incident=twin.path))
        assert session.evaluate(Case(incident=twin.path, content="donor")).status is Status.PASS
    assert outcome.status is Status.FAIL and outcome.signature == incident.manifest.signature
    assert outcome.fingerprint == twin.manifest.fingerprint and twin.manifest.symptoms == outcome.symptoms
    assert twin.manifest.parent == incident.manifest.id
    said = " ".join(twin.manifest.left_out)
    assert "something else" in said and "original weights" in said and "label (int64)" in said and level in said
    assert json.loads(json.dumps(found.to_json()))["level"] == level


@pytest.mark.slow
def test_one_process_evaluates_all_tries(tmp_path):
    incident = capture(tmp_path, "z26")
    with Worker(incident) as worker:
        found = synthesise(incident, tmp_path / "out", lambda _, case: worker.evaluate(case, "rebuild", timeout=120))
    again = inline(found.incident, Case(incident=found.incident.path))
    assert found.level == "repeats" and found.outcome.fingerprint == again.fingerprint


def test_the_script_makes_equal_bits_and_needs_nothing_of_ours(tmp_path):
    incident = capture(tmp_path, "z07")
    found = synthesise(incident, tmp_path / "out", inline)
    path = scripts.write(found.incident, tmp_path / "synthetic.py")
    text = path.read_text()
    assert "reprokit" not in text and SECRET not in text
    module = {"__name__": "synthetic"}
    exec(compile(text, path, "exec"), module)
    assert bits(module["make_batch"]()) == bits(found.incident.batch())
    assert bits(module["make_donor"]()) == bits(found.incident.donor())
    with pytest.raises(BadInput, match="does not exist yet"):
        scripts.write(found.incident, path)
    with pytest.raises(BadInput, match="not made from a recipe"):
        scripts.script(incident)


NAME = "\"\"\" + ''' \\ \n\u202e# {{ 7 * 7 }}\\"
HOSTILE = {NAME: torch.rand(4), "more": {NAME: torch.tensor([True]), "'''": "", "empty": ["", ""]}}


def test_names_in_a_batch_stay_data_in_the_script(tmp_path):
    incident = capture(tmp_path, "z17")
    recipe = describe(HOSTILE, Layout.parse({}))
    twin = publish_synthetic(incident, recipe, 0, tmp_path / "out")
    module = {"__name__": "synthetic"}
    exec(compile(scripts.script(twin), "synthetic.py", "exec"), module)
    assert bits(module["make_batch"]()) == bits(twin.batch()) and list(module["make_batch"]()) == list(HOSTILE)
    assert module["make_donor"]() is None


@pytest.mark.slow
def test_the_script_runs_alone_and_prints_shapes(tmp_path):
    incident = capture(tmp_path, "z03")
    twin = publish_synthetic(incident, describe(incident.batch(), Layout.parse(incident.manifest.layout)), 0, tmp_path)
    scripts.write(twin, tmp_path / "synthetic.py")
    command = [sys.executable, "-I", str(tmp_path / "synthetic.py")]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "batch.global torch.float32 [4, 4, 3, 8, 8]" in done.stdout and "donor NoneType" in done.stdout


def test_a_failure_that_noise_does_not_bring_is_said_in_one_line(tmp_path):
    incident = capture(tmp_path, "z03")
    calls = []

    def only_the_original(asked, case):
        calls.append(case.content)
        outcome = inline(incident, Case(incident=incident.path))
        return outcome if asked is incident else inline(asked, Case(incident=asked.path, content="donor"))

    with pytest.raises(NotReproduced, match=r"no twin made from noise .*noise PASS/PASS, .*content matters[^\n]*$"):
        synthesise(incident, tmp_path / "out", only_the_original, seeds=2)
    assert not (tmp_path / "out").exists()


def test_an_incident_that_passes_here_has_no_twin(tmp_path):
    incident = capture(tmp_path, "z03")
    passes = lambda asked, case: inline(asked, Case(incident=asked.path, content="donor"))
    with pytest.raises(NotReproduced, match="does not fail here"):
        synthesise(incident, tmp_path / "out", passes)


def test_a_donor_that_fails_makes_no_twin(tmp_path):
    """Unless the captured one fails as well: then the batch is not to blame, and the twin must say the same."""
    incident = capture(tmp_path, "z17")
    fails = inline(incident, Case(incident=incident.path))

    def all_twins_fail(asked, case):
        return fails if asked is not incident else inline(asked, case)

    with pytest.raises(NotReproduced, match="beside a healthy donor"):
        synthesise(incident, tmp_path / "out", all_twins_fail, seeds=1)
    found = synthesise(incident, tmp_path / "out", lambda asked, case: fails, seeds=1)
    assert found.level == "noise" and found.tries[0].donor == "FAIL"
