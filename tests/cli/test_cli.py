"""What a user can get wrong is one line on stderr and the right exit code."""

import json
import shutil
import signal
import subprocess
import sys

import pytest

from reprokit.cli.main import run


def one_line(err):
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("reprokit: ")
    assert "Traceback" not in err
    return lines[0]


def test_help_lists_the_verbs_without_importing_torch():
    code = "import sys; from reprokit.cli.main import run\ntry: run(['-h'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert all(verb in done.stdout for verb in ("demo", "show", "reduce", "replay", "bundle", "verify", "image"))


def test_the_interpreter_alone_starts_it():
    done = subprocess.run([sys.executable, "-m", "reprokit", "repaly"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert "no verb 'repaly'" in one_line(done.stderr)


@pytest.mark.parametrize("verb", ["demo", "show", "reduce", "replay", "bundle", "verify", "image"])
def test_every_verb_has_help(cli, verb):
    code, out, _ = cli(verb, "--help")
    assert code == 0
    assert f"reprokit {verb}" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["frobnicate"], "no verb 'frobnicate'"),
        (["replay"], "INCIDENT"),
        (["show", "nowhere"], "nowhere"),
        (["verify", "nowhere.tar.zst"], "nowhere.tar.zst"),
        (["replay", "nowhere", "-n", "0"], "'-n': Input should be greater"),
        (["replay", "nowhere", "--preset", "huge"], "--preset huge: unknown; one of quick, default, strict"),
    ],
)
def test_words_that_mean_nothing_are_one_line_and_exit_2(cli, words, says):
    code, out, err = cli(*words)
    assert (code, out) == (2, "")
    assert says in one_line(err)


def test_an_unknown_engine(cli, made):
    code, _, err = cli("replay", made(), "--engine", "abacus", "--json")
    assert code == 2
    assert "--engine abacus: unknown; one of docker, process, fork, inline" in err


def _truncated(path):
    file = path / "ranks" / "00" / "batch.safetensors"
    file.write_bytes(file.read_bytes()[:-10])


def _config_is_no_yaml(path):
    (path / "config.yaml").write_text("a: [1\n")


@pytest.mark.parametrize(
    ("harm", "names"),
    [
        (_truncated, "batch.safetensors"),
        (_config_is_no_yaml, "config.yaml"),
        (lambda path: (path / "state" / "state.json").unlink(), "state.json"),
        (lambda path: (path / "incident.json").write_text("{"), "incident.json"),
        (lambda path: (path / "extra.txt").write_text("hello"), "extra.txt"),
        (shutil.rmtree, "incident"),
    ],
)
@pytest.mark.parametrize("verb", ["show", "verify", "bundle", "reduce", "replay"])
def test_an_incident_that_is_not_what_was_written(cli, made, tmp_path, verb, harm, names):
    path = made()
    harm(path)
    out = tmp_path / "out"
    code, _, err = cli(verb, path, *(["-o", out / "x"] if verb in ("bundle", "reduce") else []))
    assert code == 2
    assert names in one_line(err)
    assert not list(out.rglob("*"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"entrypoint": "nowhere.py:build"}, "no file"),
        ({"entrypoint": "nowhere.at.all:build"}, "does not import"),
        ({"entrypoint": "train.py:make.<locals>.build"}, "no entrypoint"),
        ({"entrypoint": "train.py:other"}, "no function 'other'"),
        ({"script": lambda script: "raise SystemExit(1)"}, "exits when it is loaded"),
        ({"script": lambda script: "while_training = 1 / 0\n" + script}, "training on import?"),
        ({"script": lambda script: script.replace("nn.Linear(4, 1)", "nn.Linear(5, 1)")}, "captured was"),
    ],
)
def test_an_entrypoint_that_does_not_build_is_one_line_and_exit_2(cli, made, changes, says):
    code, _, err = cli("replay", made(**changes), "--engine", "process", "-n", "1", "--json")
    assert code == 2
    [line] = [line for line in err.splitlines() if line.startswith("reprokit: ")]
    assert says in line
    assert "Traceback" not in err


def test_replay_judges_and_its_exit_code_is_the_verdict(cli, made):
    code, out, _ = cli("replay", made(), "--engine", "inline", "-n", "3", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["fail"], found["fingerprints"]) == (
        0, "REPRODUCIBLE", 3, {"distinct": 1, "stable": 3},
    )  # fmt: skip
    code, out, _ = cli("replay", made(bad=False, name="healthy"), "--engine", "inline", "-n", "3", "--json")
    assert (code, json.loads(out)["verdict"]) == (11, "NOT_REPRODUCED")


