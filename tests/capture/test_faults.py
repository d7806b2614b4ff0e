"""Disks that are full or closed, a process that is killed, batches and repositories that are not as they should be.

Training goes on or stops with its own error, an incident is whole or absent, and one line says what was left out.
"""

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import reprokit
from reprokit.capture import writer
from reprokit.capture.disk import Room
from reprokit.incident import Incident
from reprokit.step.load import load_entrypoint

BAD = float("nan")
TRAIN = """
import torch
from torch import nn
import reprokit

def build(config):
    torch.manual_seed(0)
    net = nn.Linear(256, 1)
    def step(batch):
        if "raise" in batch:
            raise KeyError("of training")
        return net(batch["x"]).pow(2).mean()
    return reprokit.Harness(modules={"net": net}, step=step, layout={"x": "b d"},
                            optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
"""


@pytest.fixture
def train(tmp_path):
    """train(out, *batches, **options) -> what a run of them told: paths of incidents, and other errors."""
    code = tmp_path / "code"
    code.mkdir(exist_ok=True)
    (code / "train.py").write_text(TRAIN)

    def run(out, *batches, **options):
        build = load_entrypoint("train.py:build", code)
        given = {"config": {}, "rehearse": False, "entrypoint": "train.py:build"} | options
        told = []
        with reprokit.Recorder(build({}), build=build, out=out, **given) as recorder:
            for batch in batches:
                try:
                    recorder.step(batch)
                except reprokit.IncidentCaptured as found:
                    told.append(found.path)
                except KeyError as error:
                    told.append(error.args[0])
        assert recorder.steps == len(batches)
        return told

    run.code = code
    return run


def batch(value=1.0, size=64, **more):
    return {"x": torch.full((size, 256), value), **more}


def lines(caplog):
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def whole(out):
    """Every entry that shows itself opens, and nothing is left half."""
    assert not [path for path in out.iterdir() if path.name.startswith(".draft-")]
    return [Incident.open(path) for path in out.iterdir() if not path.name.startswith(".")]


@contextmanager
def mounted(folder, options):
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounting needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def unchecked(monkeypatch):
    """Space that is counted and is gone when it is written to: others fill the disk, too."""
    monkeypatch.setattr(writer.disk, "room", lambda *_: Room(bytes=1 << 60, limit=""))


@pytest.mark.slow
@pytest.mark.parametrize("kilobytes", [8, 64, 100, 160, 220, 1 << 16])
def test_a_disk_that_is_full_in_the_middle(train, tmp_path, caplog, unchecked, kilobytes):
    """By its size it ends in the batch, the donor, the history, the code, or not at all."""
    with mounted(tmp_path / "disk", f"size={kilobytes}k") as out:
        told = train(out, batch(), batch(BAD), batch(BAD), batch(**{"raise": 1}))
        fits = kilobytes == 1 << 16  # logs and code are of this process: they are more where many tests ran before
        assert [one for one in told if isinstance(one, str)] == ["of training"] and len(told) == (3 if fits else 1)
        assert len(whole(out)) == (2 if fits else 0)
        assert len(lines(caplog)) == (not fits)
        assert fits or "training is left alone: OSError: [Errno 28] No space left on device" in lines(caplog)[0]


