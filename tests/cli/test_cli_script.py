"""`reprokit replay --script`: what is printed, with which exit code, and how one goes on."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs/replay.md"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def example():
    """The script and the command of the page."""
    text = DOCS.read_text().partition("<!-- example: script -->")[2].partition("<!-- end -->")[0]
    code, shown = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", text, re.DOTALL).groups()
    command, headline, verdict, end = shown.splitlines()
    assert end == "  2 x loss is nan"
    return code, shlex.split(command.removeprefix("$ reprokit ")), headline, verdict


@pytest.mark.parametrize(("rate", "code", "verdict"), [(0, 11, "NOT_REPRODUCED"), (1, 0, "REPRODUCIBLE")])
def test_the_example_of_the_page_does_what_it_says(here, cli, rate, code, verdict):
    script, words, headline, shown = example()
    (here / "train.py").write_text(script)
    (here / "config.json").write_text(json.dumps({"rate": rate}))
    ended, out, _ = cli(*words)
    assert (ended, out.splitlines()[0]) == (code, headline) and f"{verdict}  {14 * rate}/14 failed" in out
    assert re.fullmatch(r"FLAKY  \d+/\d+ failed as captured, \d+ passed: fails in \d+% to \d+% of attempts .*", shown)
    assert not re.search("next:", out)


def test_json_is_that_of_any_replay(here, cli, made):
    ended, out, err = cli("replay", "--script", "python -c 'exit(3)'", "--fails-on", "exit=3", "-n", 2, "--json")
    found = json.loads(out)
    assert (ended, found["verdict"], found["n"], found["engine"]) == (0, "REPRODUCIBLE", 2, "process")
    assert found["attempts"][0]["exit_code"] == 3 and "which fails on exit=3" in err
    incident = made()
    ended, out, _ = cli("replay", incident, "--script", "python -c 'exit(0)'", "--engine", "process", "-n", 2)
    assert ended == 11 and out.splitlines()[0].startswith("nonfinite_loss") and "script python -c" in out


def test_failures_that_differ_in_the_folder_of_their_attempt_alone_are_one(here, cli):
    (here / "train.py").write_text("import os; raise RuntimeError(f'no clip in {os.getcwd()}/clips')")
    _, out, _ = cli("replay", "--script", "python train.py", "-n", 2)
    assert re.search(r"^  2 x ended .*: RuntimeError: no clip in <attempt>/\S*clips$", out, re.MULTILINE), out


def test_a_command_that_is_called_wrongly_is_seen_to_be(here, cli):
    _, out, _ = cli("replay", "--script", "python -c 'import absent_module'", "-n", 2)
    assert "\n  2 x ended with exit code 1: ModuleNotFoundError: No module named 'absent_module'\n" in out


def test_what_the_copy_lacks_is_said(here, cli, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (here / "data").symlink_to(tmp_path / "elsewhere")
    (here / "__pycache__").mkdir()
    (here / "train.py").write_text("import os; print(os.listdir('.'))")
    _, _, err = cli("replay", "--script", "python train.py", "-n", 1)
    assert "not in the copy that attempts run in: data; what the command needs of it" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "Missing argument 'INCIDENT'; or give --script"),
        (("--script", "run {foo}"), "nothing fills {foo}"),
        (("--script", "run 'x"), "no closing quotation"),
        (("--script", "nowhere-to-be-found"), "no such program"),
        (("--script", "python -V", "--fails-on", "x"), "--fails-on x: not known"),
        (("--script", "python -V", "--config", "none"), "the command has no {config}"),
        (("--script", "python {config}", "--config", "none"), "none: cannot be read"),
        (("--script", "python -V", "--engine", "ray"), "--engine ray: runs steps"),
        (("--script", "python -V", "--escalate"), "--escalate: looks into the modules"),
        (("--fails-on", "hang", "some"), "--fails-on: goes with --script"),
    ],
)
def test_what_cannot_be_is_one_line(here, cli, words, says):
    code, out, err = cli("replay", *words)
    line = [one for one in err.splitlines() if one.startswith("reprokit: ")]
    assert code == 2 and len(line) == 1 and says in line[0] and "Traceback" not in err + out


def test_what_runs_ends_with_whoever_asked_it_even_where_that_is_killed(here):
    own = f"8{time.monotonic_ns() % 10**9:09}.{os.getpid()}"
    words = ["replay", "--script", f'python -c \'import subprocess as s; s.run(["setsid", "sleep", "{own}"])\'']
    running = subprocess.Popen([sys.executable, "-c", "from reprokit.cli.main import run; run()", *words], cwd=here)
    sleeping = lambda: [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", own]]
    until(sleeping)
    running.kill()
    running.wait()
    until(lambda: not sleeping())


def until(holds):
    end = time.monotonic() + 100
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_ctrl_c_ends_what_runs_and_the_same_command_goes_on(here, tmp_path, cli):
    (here / "train.py").write_text(
        "import pathlib, sys, time\n"
        "seen = pathlib.Path(sys.argv[1])\n"
        "first = not (seen / 'first').exists()\n"
        "(seen / 'first').touch()\n"
        "while not first and not (seen / 'go').exists(): time.sleep(0.05)\n"
        "print('ended well')\n"
    )
    out = tmp_path / "run"
    words = ["replay", "--script", f"python train.py {shlex.quote(str(tmp_path))}", "--fails-on", "output=ended well"]
    words += ["--fails-on", "hang", "-n", "3", "--jobs", "1"]
    run = [sys.executable, "-c", "from reprokit.cli.main import run; run()", *words, "--out", str(out)]
    running = subprocess.Popen(run, stdout=subprocess.PIPE, text=True, cwd=here)
    journal = out / "attempts.jsonl"
    end = time.monotonic() + 100
    while not (journal.exists() and len(journal.read_text().splitlines()) > 2) and time.monotonic() < end:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 12 and "INCONCLUSIVE  interrupted after 1 of 3" in said
    (tmp_path / "go").touch()
    again = shlex.split(re.search(r"next: reprokit (.*)", said)[1])
    assert again.count("--fails-on") == 2 and f"--resume {out}" in said
    code, said, _ = cli(*again)
    assert code == 0 and "REPRODUCIBLE  3/3 failed" in said
