"""What happens to a reduction on its way: steps that exit, budgets, bad options, interruptions, where it goes on."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

pytestmark = pytest.mark.slow

def steps(body):
    """The script with a step that runs this first."""

    def edited(script):
        lines = "\n".join(f"        {line}" for line in body.strip().splitlines())
        step = f'    def step(batch):\n        x = batch["x"]\n{lines}\n        return net(x).mean()\n\n'
        script = script.replace('lambda batch: net(batch["x"]).mean()', "step")
        return script.replace("    return reprokit.Harness", f"{step}    return reprokit.Harness")

    return edited


def test_a_candidate_that_exits_is_another_failure_and_costs_no_reduction(cli, made, tmp_path):
    path = made(script=steps("if len(x) < 3 and x.isnan().any(): import os; os._exit(3)"))
    code, out, err = cli("reduce", path, "-o", tmp_path / "reduced", "--verify", "1", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["axes"]["b"]["kept"]) == 3 and found["axes"]["b"]["guilty"] == [2]
    assert found["one_minimal"] and found["axes"]["t"]["kept"] == [1]


def test_a_budget_that_ends_before_anything_is_clear_is_one_line_and_is_gone_on_from(cli, made, tmp_path):
    words = ["reduce", made(), "-o", tmp_path / "reduced", "--verify", "1", "--json"]
    code, out, err = cli(*words, "--budget", "2")
    assert (code, out) == (12, "")
    [line] = [line for line in err.splitlines() if line.startswith("reprokit: ")]
    assert "ended after 2 evaluations (1 failed as captured)" in line and "a larger --budget" in line
    [journal] = (tmp_path / "reduced").iterdir()
    assert str(journal) in line
    before = [json.loads(record) for record in journal.read_text().splitlines()]
    code, out, err = cli(*words, "--timeout", "800")
    assert code == 0, err
    assert sum("answered" in record for record in before) == 2 and not journal.exists()
    assert json.loads(out)["complete"]


def test_what_goes_on_from_an_unfinished_result_takes_its_place(cli, made, tmp_path):
    words = ["reduce", made(), "-o", tmp_path / "reduced", "--verify", "1", "--json"]
    code, out, err = cli(*words, "--budget", "5")
    assert code == 0, err
    part = json.loads(out)
    code, out, err = cli(*words)
    assert code == 0, err
    whole = json.loads(out)
    assert (part["complete"], whole["complete"]) == (False, True) and whole["path"] == part["path"]
    assert (part["axes"]["b"]["guilty"], whole["axes"]["b"]["guilty"]) == (None, [2])
    assert [path.name for path in (tmp_path / "reduced").iterdir()] == ["incident-reduced"]


def test_a_baseline_that_is_the_same_config_leaves_nothing_behind(cli, made, tmp_path):
    (tmp_path / "same.yaml").write_text("{}\n")
    code, _, err = cli("reduce", made(), "-o", tmp_path / "reduced", "--baseline", tmp_path / "same.yaml")
    assert code == 2 and "the incident's own config" in err
    assert not (tmp_path / "reduced").exists()


@pytest.mark.parametrize("place", ["taken", "taken/below/it", "nowhere", "closed/below"])
def test_pictures_that_have_no_place_are_refused_before_the_search(cli, made, tmp_path, monkeypatch, place):
    pytest.importorskip("matplotlib")
    (tmp_path / "taken").write_text("mine")
    (tmp_path / "nowhere").symlink_to("gone")
    (tmp_path / "closed").mkdir()
    writable = os.access  # of root, every place is
    monkeypatch.setattr(os, "access", lambda path, how: Path(path).name != "closed" and writable(path, how))
    code, _, err = cli("reduce", made(), "-o", tmp_path / "reduced", "--pictures", tmp_path / place)
    assert code == 2 and f"--pictures {tmp_path / place}: " in err
    assert (tmp_path / "taken").read_text() == "mine" and not (tmp_path / "reduced").exists()


def test_a_config_of_a_billion_laughs_is_refused_wherever_it_comes_from(cli, made, tmp_path):
    lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    text = "\n".join(["a0: &a0 [x]", *lines])
    (tmp_path / "laughs.yaml").write_text(text)
    code, _, err = cli("reduce", made(), "-o", tmp_path / "reduced", "--baseline", tmp_path / "laughs.yaml")
    assert code == 2 and "laughs.yaml: cannot be read (more than 1,000,000 values" in err
    code, _, err = cli("show", made(config=text, name="laughing"))
    assert code in (0, 2) and "Traceback" not in err
    code, _, err = cli("reduce", tmp_path / "laughing", "-o", tmp_path / "reduced")
    assert code == 2 and "config.yaml: not YAML of plain data (more than 1,000,000 values" in err
    assert not (tmp_path / "reduced").exists()


def _until(process, happened):
    while not happened() and process.poll() is None:
        sleep(0.05)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_one_that_is_ended_while_a_step_runs_ends_at_once_and_says_where_it_goes_on(made, tmp_path, how, code):
    """The second evaluation never comes back."""
    body = f"""
import pathlib, time
place = pathlib.Path({str(tmp_path / "begun")!r})
if not x.isnan().any():
    place.touch()
    time.sleep(600)
"""
    start = (  # a shell may have ignored SIGINT for what it starts
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from reprokit.cli.main import run; run()"
    )
    command = [sys.executable, "-c", start, "reduce", made(script=steps(body)), "-o", tmp_path / "reduced"]
    said = tmp_path / "said"
    with said.open("w") as err, subprocess.Popen(command, stderr=err) as reduction:
        try:
            _until(reduction, (tmp_path / "begun").exists)
            reduction.send_signal(how)
            if how == signal.SIGINT:
                _until(reduction, lambda: "stopping after this evaluation" in said.read_text())
                reduction.send_signal(how)
            reduction.wait(timeout=200)
        finally:
            reduction.kill()
    err = said.read_text()
    assert reduction.returncode == code
    [journal] = (tmp_path / "reduced").iterdir()
    assert f"reprokit: interrupted; 1 answer kept in {journal}: to go on from there, the same command\n" in err
    assert "Traceback" not in err
