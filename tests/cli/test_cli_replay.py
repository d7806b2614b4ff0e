"""The verb, with an engine that plays answers: what is printed, and with which exit code."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from concurrent.futures import Future

import pytest

from reprokit import pipeline
from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine
from reprokit.step.outcome import Outcome, Status
from reprokit.store.objects import Store

FAIL, PASS, INFRA = (Outcome(status=status) for status in (Status.FAIL, Status.PASS, Status.INFRA))


class Playing(Engine):
    name = "playing"

    def __init__(self, *answers):
        self.answers, self.cases = list(answers), []

    def submit(self, case):
        self.cases.append(case)
        future = Future()
        answer = self.answers.pop(0) if self.answers else FAIL
        answer = answer(case) if callable(answer) else answer
        future.set_exception(answer) if isinstance(answer, BaseException) else future.set_result(answer)
        return future


@pytest.fixture
def play(monkeypatch, tmp_path):
    """play(*answers) -> the engine that the next verbs use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def playing(*answers):
        engine = Playing(*answers)
        monkeypatch.setattr(pipeline, "engine_of", lambda subject, options, progress: engine)
        return engine

    return playing


def resumed(out):
    """The words of the command that goes on."""
    return shlex.split(re.search(r"(?:next|to go on): reprokit (.*)", out)[1])


def test_interrupted_it_says_what_is_known_and_goes_on_to_the_same_verdict(made, cli, play, tmp_path):
    incident = made()
    play(FAIL, FAIL, KeyboardInterrupt())
    code, out, _ = cli("replay", incident, "-n", 5, "--confidence", 0.9, "--vary", "threads")
    assert code == 12
    assert "INCONCLUSIVE  interrupted after 2 of 5 attempts, 2/2 failed" in out and "(90% confidence)" in out
    words = resumed(out)
    assert words[:6] == ["replay", str(incident), "-n", "5", "--confidence", "0.9"] and "--vary" in words
    engine = play()
    code, out, _ = cli(*words)
    assert code == 0 and len(engine.cases) == 3 and "REPRODUCIBLE  5/5 failed" in out
    assert not list((tmp_path / "cache/reprokit/replays").iterdir())


def test_a_machine_that_broke_leaves_a_command_to_go_on_with(made, cli, play):
    incident = made()
    play(FAIL, *[INFRA] * 5)
    code, out, err = cli("replay", incident, "-n", 5, "--json")
    found = json.loads(out)
    assert code == 12 and found["stopped"] == "infrastructure" and found["folder"] in err
    play()
    code, out, _ = cli(*resumed(err))
    assert code == 0 and json.loads(out)["n"] == 5 and json.loads(out)["infra"] == 5


def test_one_that_goes_on_as_another_is_refused_in_one_line(made, cli, play, tmp_path):
    incident = made()
    play(FAIL, KeyboardInterrupt())
    code, _, _ = cli("replay", incident, "-n", 5, "--out", tmp_path / "run")
    assert code == 12
    play()
    code, _, err = cli("replay", incident, "-n", 5, "--resume", tmp_path / "run", "--rng", "fresh")
    assert code == 2 and "not the same rng" in err and err.count("\n") == 1 + err.count("\n  ")
    code, _, err = cli("replay", incident, "-n", 5, "--out", tmp_path / "run")
    assert code == 2 and "--resume it" in err


def test_with_a_place_of_its_own_everything_stays_there(made, cli, play, tmp_path):
    play(Outcome(status=Status.FAIL, log="said", exit_code=1))
    code, out, _ = cli("replay", made(), "-n", 2, "--out", tmp_path / "run", "--json")
    assert code == 0 and json.loads(out)["folder"] == str(tmp_path / "run")
    assert (tmp_path / "run/logs/0000.txt").read_text() == "exit code 1\nsaid\n"
    assert len((tmp_path / "run/attempts.jsonl").read_text().splitlines()) == 4


def test_fresh_generators_that_decide_are_named(made, cli, play):
    play(*[lambda case: FAIL if case.rng % 2 else PASS] * 60)
    code, out, _ = cli("replay", made(), "--preset", "strict", "--rng", "fresh", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["depends_on"], found["stopped"]) == (10, "FLAKY", ["rng"], "depends")
    assert {"inputs", "n", "fail", "pass", "other", "interval"} == set(found["strata"][0])
    assert all(one["fail"] in (0, one["n"]) for one in found["strata"])
    play(*[lambda case: FAIL if case.rng % 2 else PASS] * 60)
    assert "depends on RNG" in cli("replay", made(name="again"), "--preset", "strict", "--rng", "fresh")[1]


def test_a_rate_to_support_asks_for_the_attempts_that_it_takes(made, cli, play):
    engine = play()
    assert cli("replay", made(), "--min-rate", 0.9)[0] == 0 and len(engine.cases) == 29
    engine = play()
    code, out, _ = cli("replay", made(name="again"), "-n", 5, "--min-rate", 0.9)
    assert code == 12 and "not the 90% asked for; that takes 29 attempts" in out and len(engine.cases) == 5


