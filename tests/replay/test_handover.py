import json
import os
from pathlib import Path

import pytest

from reprokit.replay.handover import Visible, read_outcome
from reprokit.step.outcome import Outcome, Status


def test_an_outcome_is_read_back(tmp_path: Path):
    outcome = Outcome(status=Status.PASS, losses={"loss": 1.5, "aux": float("inf")}, seconds=0.25)
    path = tmp_path / "outcome.json"
    path.write_text(json.dumps(outcome.to_json(), allow_nan=False))
    assert read_outcome(path) == outcome


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"status": "FAIL"}', b"\xff\xfe", b"[" * 100_000, b'{"status": "MAYBE"}']
)
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
