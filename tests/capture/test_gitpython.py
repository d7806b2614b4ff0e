"""GitPython starts git for us, and leaves nothing of that in the process of a training run."""

import os
import shutil
import subprocess
import sys

import pytest

from reprokit.capture import repository
from reprokit.capture.repository import GitError, git

_SCRIPT = """
import os, sys
before, mapping = dict(os.environ), os.environ
from reprokit.capture import repository
{first}
repository.git({folder!r}, "version")
assert os.environ is mapping and dict(os.environ) == before
assert {first!r} or "git" not in sys.modules
import git
assert git.GIT_OK and git.Git.GIT_PYTHON_GIT_EXECUTABLE == "git"
"""


@pytest.mark.parametrize("first", ["", "import git"])
def test_who_else_wants_gitpython_finds_it_as_if_we_had_not_been_here(tmp_path, first):
    script = _SCRIPT.format(first=first, folder=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", [None, "GIT_DIR"])
def test_no_git_is_told_apart_from_a_git_that_refuses(tmp_path, monkeypatch, variable):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/env").symlink_to(shutil.which("env"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    if variable:
        monkeypatch.setenv(variable, "x")
    with pytest.raises(GitError, match=r"^git cannot be run \(.*No such file or directory\)$") as raised:
        git(tmp_path, "version", tolerant=True)
    assert type(raised.value) is GitError


def test_without_gitpython_the_record_says_so(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "reprokit.capture._gitpython", raising=False)
    monkeypatch.delattr("reprokit.capture._gitpython", raising=False)
    monkeypatch.setitem(sys.modules, "git", None)
    with pytest.raises(GitError, match="GitPython is missing"):
        git(tmp_path, "version")


def test_a_folder_whose_name_looks_like_a_variable_is_itself(tmp_path):
    for name in ("$HOME", "~"):
        (tmp_path / name).mkdir()
        git(tmp_path / name, "init", "-q")
        assert repository.Repository.find(tmp_path / name).top == tmp_path / name


def test_bytes_go_in_and_come_out_as_they_are(tmp_path):
    git(tmp_path, "init", "-q")
    data = bytes(range(256)) * 4096 + b"\n\n"
    blob = git(tmp_path, "hash-object", "-w", "--stdin", stdin=data).decode().strip()
    assert git(tmp_path, "cat-file", "blob", blob) == data
