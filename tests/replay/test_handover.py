import json
import os
from pathlib import Path

import pytest

from reprokit.replay import handover
from reprokit.replay.handover import Room, Visible, read_outcome, read_tail
from reprokit.step.outcome import Outcome, Status

PASSED = Outcome(status=Status.PASS).to_json()


def test_an_outcome_is_read_back(tmp_path: Path):
    outcome = Outcome(status=Status.PASS, losses={"loss": 1.5, "aux": float("inf")}, seconds=0.25)
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(outcome.to_json(), allow_nan=False))
    assert read_outcome(path) == outcome


NONSENSE = [b"", b"{", b"[]", b"null", b'{"status": "FAIL"}', b"\xff\xfe", b"[" * 100_000, b'{"status": "MAYBE"}']
ODD = [json.dumps(PASSED | odd).encode() for odd in ({"seconds": 10**400}, {"detail": "\ud800"}, {"host": 7})]


@pytest.mark.parametrize("content", [*NONSENSE, *ODD])
def test_nonsense_is_no_outcome(tmp_path: Path, content: bytes):
    (tmp_path / "outcome.json").write_bytes(content)
    assert read_outcome(tmp_path / "outcome.json") is None


def test_what_is_no_file_is_no_outcome(tmp_path: Path):
    real = tmp_path / "real.json"
    real.write_text(json.dumps(Outcome(status=Status.PASS).to_json()))
    (tmp_path / "link").symlink_to(real)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it: opening it must not wait for somebody who does
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("missing", "link", "folder", "pipe", "endless"):
        assert read_outcome(tmp_path / name) is None


def test_what_only_its_owner_can_read_is_copied_for_others(tmp_path: Path):
    secret = tmp_path / "incident"
    (secret / "state").mkdir(parents=True)
    (secret / "state" / "state.json").write_text("{}")
    (secret / "state" / "link").symlink_to("state.json")
    (secret / "state" / "state.json").chmod(0o600)
    visible = Visible(needed=True)
    copy = visible.of(secret)
    assert copy != secret and visible.of(secret) == copy
    assert (copy / "state" / "state.json").stat().st_mode & 0o777 == 0o644
    assert (copy / "state" / "link").readlink() == Path("state.json")
    assert copy.parent.stat().st_mode & 0o077 == 0  # others get in through the container's mount, not from here
    assert (secret / "state" / "state.json").stat().st_mode & 0o777 == 0o600
    visible.close()
    assert not copy.exists()


def test_what_others_can_read_is_used_where_it_is(tmp_path: Path):
    folder = tmp_path / "incident"
    folder.mkdir(mode=0o755)
    (folder / "file").write_text("")
    (folder / "file").chmod(0o644)
    assert Visible(needed=True).of(folder) == folder
    (folder / "file").chmod(0o600)
    assert Visible(needed=False).of(folder) == folder


def test_the_end_of_a_file_is_read_and_of_nothing_else(tmp_path):
    (tmp_path / "log").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    os.mkfifo(tmp_path / "pipe")
    assert read_tail(tmp_path / "log", 4) == b"6789" and read_tail(tmp_path / "log") == b"0123456789"
    assert [read_tail(tmp_path / name) for name in ("link", "pipe", "nothing", ".")] == [b""] * 4


def test_what_lies_behind_a_folder_that_is_a_link_is_not_read(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "outcome.json").write_text(json.dumps(PASSED))
    (tmp_path / "link").symlink_to("mine")
    assert read_outcome(tmp_path / "mine" / "outcome.json") and read_tail(tmp_path / "mine" / "outcome.json")
    behind = tmp_path / "link" / "outcome.json"
    assert read_outcome(behind) is None and not read_tail(behind)


def test_room_counts_what_is_taken_and_not_what_links_name(tmp_path: Path):
    folder = tmp_path / "out"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_bytes(bytes(3 << 20))
    (tmp_path / "large").write_bytes(bytes(8 << 20))
    (folder / "link").symlink_to(tmp_path / "large")
    (folder / "folder").symlink_to(tmp_path)
    with (folder / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert Room(folder, 4 << 20).exceeded() == ""
    assert "3 MiB, of 2 that it may take" in Room(folder, 2 << 20).exceeded()


def test_a_disk_that_was_full_before_keeps_half_of_what_was_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = iter([100, 51, 49])
    monkeypatch.setattr(handover, "_free", lambda folder: next(free))
    room = Room(tmp_path, 1 << 20)
    assert room.exceeded() == "" and "nearly full" in room.exceeded()
