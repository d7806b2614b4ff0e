"""A failing step becomes an incident that replays bit for bit; a healthy run is left alone."""

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

import reprokit
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

pytestmark = pytest.mark.slow

ZOO = Path(__file__).parents[1] / "zoo"
RECIPES = ["z01", "z03", "z04", "z08", "z14", "z17", "z19", "z23", "z26", "z31", "z37", "z44", "z52"]
PRELUDE = "import torch, reprokit\nfrom torch import nn\n"


def script(folder, body, name="train.py"):
    """A user's training script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(PRELUDE + textwrap.dedent(body))
    return folder / name


def run(path, *arguments, **env):
    return subprocess.run(
        [sys.executable, path.name, *arguments], cwd=path.parent, capture_output=True, text=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1", **env}, check=False,
    )  # fmt: skip


def captured(folder):
    [path] = (folder / "incidents").iterdir()
    return reprokit.Incident.open(path)


def replayed(incident):
    with Worker(incident) as worker:
        return worker.evaluate(Case(incident=incident.path), "process", timeout=120)


def captures_recipe(name, tmp_path):
    shutil.copy(ZOO / "adapter.py", tmp_path)
    shutil.copy(ZOO / f"{name}.py", tmp_path)
    (tmp_path / "go.py").write_text(f"import adapter\nadapter.main('{name}', 'incidents', rehearse=False)\n")
    done = run(tmp_path / "go.py")
    assert done.returncode == 0, done.stderr
    return captured(tmp_path)


TRAIN = """
def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    def step(batch):
        out = net(batch["x"])
        return {"loss": out.pow(2).mean(), "mean": out.mean()}
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={"x": "b d"})

def batches():
    for i in range(6):
        x = torch.rand(4, 4)
        if i == 4:
            x[2, 1] = float("nan")
        yield {"x": x, "names": ["a", "b", "c", "d"]}

if __name__ == "__main__":
    config = {"seed": 3}
    with reprokit.Recorder(build(config), build=build, config=config, rehearse=False) as recorder:
        for batch in batches():
            print("step", recorder.steps + 1)
            recorder.step(batch)
"""


def test_a_nan_is_captured_at_its_step_and_replays_bit_for_bit(tmp_path):
    done = run(script(tmp_path, TRAIN))
    incident = captured(tmp_path)
    manifest = incident.manifest
    assert "IncidentCaptured: step 5: nonfinite_loss at mean; captured in" in done.stderr
    assert (manifest.signature.kind, manifest.step, manifest.entrypoint) == (Kind.NONFINITE_LOSS, 5, "train.py:build")
    assert [s.kind for s in manifest.symptoms] == [Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM]
    assert manifest.commit is None
    assert incident.batch()["x"][2, 1].isnan() and incident.batch()["names"] == ["a", "b", "c", "d"]
    assert incident.donor()["x"].isfinite().all()
    assert (incident.path / "logs" / "stdout.txt").read_text().splitlines()[-1] == "step 5"
    outcome = replayed(incident)
    assert outcome.status is Status.FAIL, outcome.detail
    assert outcome.fingerprint == manifest.fingerprint and len(outcome.fingerprint) == 3


def test_a_healthy_run_writes_nothing(tmp_path):
    done = run(script(tmp_path, TRAIN.replace("i == 4", "i == 9")))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "incidents").exists()


def test_an_exception_is_raised_as_itself_with_a_note(tmp_path):
    done = run(script(tmp_path, TRAIN.replace('x[2, 1] = float("nan")', "x = torch.rand(4, 5)")))
    assert "RuntimeError: mat1 and mat2 shapes" in done.stderr and "reprokit captured this step in " in done.stderr
    signature = captured(tmp_path).manifest.signature
    assert (signature.kind, signature.where, signature.exception) == (Kind.EXCEPTION, "forward", "RuntimeError")
    assert signature.function == "train.py:step"
    outcome = replayed(captured(tmp_path))
    assert outcome.status is Status.FAIL and outcome.signature == signature


WATCH = TRAIN.replace(
    "            recorder.step(batch)\n",
    """            with recorder.watch(batch) as watch:
                losses = harness.step(batch)
                losses["loss"].backward()
                harness.optimizer.step()
                harness.optimizer.zero_grad()
                watch.losses(losses)
