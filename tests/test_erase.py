"""A folder that somebody's code had, and what it may have left there."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit._files import erase

ENTRIES = st.recursive(
    st.sampled_from(["file", "link", "pipe", "empty"]),
    lambda below: st.dictionaries(st.sampled_from([".0", ".1", "a", "b\n", "é"]), below, max_size=3),
    max_leaves=12,
)


def plant(place: Path, what, outside: Path, mode: int) -> None:
    if isinstance(what, dict):
        place.mkdir()
        for name, below in what.items():
            plant(place / name, below, outside, mode)
        place.chmod(mode)
    elif what == "file":
        place.write_text("x")
    elif what == "link":
        place.symlink_to(outside)
    elif what == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir(mode=0)


@given(ENTRIES, st.sampled_from([0o000, 0o555, 0o700]))
def test_all_goes_and_nothing_that_a_link_names(tmp_path_factory, what, mode):
    folder = tmp_path_factory.mktemp("erase")
    outside = folder / "outside"
    outside.mkdir(mode=0o750)
    (outside / "mine").write_text("x")
    plant(folder / "theirs", {"all": what}, outside, mode)
    erase(folder / "theirs")
    assert not (folder / "theirs").exists()
    assert [path.name for path in outside.iterdir()] == ["mine"] and outside.stat().st_mode & 0o777 == 0o750


def test_depth_costs_no_stack(tmp_path):
    here = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=here)
        below = os.open("deeper", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    erase(tmp_path)
    assert not tmp_path.exists()


def test_a_folder_that_is_a_link_or_not_there_is_left_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    (tmp_path / "link").symlink_to("mine")
    erase(tmp_path / "link")
    erase(tmp_path / "none")
    assert (tmp_path / "mine" / "file").exists()


AS_NOBODY = """
    import os, sys
    from reprokit._scratch import Scratch
    os.setgid(1000), os.setuid(1000)  # for root no folder forbids anything
    with Scratch("test") as name:
        mine = os.path.join(sys.argv[1], "mine")
        open(mine, "w").close()
        os.chmod(mine, 0o600)
        os.makedirs(f"{name}/a/b/c")
        os.symlink(mine, f"{name}/a/b/link")
        os.symlink(mine, f"{name}/a/b/c/link")
        for folder in ("a/b/c", "a/b", "a"):
            os.chmod(f"{name}/{folder}", 0o555)
    assert not os.path.exists(name), name
    assert os.stat(mine).st_mode & 0o777 == 0o600, oct(os.stat(mine).st_mode)
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_folders_that_forbid_it_go_and_a_links_target_keeps_its_mode():
    """`tempfile` before 3.11.8 changes the mode of what a link names, when a folder refuses to let the link go."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is below a folder of root's alone
        os.chown(folder, 1000, 1000)
        command = [sys.executable, "-c", textwrap.dedent(AS_NOBODY), folder]
        done = subprocess.run(command, env={**os.environ, "TMPDIR": folder}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
