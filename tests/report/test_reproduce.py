"""An unpacked bundle replays by itself: with its own scripts, and the reprokit inside it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from reprokit.report import bundle

pytestmark = pytest.mark.slow


@pytest.fixture
def unpacked(captured, tmp_path):
    """What a stranger has: a folder, which a user without rights can read."""
    tmp_path.chmod(0o755)
    bundle.unpack(bundle.write(captured, tmp_path / "nan.tar.zst"), tmp_path / "a bundle")
    return tmp_path / "a bundle"


def reproduce(folder, *arguments):
    command = [sys.executable, "-I", str(folder / "reproduce.py"), *arguments]
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)


def snapshot(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_the_captured_failure_comes_back_bit_for_bit(unpacked, captured):
    before = snapshot(unpacked)
    done = reproduce(unpacked, "-n", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["verdict"] == "REPRODUCIBLE" and found["fail"] == found["n"] == 2 and found["infra"] == 0
    assert found["fingerprints"] == {"distinct": 1, "stable": 2}
    assert found["attempts"][0]["fingerprint"] == captured.manifest.fingerprint
    assert "nonfinite_loss at loss, step 3" in done.stderr and "REPRODUCIBLE  2/2 failed as captured" in done.stderr
    assert snapshot(unpacked) == before


def test_run_sh_replays_with_trust_and_without_docker(unpacked, tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (tools / "python3").chmod(0o755)
    for tool in ("sh", "dirname", "cat", "rm"):
        (tools / tool).symlink_to(next(p for p in (Path("/bin") / tool, Path("/usr/bin") / tool) if p.exists()))
    command = [str(unpacked / "run.sh"), "--trust", "-n", "1"]
    done = subprocess.run(command, cwd="/", env={"PATH": str(tools)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "unprotected" in done.stderr and "every attempt failed in the captured way" in done.stderr


@pytest.mark.parametrize("path", ["reprokit/tree.py", "incident/source/tree/train.py", "run.sh"])
def test_an_altered_or_missing_file_is_refused_in_one_line(path, unpacked):
    (unpacked / path).write_text("altered")
    for _ in range(2):
        done = reproduce(unpacked)
        assert done.returncode == 2 and path in done.stderr and done.stderr.count("\n") == 1
        (unpacked / path).unlink(missing_ok=True)


def test_a_file_that_is_not_in_the_manifest_is_refused(unpacked):
    (unpacked / "incident/source/tree/extra.py").write_text("")
    done = reproduce(unpacked)
    assert done.returncode == 2 and "extra.py" in done.stderr and done.stderr.count("\n") == 1


def test_a_python_without_the_right_torch_is_told_so(unpacked):
    assert reproduce(unpacked, "--check").returncode == 0
    (unpacked / "requirements.txt").write_text("torch==0.0.1\n")
    done = reproduce(unpacked, "--check")
    assert done.returncode == 2 and "0.0.1" in done.stderr and done.stderr.count("\n") == 1


BROKEN = [
    "def load_entrypoint(*_):\n    raise BadInput('train.py does not import: no such package')\n",
    "import sys\nif 'serve' in sys.argv[0]:\n    raise ImportError('no such package')\n",
]


@pytest.mark.parametrize("broken", BROKEN)
def test_attempts_that_cannot_run_say_nothing(broken, captured, tmp_path):
    """A build that needs what is not there, a worker that does not start: machinery, not a verdict."""
    bundle.unpack(bundle.write(captured, tmp_path / "nan.tar.zst"), tmp_path / "b")
    loading = tmp_path / "b/reprokit/step/load.py"
    loading.write_text(f"{loading.read_text()}\n{broken}")
    manifest = tmp_path / "b/MANIFEST.sha256"
    lines = [line for line in manifest.read_text().split("\n") if "reprokit/step/load.py" not in line]
    manifest.write_text("\n".join(lines))
    done = reproduce(tmp_path / "b", "-n", "5")
    assert done.returncode == 3 and "no attempt ran" in done.stderr and "no such package" in done.stderr


@pytest.mark.parametrize("arguments", [("-n", "0"), ("-n", "x"), ("--evil",)])
def test_bad_arguments_end_with_2(arguments, unpacked):
    assert reproduce(unpacked, *arguments).returncode == 2