def test_deterministic_algorithms_are_forced_on_every_attempt(made, cli, play):
    engine = play()
    cli("replay", made(), "-n", 2, "--deterministic")
    assert all(case.variant.flags["deterministic_algorithms"] for case in engine.cases)


def test_a_predicate_decides_and_its_faults_are_the_users(made, cli, play, tmp_path):
    (tmp_path / "mine.py").write_text("def fails(outcome): return outcome['status'] == 'PASS'\ndef odd(outcome): 1/0\n")
    play(PASS, PASS)
    assert cli("replay", made(), "-n", 2, "--predicate", f"{tmp_path}/mine.py:fails")[0] == 0
    play(PASS)
    code, _, err = cli("replay", made(name="again"), "-n", 2, "--predicate", f"{tmp_path}/mine.py:odd")
    assert code == 2 and "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--vary", "moon"), "--vary moon: unknown; one of hashseed"),
        (("--vary", "tf32"), "a switch of GPUs"),
        (("--vary", "hashseed", "--engine", "inline"), "fixed before an interpreter starts"),
        (("--rng", "odd"), "captured"),
        (("--resume", "nowhere"), "no attempts of an earlier replay there"),
        (("--predicate", "nothing"), "give module:function or file.py:function"),
        (("--confidence", "1"), "confidence"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_before_anything_runs(made, cli, play, words, says):
    engine = play()
    code, _, err = cli("replay", made(), *words)
    assert code == 2 and says in err and not engine.cases


def test_an_incident_may_be_named_by_its_id_in_a_store(made, cli, play, tmp_path, monkeypatch):
    play(*[FAIL] * 4)
    incident = Incident.open(made())
    store = Store(str(tmp_path / "store"))
    id = store.put(incident)
    assert cli("replay", id, "-n", 2, "--store", tmp_path / "store")[0] == 0
    code, _, err = cli("replay", id, "-n", 2)
    assert code == 2 and "give --store URL, or set REPROKIT_STORE" in err
    monkeypatch.setenv("REPROKIT_STORE", str(tmp_path / "store"))
    assert cli("replay", id, "-n", 2)[0] == 0
    code, _, err = cli("replay", "f" * 64, "-n", 2)
    assert code == 2 and "not in the store" in err


def test_what_a_store_has_is_from_elsewhere(made, cli, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    id = Store(str(tmp_path / "store")).put(Incident.open(made()))
    code, _, err = cli("replay", id, "--store", tmp_path / "store", "--engine", "process")
    assert code == 2 and "add --trust" in err


WAITS = """
import pathlib, time

def hold(folder):  # the first attempt runs through, the others wait to be let go
    end = time.monotonic() + 200
    while (folder / "first").exists() and not (folder / "go").exists() and time.monotonic() < end:
        time.sleep(0.05)
    (folder / "first").touch()
"""


@pytest.mark.slow
def test_ctrl_c_ends_processes_says_what_is_known_and_can_be_gone_on_with(made, tmp_path):
    step = 'net(batch["x"]).mean()'
    waits = WAITS + f"wait = lambda: hold(pathlib.Path({str(tmp_path)!r}))\n"
    incident = made(script=lambda script: waits + script.replace(step, f"(wait(), {step})[1]"))
    run = [sys.executable, "-c", "from reprokit.cli.main import run; run()"]
    command = [*run, "replay", incident, "-n", "3", "--engine", "process", "--jobs", "1"]
    out = tmp_path / "run"
    running = subprocess.Popen([*command, "--out", out], stdout=subprocess.PIPE, text=True)
    journal = out / "attempts.jsonl"
    deadline = time.monotonic() + 200
    while not (journal.exists() and len(journal.read_text().splitlines()) > 2) and time.monotonic() < deadline:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert running.returncode == 12 and "INCONCLUSIVE  interrupted after" in said and f"--resume {out}" in said
    assert len(journal.read_text().splitlines()) == 2 + 1
    (tmp_path / "go").touch()
    done = subprocess.run([*command, "--resume", out, "--json"], stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    assert done.returncode == 0 and (found["n"], found["fail"]) == (3, 3)


@pytest.mark.parametrize("body", ["import sys; sys.exit(0)", "raise SystemExit", "raise GeneratorExit"])
def test_a_predicate_that_exits_gives_no_verdict(made, cli, play, tmp_path, body):
    (tmp_path / "mine.py").write_text(f"def fails(outcome):\n    {body}\n")
    play(PASS)
    code, out, err = cli("replay", made(), "-n", 2, "--predicate", f"{tmp_path}/mine.py:fails", "--json")
    assert (code, out) == (2, "") and "mend it" in err
    (tmp_path / "early.py").write_text(f"{body}\n")
    code, out, err = cli("replay", made(name="again"), "-n", 2, "--predicate", f"{tmp_path}/early.py:fails", "--json")
    assert (code, out) == (2, "") and "cannot be imported" in err
