"""An incident is whole or absent, and a reader refuses in one line what is not the incident that was written."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from reprokit import incident as incidents
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom
from reprokit.incident import DRAFT_PREFIX, MANIFEST, Draft, FileEntry, Incident, Manifest, sweep

FIELDS: dict[str, Any] = {
    "signature": Signature(kind=Kind.NONFINITE_LOSS, where="pred_loss"),
    "symptoms": (Symptom(kind=Kind.NONFINITE_LOSS, where="pred_loss", evidence={"value": float("nan")}),),
    "step": 37,
    "entrypoint": "train.py:build",
    "layout": {"global": "b t c h w"},
    "commit": "c0ffee",
    "fingerprint": {"losses": "ab"},
    "redacted": ("command.json: argv[3]",),
    "left_out": ("batch['meta']",),
}


def fill(draft: Draft) -> None:
    draft.write_yaml("config.yaml", {"lr": 1e-5, "sizes": (1, 2), "name": "größe", "odd\ud800": None})
    draft.write_json("flags.json", {"threads": 2})
    draft.write_json("command.json", {"argv": ["train.py"]})
    draft.write_text("requirements.txt", "torch==2.13.0\n")
    draft.write_text("logs/stdout.txt", "broken \udc80 output\n")
    draft.file("source/tree/pkg/train.py").write_bytes(b"\xff raw")
    draft.file("source/tree/pkg/train.py").chmod(0o755)
    draft.write_tree("state", "state", {"w": torch.arange(100.0)})
    draft.write_tree("ranks/00", "batch", {"global": torch.ones(2, 3)})
    draft.write_tree("ranks/00", "rng", {"torch": torch.get_rng_state()})


def make(out: Path, name: str = "nan", **changes: Any) -> Incident:
    with Draft(out) as draft:
        fill(draft)
        return draft.publish(name, **{**FIELDS, **changes})


@pytest.fixture
def made(tmp_path: Path) -> Incident:
    return make(tmp_path)


def refused(path: Path, *, verify: bool = True) -> str:
    with pytest.raises(BadInput) as raised:
        Incident.open(path, verify=verify)
    message = str(raised.value)
    assert "\n" not in message and "; " in message
    return message


def rewrite(made: Incident, change: Callable[[dict[str, Any]], object], *, forge: bool = True) -> None:
    """Change the manifest, and its id with it: what somebody does who means harm."""
    path = made.path / MANIFEST
    data = json.loads(path.read_text())
    change(data)
    if forge:
        rest = {key: value for key, value in data.items() if key != "id"}
        data["id"] = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps(data))


def test_what_was_written_is_read(made: Incident, tmp_path: Path) -> None:
    opened = Incident.open(made.path)
    assert opened == made and made.path == tmp_path / "nan" and os.listdir(tmp_path) == ["nan"]
    assert opened.config() == {"lr": 1e-5, "sizes": [1, 2], "name": "größe", "odd\ud800": None}
    assert opened.flags() == {"threads": 2} and opened.command()["argv"] == ["train.py"]
    assert opened.requirements() == "torch==2.13.0\n"
    assert opened.batch()["global"].shape == (2, 3) and opened.donor() is None
    assert torch.equal(opened.rng()["torch"], torch.get_rng_state())
    assert opened.state()["w"].tolist() == list(range(100))
    assert (opened.source / "pkg/train.py").read_bytes() == b"\xff raw"
    assert opened.size == sum(entry.bytes for entry in opened.manifest.files.values()) > 0
    assert opened.manifest.signature == FIELDS["signature"] and opened.manifest.step == 37
    with pytest.raises(BadInput, match=r"environment.json: missing"):
        opened.environment()


def test_the_donor_is_read_where_there_is_one(tmp_path: Path) -> None:
    with Draft(tmp_path) as draft:
        draft.write_tree("ranks/00", "donor", [1])
        made = draft.publish("x", **FIELDS | {"signature": None})
    assert made.donor() == [1] and Incident.open(made.path).manifest.signature is None


def test_the_id_is_the_digest_of_the_rest_of_the_manifest(made: Incident) -> None:
    data = json.loads((made.path / MANIFEST).read_text())
    rest = {key: value for key, value in data.items() if key != "id"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()
    assert made.manifest.id == data["id"] == hashlib.sha256(canonical).hexdigest()
    assert Manifest.from_json(made.manifest.to_json()) == made.manifest


def test_equal_content_has_an_equal_id_under_another_name(tmp_path: Path) -> None:
    one, two = (make(tmp_path, created="2026-01-01T00:00:00+00:00") for _ in range(2))
    assert one.manifest.id == two.manifest.id
    assert make(tmp_path, created="2026-01-01T00:00:00+00:00", step=38).manifest.id != one.manifest.id
    assert sorted(os.listdir(tmp_path)) == ["nan", "nan-2", "nan-3"]


def test_an_empty_folder_of_the_same_name_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "nan").mkdir()
    (tmp_path / "nan-2").write_text("")
    assert make(tmp_path).path.name == "nan-3"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_draft_that_is_not_published_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def interrupted() -> None:
        with Draft(tmp_path / "new") as draft:
            fill(draft)
            raise error

    with pytest.raises(error):
        interrupted()
    with Draft(tmp_path / "new") as draft:
        fill(draft)
    assert os.listdir(tmp_path / "new") == []


def test_a_failed_publish_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        make(tmp_path)
    assert os.listdir(tmp_path) == []


def test_all_is_synced_before_the_name_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, bool] = {}
    sync = os.fsync

    def watched(handle: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{handle}")] = (tmp_path / "nan").exists()
        sync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    with Draft(tmp_path) as draft:
        fill(draft)
        made = draft.publish("nan", **FIELDS)
    expected = {draft.path / name for name in (*made.manifest.files, MANIFEST, "", "logs", "source/tree/pkg", "state")}
    assert {str(path) for path in expected} <= synced.keys()
    assert [path for path, named in synced.items() if named] == [str(tmp_path)]


@pytest.mark.parametrize("name", ["", ".", "../x", "a/../x", "/x", "a//b", "a\\b", "a\0b", "a/", "./a", MANIFEST])
def test_a_draft_writes_nowhere_else(tmp_path: Path, name: str) -> None:
    with Draft(tmp_path) as draft, pytest.raises(BadInput) as raised:
        draft.write_text(name, "x")
    assert "\n" not in str(raised.value) and "\0" not in str(raised.value)
    with Draft(tmp_path) as draft, pytest.raises(BadInput):
        draft.publish("a/b" if name == MANIFEST else name, **FIELDS)
    assert os.listdir(tmp_path) == []


def test_a_draft_refuses_what_is_not_plain_and_what_is_linked(tmp_path: Path) -> None:
    with Draft(tmp_path) as draft:
        for write in (draft.write_yaml, draft.write_json):
            with pytest.raises(BadInput, match="config: not plain data"):
                write("config", {"x": object()})
        draft.file("link").symlink_to("/etc/passwd")
        with pytest.raises(BadInput, match="symbolic link"):
            draft.publish("x", **FIELDS)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="choose another folder"), Draft(tmp_path / "file"):
        pass


def test_empty_folders_of_a_draft_are_dropped(tmp_path: Path) -> None:
    with Draft(tmp_path) as draft:
        draft.file("logs/a/never.txt"), draft.write_text("x", "x")
        made = draft.publish("x", **FIELDS)
    assert sorted(os.listdir(Incident.open(made.path).path)) == [MANIFEST, "x"]


# Copies.


def test_a_copy_has_all_but_what_is_named(made: Incident, tmp_path: Path) -> None:
    with Draft(tmp_path) as draft:
        made.copy_into(draft, except_=["ranks/00", "flags.json", "source/tre"])
        draft.write_tree("ranks/00", "batch", {"global": torch.ones(1)})
        copy = draft.publish("small", **FIELDS | {"parent": made.manifest.id})
    expected = {name for name in made.manifest.files if not name.startswith("ranks/") and name != "flags.json"}
    batch = {"ranks/00/batch.json", "ranks/00/batch.safetensors"}
    assert set(Incident.open(copy.path).manifest.files) == expected | batch
    assert all(copy.manifest.files[name] == made.manifest.files[name] for name in expected)
    assert os.access(copy.source / "pkg/train.py", os.X_OK) and copy.manifest.parent == made.manifest.id


def test_a_copy_of_an_altered_file_is_refused(made: Incident, tmp_path: Path) -> None:
    (made.path / "requirements.txt").write_text("torch==6.6.6\n")
    with Draft(tmp_path) as draft, pytest.raises(BadInput, match=r"requirements.txt: does not match its hash"):
        made.copy_into(draft)


# Bad input.


def test_what_is_no_incident_is_refused(tmp_path: Path) -> None:
    assert "no such incident" in refused(tmp_path / "gone")
    (tmp_path / "folder").mkdir()
    assert "not an incident" in refused(tmp_path / "folder")
    (tmp_path / "folder" / "first").mkdir()
    (tmp_path / "folder" / "first" / MANIFEST).write_text("{}")
    assert f"one of the 1 in it, such as {tmp_path / 'folder' / 'first'}" in refused(tmp_path / "folder")
    (tmp_path / "file").write_text("x")
    assert "a file" in refused(tmp_path / "file")
    assert "no such incident" in refused(tmp_path / "line\nbreak")


def test_a_stale_draft_is_no_incident(tmp_path: Path, made: Incident) -> None:
    stale = made.path.rename(tmp_path / f"{incidents.DRAFT_PREFIX}0123")
    assert "never finished" in refused(stale)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("text", ["", "{", "\0", "[" * 100_000, "NaN", "1" * 5000])
def test_a_manifest_that_is_not_json(made: Incident, text: str, verify: bool) -> None:
    (made.path / MANIFEST).write_text(text)
    assert MANIFEST in refused(made.path, verify=verify)


def test_a_truncated_manifest(made: Incident) -> None:
    path = made.path / MANIFEST
    path.write_bytes(path.read_bytes()[:-20])
    assert "truncated or altered" in refused(made.path)


@pytest.mark.parametrize("change", [
    lambda m: m.pop("signature"),
    lambda m: m.pop("files"),
    lambda m: m.update(signature="nan"),
    lambda m: m["signature"].update(kind="other"),
    lambda m: m.update(symptoms=3),
    lambda m: m.update(files=[1]),
    lambda m: m["files"].update(x=3),
    lambda m: m["files"].update(x={"sha256": "x", "bytes": 1}),
    lambda m: m["files"].update(x={"sha256": 1, "bytes": 1}),
    lambda m: m["files"].update(x={"sha256": "0" * 64, "bytes": "1"}),
    lambda m: m.update(step="37"),
    lambda m: m.update(entrypoint=None),
    lambda m: m.update(left_out=[{}]),
    lambda m: m.update(unknown=1),
    lambda m: m.update(schema="1"),
    lambda m: m.update(schema=0),
    lambda m: m.pop("schema"),
])
def test_a_manifest_that_is_not_ours(made: Incident, change: Callable[[dict[str, Any]], object]) -> None:
    rewrite(made, change)
    assert "altered" in refused(made.path, verify=False)


@pytest.mark.parametrize("value", [[], 3, None, "x"])
def test_json_that_is_no_manifest(made: Incident, value: object) -> None:
    (made.path / MANIFEST).write_text(json.dumps(value))
    assert "altered" in refused(made.path)


def test_a_manifest_altered_without_its_id(made: Incident) -> None:
    rewrite(made, lambda m: m.update(step=38), forge=False)
    assert "altered" in refused(made.path, verify=False)


def test_a_newer_schema_says_to_upgrade(made: Incident) -> None:
    rewrite(made, lambda m: m.update(schema=2, new_field=1), forge=False)
    assert "upgrade reprokit" in refused(made.path)


OUTSIDE = ["/etc/passwd", "../nan/flags.json", "a/../../x", "a\\b", "a\0b", "", ".", "a//b", MANIFEST]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_path_outside(made: Incident, name: str) -> None:
    rewrite(made, lambda m: m["files"].update({name: {"sha256": "0" * 64, "bytes": 1}}))
    assert "outside" in refused(made.path, verify=False)


@pytest.mark.parametrize("verify", [True, False])
def test_a_missing_a_truncated_and_an_extra_file(made: Incident, verify: bool) -> None:
    (made.path / "extra\n.txt").write_text("")
    assert "not in the incident's manifest" in refused(made.path, verify=verify)
    (made.path / "extra\n.txt").unlink()
    (made.path / "logs/__pycache__").mkdir()
    assert "__pycache__" in refused(made.path, verify=verify)
    (made.path / "logs/__pycache__").rmdir()
    path = made.path / "state/state.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert "state.safetensors" in refused(made.path, verify=verify) and "truncated" in refused(made.path, verify=verify)
    path.unlink()
    assert "state.safetensors: missing" in refused(made.path, verify=verify)
    path.write_bytes(whole)
    assert Incident.open(made.path, verify=verify) == made


def test_an_altered_file_is_seen_where_hashes_are_asked_for(made: Incident) -> None:
    path = made.path / "state/state.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert "state.safetensors: does not match its hash" in refused(made.path)
    Incident.open(made.path, verify=False)


def test_links_are_not_followed(made: Incident, tmp_path: Path) -> None:
    moved = tmp_path / "moved.json"
    (made.path / "flags.json").rename(moved)
    (made.path / "flags.json").symlink_to(moved)
    assert "symbolic link" in refused(made.path, verify=False)
    (made.path / "flags.json").unlink()
    moved.rename(made.path / "flags.json")
    (made.path / "logs").rename(tmp_path / "logs")
    (made.path / "logs").symlink_to(tmp_path / "logs")
    assert "symbolic link" in refused(made.path)
    (made.path / MANIFEST).rename(moved)
    (made.path / MANIFEST).symlink_to(moved)
    assert MANIFEST in refused(made.path)


def test_what_is_neither_file_nor_folder(made: Incident) -> None:
    os.mkfifo(made.path / "pipe")
    assert "neither a file nor a folder" in refused(made.path)


@pytest.mark.parametrize("text", ["a: b: c", "!!python/object/apply:os.system [ls]", "[" * 10_000, "\0"])
def test_a_config_that_is_not_yaml(tmp_path: Path, text: str) -> None:
    with Draft(tmp_path) as draft:
        draft.write_text("config.yaml", text)
        draft.write_text("flags.json", "{")
        made = draft.publish("x", **FIELDS)
    with pytest.raises(BadInput, match=r"config.yaml: not YAML"):
        made.config()
    with pytest.raises(BadInput, match=r"flags.json: not JSON"):
        made.flags()


def test_entries_say_what_a_file_must_be(made: Incident) -> None:
    raw = (made.path / "requirements.txt").read_bytes()
    assert made.manifest.files["requirements.txt"] == FileEntry(
        sha256=hashlib.sha256(raw).hexdigest(), bytes=len(raw)
    )


# Killed at any moment. One interpreter imports torch and forks the writers, so that a dozen kills take a few seconds.
KILLER = """
import os, random, signal, sys, time
from itertools import count
from pathlib import Path
from reprokit import tree
from reprokit.failure import Kind, Signature
from reprokit.incident import Draft

