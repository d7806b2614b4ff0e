"""Training under supervision: what dies in a step leaves an incident that replays, and all else is as without it."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from reprokit import supervise
from reprokit.capture.remains import Death
from reprokit.cli import main
from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

TRAIN = """
import ctypes, os, signal, sys, time
import torch
from torch import nn
import reprokit


def die(how):
    if how == "fault":
        ctypes.string_at(0)
    elif how == "abort":
        os.abort()
    elif how == "exit":
        os._exit(3)
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "wait":
        print("in the step", flush=True)
        time.sleep(600)


def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))

    def step(batch):
        if batch["x"].max() > 2:
            die(config["how"])
        return {"loss": net(batch["x"]).pow(2).mean()}

    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={"x": "b d"})


if __name__ == "__main__":
    config = {"seed": 3, "how": sys.argv[1]}
    with reprokit.Recorder(build(config), build=build, config=config, rehearse=False) as recorder:
        for i in range(6):
            x = torch.rand(4, 4)
            if i == 4:
                x[2, 1] = 5.0
            recorder.step({"x": x})
        if config["how"] == "between":
            os._exit(4)
    print("trained")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "shm").mkdir()
    return tmp_path


def supervised(folder, how):
    """What became of it, and what was said."""
    said = []
    ended = supervise.run([sys.executable, "train.py", how], say=said.append, place=folder / "shm")
    assert list((folder / "shm").iterdir()) == []
    return ended, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "words", "at"),
    [
        ("fault", 139, "died of SIGSEGV", "__init__.py:519 in string_at"),
        ("abort", 134, "died of SIGABRT", "train.py:12 in die"),
        ("exit", 3, "exited with 3", None),
        ("kill", 137, "died of SIGKILL", None),
    ],
)
def test_a_process_that_dies_in_its_step_leaves_an_incident_that_dies_again(folder, how, code, words, at):
    ended, [line] = supervised(folder, how)
    assert ended.code == code
    assert line == f"the process {words} in step 5; captured in {ended.incident}; next: reprokit show {ended.incident}"
    incident = Incident.open(ended.incident)
    manifest = incident.manifest
    assert (manifest.signature.kind, manifest.step, manifest.entrypoint) == (Kind.CRASH, 5, "train.py:build")
    place = manifest.symptoms[0].evidence.get("at")
    assert (place and place.split(":")[0]) == (at and at.split(":")[0])
    stack = (incident.path / "logs/traceback.txt").read_text()
    assert ("train.py" in stack and "in step" in stack) if at else "left no stack" in stack
    assert len((incident.path / "logs/metrics.jsonl").read_text().splitlines()) == 4
    assert incident.source.joinpath("train.py").exists() and incident.batch()["x"][2, 1] == 5.0
    with Worker(incident) as worker:
        outcome = worker.evaluate(Case(incident=incident.path), "process", timeout=200)
        donor = worker.evaluate(Case(incident=incident.path, content="donor"), "process", timeout=200)
    assert outcome.status is Status.FAIL and outcome.signature.kind is Kind.CRASH
    assert donor.status is Status.PASS, donor.detail


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("not at all", 0), ("between", 4)])
def test_what_does_not_die_in_a_step_leaves_none(folder, how, code):
    ended, said = supervised(folder, how)
    assert (ended.code, ended.incident) == (code, None) and not (folder / "incidents").exists()
    between = ["the process exited with 4 between two steps: there is no step to capture"]
    assert said == (between if how == "between" else [])


