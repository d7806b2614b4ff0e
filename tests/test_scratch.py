"""Temporary folders of a process that was killed go when the next one starts, and nobody else's do."""

import os
import signal
import subprocess
import sys
import time

import pytest

from reprokit import _scratch
from reprokit._scratch import PREFIX, Scratch, sweep

LONG_AGO = time.time() - 3600


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _scratch._sweep_once.cache_clear()
    yield tmp_path
    _scratch._sweep_once.cache_clear()


def made(folder, inside=""):
    """A folder as of an hour ago."""
    (folder / inside).mkdir(parents=True)
    return aged(folder)


def aged(folder):
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


def test_a_folder_goes_with_its_context(temporary):
    with Scratch("word") as name:
        assert [one.name for one in temporary.iterdir()] == [os.path.basename(name)] and f"{PREFIX}word-" in name
    assert not list(temporary.iterdir())


def test_what_is_held_is_fresh_is_a_link_or_is_not_ours_stays(temporary):
    held = Scratch("held")
    aged(held.name)
    fresh, link, file = (temporary / f"{PREFIX}{what}" for what in ("fresh", "link", "file"))
    fresh.mkdir()
    link.symlink_to(made(temporary / "elsewhere", "deep"))
    file.write_text("mine")
    aged(file)
    made(temporary / "reprokit-notes")
    assert sweep(temporary) == []
    assert os.listdir(link) == ["deep"]
    held.cleanup()
    made(temporary / f"{PREFIX}left")
    assert sweep(temporary) == [f"{PREFIX}left"]


@pytest.mark.slow
def test_what_a_killed_process_left_is_removed_by_the_next(temporary):
    code = "import time, reprokit._scratch as s; x = s.Scratch('x'); print(x.name, flush=True); time.sleep(600)"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True) as process:
        left = process.stdout.readline().strip()
        aged(left)
        assert sweep(temporary) == []  # it lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert os.path.isdir(left)
    with Scratch("next"):
        assert not os.path.exists(left)
