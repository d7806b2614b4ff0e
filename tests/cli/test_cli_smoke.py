"""`reprokit smoke` as a person and as a program meet it."""

import json
import sys
from xml.etree import ElementTree as ET

import pytest

from reprokit.incident import Incident

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
    code, out, _ = cli("smoke", script, "--only", "numbers,gradients,shapes,leakage", "--seed", "3")
    assert code == 0 and "n/a" in out


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


@pytest.mark.parametrize("width", ["40", "80", "160"])
def test_no_width_loses_words(cli, script, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    _, out, _ = cli("smoke", script, *FAST)
    table = out.partition("gate ")[2]
    assert "passed" in table
    assert "…" not in table


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