def test_reduce_bundle_verify_show(cli, made, tmp_path):
    code, out, err = cli("reduce", made(), "-o", tmp_path / "reduced", "--verify", "1", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["axes"]["b"]["kept"] == found["axes"]["b"]["guilty"] == [2]
    assert found["axes"]["t"]["kept"] == found["axes"]["t"]["guilty"] == [1]
    assert found["one_minimal"] and found["verified"]["verdict"] == "REPRODUCIBLE" and found["batch_guilty"]
    file = tmp_path / "bundle.tar.zst"
    code, out, _ = cli("bundle", found["path"], "-o", file, "--json")
    assert code == 0 and json.loads(out)["verified"]
    assert cli("verify", file)[0] == 0
    code, out, _ = cli("show", file)
    assert code == 0 and "nonfinite_loss at loss" in out
    code, _, err = cli("replay", file, "--engine", "process", "--json")
    assert code == 2 and "--trust" in err
    code, out, _ = cli("replay", file, "--engine", "process", "--trust", "-n", "1", "--json")
    assert code == 0 and json.loads(out)["fail"] == 1


def test_reducing_what_does_not_fail_exits_11(cli, made, tmp_path):
    code, _, err = cli("reduce", made(bad=False), "-o", tmp_path / "reduced", "--json")
    assert code == 11
    assert "does not fail here (0 of 23 runs failed as captured)" in err
    assert not (tmp_path / "reduced").exists()


def test_an_explicit_docker_that_does_not_answer_is_exit_3(cli, made, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    code, _, err = cli("replay", made(), "--engine", "docker", "-n", "1", "--json")
    assert code == 3
    assert "Docker does not answer" in err and "--engine process" in err


@pytest.mark.parametrize("host", ["http://[::1", "garbage"])
def test_an_address_of_docker_that_is_none_is_exit_3_too(cli, made, monkeypatch, host):
    monkeypatch.setenv("DOCKER_HOST", host)
    code, _, err = cli("replay", made(), "--engine", "docker", "-n", "1", "--json")
    assert code == 3 and f"Docker does not answer at {host}" in err


def test_where_docker_does_not_answer_processes_are_used_and_that_is_said(cli, made, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nothing.sock")
    code, out, err = cli("replay", made(), "-n", "1", "--json")
    assert (code, json.loads(out)["engine"]) == (0, "process")
    assert "Docker does not answer" in err


def test_a_full_disk_is_one_line_and_exit_3(cli, made, monkeypatch, tmp_path):
    def full(*_, **__):
        raise OSError(28, "No space left on device", str(tmp_path / "bundle"))

    monkeypatch.setattr("reprokit.report.bundle.write", full)
    code, _, err = cli("bundle", made(), "-o", tmp_path / "b.tar.zst")
    assert code == 3
    assert "No space left on device" in one_line(err)


def test_debug_shows_the_traceback(cli, monkeypatch, made):
    path = made()
    monkeypatch.setattr("reprokit.pipeline.verify", lambda where: 1 / 0)
    code, _, err = cli("verify", path)
    assert code == 3 and "unexpected ZeroDivisionError" in one_line(err)
    heard = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(ZeroDivisionError):
        run(["verify", str(path), "--debug"])
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == heard


def test_what_the_replayed_code_says_is_no_markup_and_no_escape(cli, made):
    raising = "    def step(batch):\n        raise type('[/red]\\x1b[2J', (Exception,), {})\n    net = nn"
    edit = lambda text: text.replace('lambda batch: net(batch["x"]).mean()', "step").replace("    net = nn", raising)
    code, out, _ = cli("replay", made(script=edit), "--engine", "inline", "-n", "1")
    assert code == 11
    assert "[/red]" in out and "\x1b" not in out


def test_a_bundle_overwrites_only_bundles(cli, made, tmp_path):
    (tmp_path / "notes.py").write_text("mine")
    code, _, err = cli("bundle", made(), "-o", tmp_path / "notes.py")
    assert code == 2 and "ends in .tar.zst" in one_line(err)
    assert (tmp_path / "notes.py").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--match", "(["], "is no regular expression"),
        (["--budget", "9" * 400 + "h"], "above 0"),
        (["--rewind", "7"], "rewind 7"),
        (["--baseline", "day.yaml"], "more than names, numbers"),
        (["--baseline", "nothing.yaml"], "cannot be read"),
    ],
)
def test_bad_options_of_reduce_are_one_line_and_leave_no_journal(cli, made, tmp_path, monkeypatch, options, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.yaml").write_text("day: 2026-01-01\n")
    code, _, err = cli("reduce", made(), "-o", tmp_path / "reduced", *options)
    assert code == 2 and said in err
    assert not list(tmp_path.glob("reduced/*"))