""",
).replace("with reprokit.Recorder(build(config),", "harness = build(config)\n    with reprokit.Recorder(harness,")


def test_a_loop_of_ones_own_gives_the_same_incident(tmp_path):
    run(script(tmp_path / "own", WATCH))
    run(script(tmp_path / "ours", TRAIN))
    own, ours = captured(tmp_path / "own").manifest, captured(tmp_path / "ours").manifest
    assert own.fingerprint == ours.fingerprint and own.signature == ours.signature and own.symptoms == ours.symptoms
    assert replayed(captured(tmp_path / "own")).fingerprint == own.fingerprint


def test_a_step_that_optimizes_by_itself(tmp_path):
    manual = TRAIN.replace(
        '        return {"loss"',
        '        loss = out.pow(2).mean(); opt.zero_grad(); loss.backward(); opt.step()\n        return {"loss"',
    )
    manual = manual.replace(
        "    def step(batch):", "    opt = torch.optim.AdamW(net.parameters())\n    def step(batch):"
    )
    manual = manual.replace(
        "optimizer=torch.optim.AdamW(net.parameters())", "optimizer=opt, automatic_optimization=False"
    )
    run(script(tmp_path, manual))
    incident = captured(tmp_path)
    assert replayed(incident).fingerprint == incident.manifest.fingerprint
    assert len(incident.manifest.symptoms) == 3


def test_accumulation_is_captured_between_optimizer_steps(tmp_path):
    run(script(tmp_path, TRAIN.replace("layout=", "accumulate=3, layout=")))  # the NaN comes at the second of three
    incident = captured(tmp_path)
    outcome = replayed(incident)
    assert outcome.fingerprint == incident.manifest.fingerprint and outcome.status is Status.FAIL
    assert incident.state()["gradients"] and incident.state()["loop"] == {"micro": 1}


@pytest.mark.parametrize("name", RECIPES)
def test_known_mechanisms_are_captured_with_their_kind_and_replay(tmp_path, name):
    kinds = {"nan_loss": Kind.NONFINITE_LOSS, "nan_grad": Kind.NONFINITE_GRAD, "nan_param": Kind.NONFINITE_PARAM}
    text = (ZOO / f"{name}.py").read_text()
    kind = text.partition('kind="')[2].partition('"')[0]
    incident = captures_recipe(name, tmp_path)
    expected = {"z44": Kind.OOM}.get(name) or (Kind.EXCEPTION if kind.startswith("exception") else kinds[kind])
    assert expected in [s.kind for s in incident.manifest.symptoms]
    outcome = replayed(incident)
    assert outcome.status is Status.FAIL, outcome.detail
    assert outcome.fingerprint == incident.manifest.fingerprint


def local_build():
    def build(config):
        return None

    return build


def harness():
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return reprokit.Harness(
        modules={"net": net}, optimizer=optimizer, step=lambda b: net(b["x"]).mean(), layout={"x": "b d"}
    )


def build_nothing(config):
    return harness()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"build": local_build()}, "local_build.<locals>.build, which no other process can import"),
        ({"build": lambda config: None}, "lambda"),
        ({"config": {"model": object()}}, "config holds what YAML cannot"),
        ({"on_failure": "explode"}, "on_failure='explode'"),
    ],
)
def test_what_no_replay_could_use_is_refused_at_once(tmp_path, options, says):
    with pytest.raises(BadInput, match=says):
        reprokit.Recorder(harness(), **{"build": build_nothing, "config": {}, "out": tmp_path} | options)


def test_a_layout_that_does_not_fit_is_said_before_the_first_step(tmp_path):
    recorder = reprokit.Recorder(harness(), build=build_nothing, config={}, out=tmp_path)
    with pytest.raises(BadInput, match="x"):
        recorder.step({"x": torch.ones(2, 2, 2)})


def test_an_unwritable_folder_leaves_training_alone(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with reprokit.Recorder(
        harness(), build=build_nothing, config={}, out=tmp_path / "file", rehearse=False
    ) as recorder:
        for value in (1.0, float("nan"), float("nan")):
            recorder.step({"x": torch.full((2, 2), value)})
    assert recorder.incidents == [] and recorder.steps == 3
    assert len([r for r in caplog.records if "no incident could be written" in r.message]) == 1


def test_a_state_that_cannot_be_taken_leaves_training_alone(tmp_path, caplog):
    import threading

    class Locked:
        def state_dict(self):
            return {"lock": threading.Lock()}

        def load_state_dict(self, state): ...

    locked = harness()
    locked.extra_state = {"locked": Locked()}
    with reprokit.Recorder(locked, build=build_nothing, config={}, out=tmp_path / "out") as recorder:
        for value in (1.0, float("nan")):
            recorder.step({"x": torch.full((2, 2), value)})
    assert recorder.incidents == [] and recorder.steps == 2
    [line] = recorder.findings
    assert line.startswith("what the step starts from cannot be taken: TypeError")


def test_an_exception_that_cannot_say_what_it_is_is_still_raised_as_itself(tmp_path):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    mute = harness()

    def step(batch):
        raise Mute

    mute.step = step
    with reprokit.Recorder(mute, build=build_nothing, config={}, out=tmp_path) as recorder, pytest.raises(Mute):
        recorder.step({"x": torch.ones(2, 2)})
    assert len(recorder.incidents) == 1


def test_a_step_inside_a_step_is_refused(tmp_path):
    recorder = reprokit.Recorder(harness(), build=build_nothing, config={}, out=tmp_path, rehearse=False)
    with recorder.watch({"x": torch.ones(2, 2)}), pytest.raises(BadInput, match="begun inside another"):
        recorder.step({"x": torch.ones(2, 2)})
    recorder.step({"x": torch.ones(2, 2)})


def test_incidents_go_where_they_were_meant_to_wherever_training_goes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    recorder = reprokit.Recorder(harness(), build=build_nothing, config={}, out="incidents", rehearse=False)
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(reprokit.IncidentCaptured):
        recorder.step({"x": torch.full((2, 2), float("nan"))})
    assert len(list((tmp_path / "incidents").iterdir())) == 1
