"""`reprokit smoke` as a person and as a program meet it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from reprokit.cli import findings
from reprokit.incident import Incident
from reprokit.smoke.gate import Finding, Verdict
from reprokit.smoke.smoke import Report

SCRIPT = """
import torch, reprokit
from torch import nn

def default_config():
    return {"weight": 1.0}

def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 1)
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                            step=lambda batch: config["weight"] * net(batch["x"]).square().mean(),
                            layout={"x": "b d"}, loader=[{"x": torch.rand(3, 4)} for _ in range(3)])
"""
FAST = ("--only", "numbers,gradients")


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = f"smoked_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(SCRIPT)
    yield f"{name}.py:build"
    sys.modules.pop(name, None)


@pytest.fixture
def hanging(script, tmp_path):
    """hanging(code) -> the entrypoint of a script whose step runs this and then hangs by it."""

    def edit(code):
        file = tmp_path / script.partition(":")[0]
        file.write_text(
            f"from pathlib import Path\n{code}\n" + SCRIPT.replace("step=lambda batch:", "step=lambda batch: hang() or")
        )
        return script

    return edit


WAITS = "import threading\ndef hang():\n    Path('begun').touch()\n    threading.Event().wait()"
DEAF = """
import ctypes, torch
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # the first imports for seconds: no part of a build
def hang():
    lock, lib = ctypes.create_string_buffer(64), ctypes.CDLL(None)
    while True:  # the second time it waits for itself, in C
        lib.pthread_mutex_lock(lock)
