"""stdout and stderr of a process of its own: what comes there, who reads it, and what becomes of the exit code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = "from reprokit.cli.main import run; run()"
REPLAY = ("--engine", "inline", "-n", "1")

pytestmark = pytest.mark.slow


@pytest.fixture
def start(tmp_path):
    """start(*words, **of Popen) -> a process of `reprokit`, with a cache of its own."""

    def started(*words, code=RUN, **options):
        env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen([sys.executable, "-c", code, *map(str, words)], env=env, **options)

    return started


def noisy(script):
    says = "print('a step'); __import__('os').write(1, b'a library')"
    return script.replace("step=lambda batch:", f"step=lambda batch: exec({says!r}) or")


def test_whatever_prints_in_this_process_stdout_has_one_object(made, start, tmp_path):
    (tmp_path / "mine.py").write_text("print('imported')\ndef fails(outcome):\n    print('asked')\n    return True\n")
    words = ("replay", made(noisy), *REPLAY, "--predicate", f"{tmp_path}/mine.py:fails", "--json")
    out, err = start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).communicate(timeout=120)
    assert json.loads(out)["verdict"] == "REPRODUCIBLE" and out.count("\n") == 1
    assert all(said in err for said in ("imported", "asked", "a step", "a library"))


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
def test_a_reader_who_leaves_changes_no_exit_code(made, start, more):
    """Both streams, as of `2>&1 | head -1`."""
    read, write = os.pipe()
    os.close(read)
    with start("replay", made(), *REPLAY, *more, stdout=write, stderr=write) as running:
        os.close(write)
        assert running.wait(timeout=120) == 0


def test_streams_that_were_closed_before_are_taken_by_no_file(made, start, tmp_path):
    close = "import os; [os.close(n) for n in (0, 1, 2)]; from reprokit.cli.main import run; run()"
    words = ("replay", made(noisy), *REPLAY, "--out", tmp_path / "run")
    done = subprocess.run([sys.executable, "-c", close, *map(str, words)], timeout=120, check=False)
    assert done.returncode == 0
    assert all(json.loads(line) for line in (tmp_path / "run/attempts.jsonl").read_text().splitlines())


def test_a_full_disk_behind_stderr_hides_no_exit_code(start):
    with Path("/dev/full").open("w") as full:
        assert start("show", "nowhere", stderr=full).wait(timeout=120) == 2


def test_signals_that_keep_coming_disturb_no_end(made, start, tmp_path):
    """As from Ctrl-C pressed again and again: what runs is ended, what is known is said, with its exit code. Until then
    a machine that is busy has more than the usual time."""
    patient = "from reprokit.cli import signals; signals._CALM = 300.0; from reprokit.cli.main import run; run()"
    begun = tmp_path / "begun"
    waits = lambda script: script.replace(
        "step=lambda batch:", f"step=lambda batch: open({str(begun)!r}, 'w') and __import__('time').sleep(600) or"
    )
    words = ("replay", made(waits), "--engine", "process", "-n", "2", "--jobs", "1", "--json")
    pipe = subprocess.PIPE
    with start(*words, code=patient, stdout=pipe, stderr=pipe, text=True) as running:
        while not begun.exists() and running.poll() is None:
            time.sleep(0.05)
        while running.poll() is None:
            running.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        out, err = running.communicate()
    assert running.returncode == 12, err
    assert json.loads(out)["stopped"] == "interrupted" and "Traceback" not in err
