"""How many attempts at once."""

from pathlib import Path
from types import SimpleNamespace

import psutil
from hypothesis import given
from hypothesis import strategies as st

from reprokit.incident import FileEntry
from reprokit.replay import share
from reprokit.replay.container import jobs_for

GIB = 1 << 30


def incident(**sizes):
    files = {path.replace("__", "/"): FileEntry(sha256="", bytes=size) for path, size in sizes.items()}
    return SimpleNamespace(manifest=SimpleNamespace(files=files))


def test_a_small_incident_needs_what_torch_needs_and_a_large_one_its_state_again_and_again():
    assert share.need_of(incident(state__state=1000)) == share.NEED
    assert share.need_of(incident(state__state=2 * GIB, ranks__00=GIB, source__tree=50 * GIB)) == 13 * GIB


@given(st.integers(1, 256), st.integers(1, 4096 * GIB), st.integers(1, 64 * GIB))
def test_no_more_at_once_than_cores_or_than_memory_bears(cpus, memory, need):
    jobs = jobs_for(cpus, memory, need)
    assert 1 <= jobs <= cpus and (jobs == 1 or jobs * need <= memory * 4 / 5)


def test_the_limit_of_a_control_group_counts_where_it_is_less(tmp_path: Path):
    everything = psutil.virtual_memory().total
    assert share.memory(tmp_path) == everything
    (tmp_path / "memory.max").write_text("max\n")
    assert share.memory(tmp_path) == everything
    (tmp_path / "memory.max").write_text("1000000\n")
    assert share.memory(tmp_path) == 1_000_000
    (tmp_path / "memory.max").unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert share.memory(tmp_path) == everything


def test_jobs_are_those_of_this_machine(monkeypatch):
    monkeypatch.setattr(share, "cores", lambda: 8)
    monkeypatch.setattr(share, "memory", lambda: 16 * GIB)
    assert share.jobs(3 * GIB) == 4 and share.jobs(100 * GIB) == 1 and share.jobs(1) == 8