out = Path(sys.argv[1])
state = tree.pack({"w": bytes(300_000)})
signature = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
whole = lambda: any(not path.name.startswith(".") for path in out.iterdir())
for seed in count():
    if seed >= 12 and whole():
        break
    writer = os.fork()
    if not writer:
        while True:
            with Draft(out) as draft:
                for i in range(5):
                    draft.write_text(f"source/tree/{i}.py", "x" * 10_000)
                draft.write_tree("state", "state", state)
                draft.publish("nan", signature=signature, step=1, entrypoint="a:b", layout={})
    time.sleep(random.Random(seed).uniform(0.02, 0.4) * max(1, seed - 10))  # in the end even a slow disk has one whole
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
"""


def test_killed_at_any_moment_an_incident_is_whole_or_absent(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLER, str(tmp_path)], check=True, timeout=120)
    there = [path for path in tmp_path.iterdir() if not path.name.startswith(incidents.DRAFT_PREFIX)]
    drafts = [path for path in tmp_path.iterdir() if path not in there]
    assert there
    for path in there:
        Incident.open(path)
    for path in drafts:
        refused(path)


def aged(path, seconds):
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_a_sweep_takes_what_was_left_and_nothing_that_is_written_or_whole(tmp_path):
    (left := tmp_path / f"{DRAFT_PREFIX}left").mkdir()
    aged(left, 120)
    with Draft(tmp_path) as done:
        done.write_text("a.txt", "a")
        whole = done.publish("whole", signature=None, step=1, entrypoint="train.py:build", layout={})
    with Draft(tmp_path) as writing:
        aged(writing.path, 3600)
        fresh = tmp_path / f"{DRAFT_PREFIX}fresh"
        fresh.mkdir()
        assert sweep(tmp_path) == [left.name]
        assert writing.path.is_dir() and fresh.is_dir()
    assert Incident.open(whole.path) and not left.exists()
    assert sweep(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    "variables",
    [1, [1], None, {"A": 5}, {"A": None}, {"": "x"}, {"A=B": "x"}, {"A": "a\0b"}, {"A\0": "x"}, {"A": "\ud800"}],
)
def test_variables_that_no_process_has_are_refused_in_one_line(tmp_path, variables):
    (tmp_path / "environment.json").write_text(json.dumps({"variables": variables}))
    with pytest.raises(BadInput, match="variables that no process has"):
        Incident(tmp_path, None).variables()


def test_variables_are_as_they_were_captured(tmp_path):
    captured = {"OMP_NUM_THREADS": "2", "PS1": "a\nb\udc80"}
    (tmp_path / "environment.json").write_text(json.dumps({"variables": captured}))
    assert Incident(tmp_path, None).variables() == captured
    (tmp_path / "environment.json").write_text("{}")
    assert Incident(tmp_path, None).variables() == {}