@pytest.mark.slow
def test_a_disk_that_is_nearly_full_is_left_its_reserve(train, tmp_path, caplog):
    with mounted(tmp_path / "disk", "size=1m") as out:
        assert train(out, batch(), batch(BAD), batch(BAD)) == []
        assert list(out.iterdir()) == []
    [line] = lines(caplog)
    assert "no incident of step 2: only" in line and "are free on the disk of" in line and "make room there" in line


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 12, 1 << 16])
def test_a_file_that_may_not_grow(train, tmp_path, caplog, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        told = train(tmp_path / "out", batch(), batch(BAD), batch(BAD), batch(**{"raise": 1}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert told == ["of training"] and whole(tmp_path / "out") == []
    [line] = lines(caplog)
    assert "File too large" in line


@pytest.mark.slow
def test_a_folder_that_is_read_only(train, tmp_path, caplog):
    with mounted(tmp_path / "disk", "ro,size=64m") as out:
        assert train(out, batch(), batch(BAD), batch(BAD), batch(**{"raise": 1})) == ["of training"]
    [line] = lines(caplog)
    assert "Read-only file system" in line and str(out) in line


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_200_random_instants_of_a_write(tmp_path):
    script = Path(__file__).with_name("kill_while_writing.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "200", "7"], capture_output=True, text=True, timeout=1100, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["kills"] == 200 and found["broken"] == []
    assert found["whole"] > 20 and found["drafts"] > 100  # most kills came in the middle
    assert found["swept"] == found["drafts"] and found["left"] == []


class Odd:
    def __repr__(self):
        raise RuntimeError("no words")

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None


def test_a_batch_of_unknown_types(train, tmp_path, caplog):
    looped = []
    looped.append(looped)
    odd = {"odd": Odd(), "lock": threading.Lock(), "file": sys.stdin, "code": lambda: 0, "numbers": (i for i in "ab")}
    told = train(tmp_path / "out", batch(**odd), batch(BAD, **odd))
    assert len(told) == 1
    [found] = whole(tmp_path / "out")
    named = [line for line in found.manifest.left_out if "cannot be stored" in line]
    assert len(named) == len(odd) and all(any(f"['{key}']" in line for line in named) for key in odd)
    assert found.batch()["x"].isnan().all() and set(found.batch()) == {"x", *odd}
    assert len(lines(caplog)) == len(odd)  # one for each entry, at the first step


def test_a_batch_that_contains_itself_costs_the_incidents_and_no_step(train, tmp_path, caplog):
    looped = []
    looped.append(looped)
    assert train(tmp_path / "out", *[batch(BAD, looped=looped)] * 2, batch(looped=looped, **{"raise": 1})) == [
        "of training"
    ]
    assert not (tmp_path / "out").exists()
    [line] = lines(caplog)
    assert "contains itself" in line


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(train):
    git(train.code, "init", "-q")
    git(train.code, "add", ".")
    git(train.code, "commit", "-qm", "first")
    return train.code


@pytest.mark.slow
@pytest.mark.parametrize("head", ["", "ref: refs/heads/gone\n", "0" * 40 + "\n", "\0\0\0", None])
def test_a_repository_with_a_broken_head(train, tmp_path, caplog, repository, head):
    file = repository / ".git" / "HEAD"
    file.unlink()
    if head is not None:
        file.write_text(head)
    assert len(train(tmp_path / "out", batch(), batch(BAD))) == 1
    [found] = whole(tmp_path / "out")
    assert (found.source / "train.py").read_text() == TRAIN and found.manifest.commit is None
    assert lines(caplog) == []


@pytest.mark.slow
def test_a_repository_with_submodules(train, tmp_path, caplog, repository):
    library = tmp_path / "library"
    library.mkdir()
    (library / "lib.py").write_text("X = 1\n")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "lib")
    git(repository, "submodule", "add", "-q", str(library), "lib")
    git(repository, "commit", "-qm", "with")
    (repository / "lib" / "lib.py").write_text("X = 2\n")
    assert len(train(tmp_path / "out", batch(), batch(BAD))) == 1
    [found] = whole(tmp_path / "out")
    assert found.manifest.commit and (found.source / "train.py").exists()
    assert (found.source / "lib" / "lib.py").read_text() == "X = 2\n"
    assert lines(caplog) == []


@pytest.mark.slow
def test_50_000_untracked_files(train, tmp_path, caplog, repository):
    for i in range(50):
        folder = repository / f"data{i}"
        folder.mkdir()
        for j in range(1000):
            (folder / f"{j}.txt").touch()
    assert len(train(tmp_path / "out", batch(), batch(BAD))) == 1
    [found] = whole(tmp_path / "out")
    assert (found.source / "train.py").read_text() == TRAIN
    assert len(found.manifest.files) < 6_000 and any("files" in line for line in found.manifest.left_out)
    assert lines(caplog) == []
