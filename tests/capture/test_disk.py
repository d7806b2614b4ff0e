"""What is left out where room is short, what is left of a batch without its content, how failures are counted."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit import tree
from reprokit.capture import counts, disk, pointers
from reprokit.capture.disk import REST, Disk
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.incident import Draft

PARTS = ("history", "donor", "state", "batch")
NEEDS = st.fixed_dictionaries({part: st.integers(0, 1 << 40) for part in PARTS})


@given(NEEDS, st.integers(0, 1 << 42))
def test_what_is_left_fits_and_nothing_more_is_left_out_than_must_be(needs, room):
    gone = disk.spared(needs, room)
    if gone is None:
        assert room < REST
        return
    taken = lambda without: REST + sum(size for part, size in needs.items() if part not in without)
    assert taken(gone) <= room
    assert all(needs[part] for part in gone)
    assert not gone or taken(gone[:-1]) > room


@given(NEEDS)
def test_where_there_is_room_nothing_is_left_out(needs):
    assert disk.spared(needs, REST + sum(needs.values())) == []


def test_the_order_is_history_donor_and_the_larger_of_what_makes_it_run():
    needs = {"history": 4, "donor": 3, "state": 1, "batch": 2}
    assert disk.spared(needs, REST) == ["history", "donor", "batch", "state"]
    assert disk.spared({**needs, "state": 3}, REST) == ["history", "donor", "state", "batch"]
    assert disk.spared(needs, REST + 3) == ["history", "donor"]


@pytest.mark.parametrize(("limits", "written", "bytes", "says"), [
    (Disk(max_incident_bytes=1000), 0, 1000, "max_incident_bytes"),
    (Disk(max_run_bytes=1000), 400, 600, "max_run_bytes"),
])  # fmt: skip
def test_the_narrowest_limit_is_the_room_and_is_named(tmp_path, limits, written, bytes, says):
    found = disk.room(limits, tmp_path / "not" / "yet", written)
    assert found.bytes == bytes and says in found.limit


def test_a_full_disk_has_no_room_but_for_the_reserve(tmp_path, monkeypatch):
    usage = lambda path: type("Usage", (), {"total": 100 << 30, "free": (1 << 30) + 5})
    monkeypatch.setattr(disk.shutil, "disk_usage", usage)
    found = disk.room(Disk(), tmp_path, 0)
    assert found.bytes == 5 and found.limit.startswith("1.07 GB are free on the disk of")


@pytest.mark.parametrize("value", [-1, True, "8 GB", None, float("nan")])
def test_limits_that_are_no_sizes_are_refused(value):
    with pytest.raises(BadInput, match="max_run_bytes"):
        Disk(max_run_bytes=value)


def test_pointers_keep_names_and_numbers_and_no_content():
    batch = {
        "video": torch.zeros(2, 3, 4, dtype=torch.uint8),
        "path": ["a/1.mp4", "a/2.mp4"],
        "meta": {"id": torch.tensor([7, 9]), "index": 3, "start": (0.5, 1.5), "mask": np.zeros((2, 2), bool)},
        "encoded": [b"secret bytes", bytearray(b"x")],
        "jpeg": torch.zeros(50, dtype=torch.uint8),
        "audio": np.zeros(50, np.float32),
        3: {"$": "odd", "x": torch.zeros(3)},
    }
    packed = pointers.of(tree.pack(batch))
    found, gone = tree.unpack(packed), tree.MISSING
    assert [found[key] for key in ("video", "jpeg", "audio", "encoded")] == [gone, gone, gone, [gone, gone]]
    assert found["path"] == batch["path"] and found["meta"]["index"] == 3 and found["meta"]["start"] == (0.5, 1.5)
    assert found["meta"]["id"].tolist() == [7, 9] and found["meta"]["mask"] is gone
    assert found[3] == {"$": "odd", "x": gone}
    assert packed.nbytes == 16


LEAF = st.one_of(
    st.text(max_size=5), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.none(), st.booleans(),
    st.builds(lambda n: torch.arange(n), st.integers(0, 4)), st.builds(lambda n: torch.rand(n, 2), st.integers(0, 3)),
    st.binary(max_size=4), st.sampled_from(["missing", "tensor", "$"]),
)  # fmt: skip
TREE = st.recursive(LEAF, lambda inner: st.one_of(
    st.lists(inner, max_size=3), st.tuples(inner, inner),
    st.dictionaries(st.one_of(st.text(max_size=3), st.just("$"), st.integers(0, 3)), inner, max_size=3),
), max_leaves=8)  # fmt: skip


def without_content(value):
    if isinstance(value, torch.Tensor):
        return value.tolist() if value.dim() <= 1 and value.dtype == torch.int64 else tree.MISSING
    if isinstance(value, bytes):
        return tree.MISSING
    if isinstance(value, dict):
        return {key: without_content(item) for key, item in value.items()}
    return type(value)(map(without_content, value)) if isinstance(value, list | tuple) else value


@given(TREE)
def test_pointers_are_the_same_data_without_content(data):
    """Also where the user's own data looks like our notation."""
    found = tree.unpack(pointers.of(tree.pack(data)))
    assert without_content(found) == without_content(data)


FIRST = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
OTHER = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", message="key=hunter2")


def incident(out, name, step=5):
    with Draft(out) as draft:
        return draft.publish(name, signature=FIRST, step=step, entrypoint="train.py:build", layout={})


def test_the_same_failure_is_counted_beside_the_incident(tmp_path):
    found, other = incident(tmp_path, "one"), incident(tmp_path, "two", 6)
    seen = counts.Counts(tmp_path)
    assert seen.again(FIRST, 5) is None
    seen.add(FIRST, found, 5)
    seen.add(OTHER, other, 6)
    for step in range(7, 18):
        assert seen.again(FIRST, step) == found.path
    seen.save()
    assert counts.seen(found) == {"times": 12, "last": 17} and counts.seen(other) is None
    assert "hunter2" not in (tmp_path / counts.FILE).read_text()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [counts.FILE, "one", "two"]


def test_counts_are_written_at_most_once_a_second_and_in_the_end(tmp_path):
    now = [0.0]
    seen, found = counts.Counts(tmp_path, lambda: now[0]), incident(tmp_path, "one")
    seen.add(FIRST, found, 1)
    for step in range(2, 6):
        seen.again(FIRST, step)
    assert counts.seen(found) == {"times": 2, "last": 2}
    now[0] = 1.5
    seen.again(FIRST, 6)
    assert counts.seen(found) == {"times": 6, "last": 6}
    seen.again(FIRST, 7)
    seen.save()
    assert counts.seen(found) == {"times": 7, "last": 7}


def test_runs_add_to_what_others_counted(tmp_path):
    for step, name in enumerate(("one", "two")):
        seen, found = counts.Counts(tmp_path), incident(tmp_path, name, step)
        seen.add(FIRST, found, 1)
        seen.again(FIRST, 2)
    assert len(json.loads((tmp_path / counts.FILE).read_text())) == 2


@pytest.mark.parametrize("text", ["", "[]", "{", '{"ID": {"times": "12", "last": 3}}', '{"ID": [1]}', "[" * 10**5])
def test_counts_that_nobody_wrote_say_nothing(tmp_path, text):
    found = incident(tmp_path, "one")
    (tmp_path / counts.FILE).write_text(text.replace("ID", found.manifest.id))
    assert counts.seen(found) is None
