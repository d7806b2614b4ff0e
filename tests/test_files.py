"""Where a report is to be written: a file is whole or as it was, and nothing else is replaced."""

import os
import stat
import subprocess
import sys
import threading

import pytest

from reprokit import _files


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    for text in (b"one", b"two"):
        _files.write_out(tmp_path / "report.xml", text)
    assert (tmp_path / "report.xml").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["report.xml"]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one(tmp_path, there):
    target = tmp_path / "far" / "real.xml"
    target.parent.mkdir()
    if there:
        target.write_text("old")
    (tmp_path / "link.xml").symlink_to("far/real.xml")
    _files.write_out(tmp_path / "link.xml", b"new")
    assert os.readlink(tmp_path / "link.xml") == "far/real.xml"
    assert target.read_bytes() == b"new" and not target.is_symlink()


@pytest.mark.parametrize("link", [False, True])
def test_a_device_is_written_into(tmp_path, link):
    """One beside the tests: what breaks must not take the machine's own with it."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except PermissionError:
        pytest.skip("devices cannot be made here")
    path = tmp_path / "link" if link else device
    if link:
        path.symlink_to(device)
    _files.write_out(path, b"text")
    assert stat.S_ISCHR(device.stat().st_mode) and path.is_symlink() is link


def test_a_pipe_is_written_into_and_one_that_nobody_reads_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        _files.write_out(tmp_path / "pipe", b"text")
    read, reader = [], os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    with os.fdopen(reader, "rb") as file:
        writer = os.open(tmp_path / "pipe", os.O_WRONLY)  # without any, who reads too early is at the end
        thread = threading.Thread(target=lambda: read.append(file.read()))
        thread.start()
        _files.write_out(tmp_path / "pipe", b"x" * 2**20)
        os.close(writer)
        thread.join()
    assert read == [b"x" * 2**20]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("path", ["/dev/stdout", "/proc/self/fd/1", "LINK"])
def test_a_stream_that_is_a_file_keeps_what_it_has(tmp_path, path):
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc here")
    (tmp_path / "LINK").symlink_to("/dev/stdout")
    code = f"from pathlib import Path; from reprokit import _files; _files.write_out(Path({path!r}), b'report')"
    with (tmp_path / "out.txt").open("wb") as out:
        out.write(b"before ")
        out.flush()
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, stdout=out, check=True)
    assert (tmp_path / "out.txt").read_bytes() == b"before report"


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(IsADirectoryError):
        _files.write_out(tmp_path, b"text")