COMMAND = [sys.executable, "-c", "from reprokit.cli.main import run; run()", "run"]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_what_is_sent_to_it_goes_to_the_process_and_is_no_failure(folder, asked):
    command = [*COMMAND, "--", sys.executable, "train.py", "wait"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout.readline() == "in the step\n"
        process.send_signal(asked)
        process.stdout.read()
        code = process.wait(120)
    assert code == {signal.SIGTERM: 143, signal.SIGINT: 130}[asked] and not (folder / "incidents").exists()


EARLY = """
import os, signal, subprocess, sys
from pathlib import Path
from reprokit import supervise

start = subprocess.Popen


def started(*words, **options):
    os.kill(os.getpid(), signal.SIGTERM)
    return start(*words, **options)


subprocess.Popen = started
print(supervise.run([sys.executable, "-c", "import time; time.sleep(600)"], place=Path("shm")))
"""


@pytest.mark.slow
def test_what_is_sent_before_the_process_is_there_goes_to_it_as_well(folder):
    done = subprocess.run([sys.executable, "-c", EARLY], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "Ended(code=143, incident=None)\n", (done.returncode, done.stderr)


@pytest.mark.slow
def test_what_is_ignored_is_ignored_by_the_process_too(folder):
    """As under nohup."""
    asked = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    code = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n{COMMAND[2]}"
    command = [sys.executable, "-c", code, "run", sys.executable, "-c", asked]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "True\n"


@pytest.mark.slow
def test_streams_and_exit_code_are_the_command_s(folder):
    script = "import sys; print(input()); print('beside', file=sys.stderr); sys.exit(7)"
    command = [*COMMAND, sys.executable, "-c", script, "--debug", "--json"]
    done = subprocess.run(command, input="line\n", capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "line\n", "beside\n")


@pytest.mark.slow
def test_json_is_one_object_on_stdout(folder):
    command = [*COMMAND, "--json", "--", sys.executable, "-c", "print('a word')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == {"code": 0, "incident": None} and done.stderr == "a word\n"


def test_words_of_the_command_are_its_own():
    assert main._own(["run", "--debug", "--", "python", "--debug"]) == (["run", "--debug"], ["--", "python", "--debug"])
    assert main._own(["run", "python", "--debug"]) == (["run"], ["python", "--debug"])
    assert main._own(["show", "x", "--debug"]) == (["show", "x", "--debug"], [])
    assert main._own(["run"]) == (["run"], [])


def test_a_command_that_is_none_is_one_line(cli, tmp_path):
    with pytest.raises(BadInput, match=r"no-such-command: cannot be started \(No such file"):
        supervise.run(["no-such-command"], place=tmp_path)
    code, _, err = cli("run")
    assert code == 2 and "COMMAND" in err and len(err.strip().splitlines()) == 1


def test_folders_of_supervisors_that_were_killed_are_removed(tmp_path):
    names = [f"{supervise.PREFIX}{name}" for name in ("left", "young", "held")]
    for name in names:
        (tmp_path / name / "box-1-a").mkdir(parents=True)
    old = time.time() - 3600
    for name in (names[0], names[2]):
        os.utime(tmp_path / name, (old, old))
    holder = textwrap.dedent(f"""
        from pathlib import Path
        from reprokit import _files
        claim = _files.claim(Path({str(tmp_path / names[2])!r}))
        print("held", flush=True)
        input()
    """)
    process = subprocess.Popen([sys.executable, "-c", holder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout.readline() == "held\n"
        supervise.sweep(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
        process.communicate("\n")
    supervise.sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [names[1]]


def test_a_command_whose_end_was_seen_while_a_signal_was_passed_on_has_ended(tmp_path):
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as child:
        child.wait()
        assert supervise._waited(child) == "" and child.returncode == 3


def test_who_is_dead_and_was_not_waited_for_does_not_live(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not supervise._lives(tmp_path / f"box-{child.pid}-a")
    assert supervise._lives(tmp_path / f"box-{os.getpid()}-a")


def test_a_process_that_ends_well_while_its_box_is_looked_at_is_none_that_died(tmp_path, monkeypatch):
    (tmp_path / "box-1-a").mkdir()
    monkeypatch.setattr(supervise, "_lives", lambda box: box.rmdir())
    said = []
    assert supervise._incident(tmp_path, Death(code=3), said.append) is None and said == []


def test_a_folder_that_is_gone_keeps_nobody_from_the_end_of_a_command(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], cwd=tmp_path) as child:
        assert supervise._waited(child) == "" and child.returncode == 3