"""


@pytest.fixture
def start(tmp_path):
    """start(*words) -> a process of `reprokit smoke`."""

    def started(*words):
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "reprokit", "smoke", *map(str, words)]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)

    return started


@pytest.fixture
def config(tmp_path):
    def write(text):
        (tmp_path / "config.yaml").write_text(text)
        return tmp_path / "config.yaml"

    return write


def test_the_answer_is_first_the_next_step_last(cli, script):
    code, out, _ = cli("smoke", script, *FAST)
    lines = out.strip().splitlines()
    assert code == 0
    assert lines[0].startswith("PASSED  ")
    assert "plumbing, not accuracy" in lines[-2]
    assert lines[-1] == f"next: reprokit smoke {script}"
    assert lines[1].split() == ["gate", "check", "expected", "observed", "verdict"]


def test_a_pass_names_the_gates_that_were_not_asked(cli, script):
    code, out, _ = cli("smoke", script, "--only", "gradients,leakage")
    first = out.splitlines()[0]
    assert code == 0
    assert first.startswith("PASSED  ") and "not asked: leakage (no module has patch_size" in first
    assert "not asked" not in cli("smoke", script, "--only", "gradients")[1]
    code, out, _ = cli("smoke", script, "--only", "gradients,leakage", "--json")
    (unasked,) = json.loads(out)["not_asked"]
    assert (code, unasked["gate"]) == (0, "leakage")
    assert unasked["because"].startswith("no module has patch_size")


def test_a_failed_gate_is_exit_1_with_an_incident_and_what_to_do(cli, script, config, tmp_path):
    code, out, _ = cli("smoke", script, "--config", config("weight: .nan"), "--only", "numbers", "--out", "here")
    lines = out.strip().splitlines()
    assert code == 1
    assert lines[0].startswith("FAILED  numbers; ")
    (path,) = (tmp_path / "here").glob("*-smoke-numbers")
    assert lines[-1] == f"next: reprokit show {path}"
    assert Incident.open(path).manifest.entrypoint == script


def test_nothing_that_can_be_asked_is_no_pass(cli, script):
    code, out, _ = cli("smoke", script, "--only", "leakage")
    assert code == 1
    assert out.startswith("NOTHING ASKED")


def test_json_is_one_object_and_nothing_else(cli, script, config):
    code, out, _ = cli("smoke", script, *FAST, "--json")
    assert (code, json.loads(out)["passed"]) == (0, True)
    code, out, _ = cli("smoke", script, "--config", config("weight: 1e30"), *FAST, "--json")
    data = json.loads(out)
    assert (code, data["passed"]) == (1, False)
    assert {one["verdict"] for one in data["findings"]} == {"PASSED", "FAILED", "NOT_APPLICABLE"}
    assert all(set(one) >= {"gate", "check", "expected", "observed", "advice", "measured"} for one in data["findings"])


def test_junit_is_written_beside_the_answer(cli, script, tmp_path):
    code, _, _ = cli("smoke", script, *FAST, "--junit", "out/smoke.xml")
    suite = ET.fromstring((tmp_path / "out" / "smoke.xml").read_bytes()).find("testsuite")
    assert code == 0
    assert {case.get("classname") for case in suite} >= {"numbers", "gradients"}


def test_junit_that_cannot_be_written_does_not_cost_the_answer(cli, script, tmp_path):
    (tmp_path / "file").write_text("")
    code, out, err = cli("smoke", script, *FAST, "--junit", "file/smoke.xml")
    assert (code, out.startswith("PASSED")) == (2, True)
    assert "--junit file/smoke.xml: cannot be written" in err


def test_a_step_that_hangs_fails_with_its_place_and_an_incident(cli, hanging, tmp_path):
    code, out, _ = cli("smoke", hanging(WAITS), *FAST, "--hang-after", "5")
    lines = out.strip().splitlines()
    assert code == 1
    assert lines[0].startswith("FAILED  numbers; ")
    assert "no end after 5 s" in " ".join(out.split())
    (path,) = (tmp_path / "incidents").glob("*-smoke-numbers")
    assert lines[-1] == f"next: reprokit show {path}"
    assert Incident.open(path).manifest.signature.kind == "hang"


def test_a_hang_while_pictures_are_drawn_is_no_pass(cli, hanging, tmp_path):
    after_the_gates = (
        WAITS.replace("    Path", "    SEEN.append(1)\n    if len(SEEN) < 12: return None\n    Path") + "\nSEEN = []"
    )
    options = ("--only", "gradients", "--plots", "pictures", "--hang-after", "5", "--json")
    code, out, _ = cli("smoke", hanging(after_the_gates), *options)
    *_, last = json.loads(out)["findings"]
    assert (code, last["gate"], last["verdict"]) == (1, "plots", "FAILED")


def test_the_steps_that_overfit_judges_are_those_of_the_picture(cli, script, tmp_path, monkeypatch):
    from reprokit.smoke import course

    taken, take = [], course.take
    monkeypatch.setattr(course, "take", lambda *given: taken.append(given[2]) or take(*given))
    _, _, err = cli("smoke", script, "--only", "overfit", "--overfit", "60", "--plots", "pictures")
    assert (taken, err) == ([60], "")
    assert (tmp_path / "pictures" / "losses.png").exists()
    cli("smoke", script, "--only", "gradients", "--plots", "pictures")
    assert taken == [60, 30]


def test_nothing_is_drawn_of_a_build_that_hangs_and_that_is_told(cli, script, tmp_path):
    file = tmp_path / script.partition(":")[0]
    file.write_text(SCRIPT.replace("    torch.manual_seed(0)", "    __import__('threading').Event().wait()"))
    code, out, err = cli("smoke", script, "--plots", "pictures", "--hang-after", "5", "--json")
    assert (code, json.loads(out)["findings"][0]["gate"], "nothing to draw" in err) == (1, "opening", False)


@pytest.mark.slow
def test_what_hangs_where_nothing_can_interrupt_it_is_told_too(start, hanging, tmp_path):
    with start(hanging(DEAF), *FAST, "--hang-after", "20", "--json", "--junit", "smoke.xml") as running:
        out, _ = running.communicate(timeout=250)
    data = json.loads(out)
    assert (running.returncode, data["passed"]) == (1, False)
    (failed,) = [one for one in data["findings"] if one["verdict"] == "FAILED"]
    assert failed["gate"] == "numbers" and failed["observed"].endswith(" in hang")
    assert [one["gate"] for one in data["findings"]][-1] == "gradients"
    assert "cannot be interrupted" in data["uncaptured"][0]
    assert ET.fromstring((tmp_path / "smoke.xml").read_bytes()).get("failures") == "1"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interruption_is_one_line_and_leaves_nothing_half(start, hanging, tmp_path, number):
    entrypoint = hanging(WAITS)
    with start(entrypoint, *FAST, "--junit", "smoke.xml", "--hang-after", "1000") as running:
        while not (tmp_path / "begun").exists():
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(number)
        out, err = running.communicate(timeout=60)
    assert out == ""
    if number == signal.SIGKILL:
        assert running.returncode == -number
    else:
        assert running.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number]
        assert err.strip().splitlines()[-1] == "reprokit: interrupted"
    left = {one.name for one in tmp_path.iterdir()} - {"__pycache__"}
    assert left == {"begun", entrypoint.partition(":")[0]}


def test_a_loader_that_raises_at_its_second_batch_is_a_failure_whichever_gates_are_asked(cli, script, tmp_path):
    file = tmp_path / script.partition(":")[0]
    file.write_text(SCRIPT.replace("for _ in range(3)]", "for _ in range(3)][:1] + [None]"))
    code, out, _ = cli("smoke", script, "--only", "gradients", "--json")
    first, *others = json.loads(out)["findings"]
    assert (code, first["gate"], first["verdict"]) == (1, "opening", "FAILED")
    assert first["observed"] == "batch 2 of the loader has no tensors: it is None"
    assert "PASSED" in {one["verdict"] for one in others}


def found(*rows):
    """A report of (gate, verdict, observed) rows."""
    made = (
        Finding(gate=gate, check="a check", expected="this", observed=observed, verdict=verdict, advice=advice)
        for gate, verdict, observed, advice in rows
    )
    return Report(findings=tuple(made))


def shown(report, width=None):
    """Its lines on a terminal so wide, or in a log."""
    console = Console(file=io.StringIO(), width=width or 80, force_terminal=width is not None, no_color=True)
    findings.show(report, console)
    return re.sub(r"\x1b\[\d*m", "", console.file.getvalue()).splitlines()


LONG = "words that say at some length what was seen of it " * 3
MIXED = found(
    ("shapes", Verdict.PASSED, LONG, ""),
    ("shapes", Verdict.NOT_APPLICABLE, "not applicable, because it is so", ""),
    ("numbers", Verdict.FAILED, LONG, "mend [it]"),
    ("leakage", Verdict.NOT_APPLICABLE, "not applicable, because it is so", ""),
)


@pytest.mark.parametrize("width", [40, 80, 99, 100, 200, None])
def test_failures_come_first_with_what_to_do_and_no_width_loses_words(width):
    lines = shown(MIXED, width)
    places = [next(i for i, line in enumerate(lines) if word in line) for word in ("FAILED", "next: mend", "passed")]
    assert places == sorted(places) and places[0] <= 1
    everything = " ".join(" ".join(lines).split())
    assert "mend [it]" in everything and everything.endswith("n/a it is so: shapes (a check); leakage (all of it)")
    assert "…" not in everything
    for word in LONG.split():
        assert everything.count(word) >= 2 * LONG.split().count(word)
    assert max(map(len, lines)) <= (width or findings.LOG)


@pytest.mark.parametrize(("width", "is_table"), [(80, False), (findings.LEAST, True), (None, True)])
def test_a_narrow_screen_has_paragraphs_and_not_slivers_of_cells(width, is_table):
    lines = shown(MIXED, width)
    assert (lines[0].split() == ["gate", "check", "expected", "observed", "verdict"]) is is_table
    assert len(lines) < 16


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nowhere.py:build"], "there is no file"),
        (["no_such_package.train:build"], "does not import"),
        (["train.py"], "no entrypoint"),
        (["SCRIPT", "--config", "nowhere.yaml"], "cannot be read"),
        (["SCRIPT", "--only", "nonsense"], "--only nonsense: unknown"),
        (["SCRIPT", "--overfit", "3"], "--overfit 3"),
        (["SCRIPT", "--seed", "-1"], "--seed"),
        ([], "ENTRYPOINT"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(cli, script, words, says):
    code, out, err = cli("smoke", *[script if word == "SCRIPT" else word for word in words])
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert says in line and line.startswith("reprokit: ")


@pytest.mark.slow
def test_the_reference_model_passes_with_its_own_config(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("smoke", "reprokit.video.train:build")
    assert code == 0
    assert out.startswith("PASSED  ")
    assert out.strip().splitlines()[-1] == "next: reprokit smoke reprokit.video.train:build --overfit 50"
    assert list(tmp_path.iterdir()) == []
