"""Incidents by id, in every kind of place: what comes back is what went in, or is refused in one line."""

import json
import multiprocessing
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.incident import MANIFEST, Draft, FileEntry, Incident, Manifest
from reprokit.store.objects import Store

FILES = {"config.yaml": "depth: 2\n", "state/state.json": "{}", "ranks/00/batch.json": '{"x": 1}', "copy.txt": "{}"}


def publish(out: Path, files: dict[str, str | bytes]) -> Incident:
    with Draft(out) as draft:
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode()
            draft.file(name).write_bytes(data)
        return draft.publish(
            "nan",
            signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss"),
            step=3,
            entrypoint="train:build",
            layout={"x": "b"},
        )


def contents(incident: Incident) -> dict[str, bytes]:
    return {name: (incident.path / name).read_bytes() for name in (*incident.manifest.files, MANIFEST)}


@pytest.fixture
def incident(tmp_path: Path) -> Incident:
    return publish(tmp_path / "incidents", FILES)


@pytest.fixture(params=["folder", "file", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    shared = tmp_path / "store"
    name = f"memory://{tmp_path.name}"
    return Store({"folder": str(shared), "file": f"file://{shared}", "memory": name}[request.param])


def objects(folder: Path) -> set[Path]:
    return {path for path in (folder / "objects").rglob("*") if path.is_file()}


def damage(store_url: str, tmp_path: Path, content: bytes | None, pick: str) -> None:
    """Of the object that holds this content in a folder or in memory."""
    system, root = fsspec.core.url_to_fs(store_url)
    [name] = [name for name in system.find(root) if system.cat_file(name) == pick.encode()]
    system.rm_file(name) if content is None else system.pipe_file(name, content)


def test_what_comes_back_is_what_went_in(store: Store, incident: Incident, tmp_path: Path):
    found = store.get(store.put(incident), tmp_path / "cache")
    assert found.manifest == incident.manifest
    assert contents(found) == contents(incident)


@settings(max_examples=20)
@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_any_contents_come_back(tmp_path_factory: pytest.TempPathFactory, files: list[bytes]):
    tmp_path = tmp_path_factory.mktemp("any")
    incident = publish(tmp_path / "incidents", {f"ranks/{i:02}/batch": content for i, content in enumerate(files)})
    store = Store(str(tmp_path / "store"))
    assert contents(store.get(store.put(incident), tmp_path / "cache")) == contents(incident)
    assert len(objects(tmp_path / "store")) == len(set(files))


def test_a_second_incident_stores_only_what_changed(tmp_path: Path):
    store, folder = Store(str(tmp_path / "store")), tmp_path / "store"
    store.put(publish(tmp_path / "one", FILES))
    before = {path: path.stat().st_mtime_ns for path in objects(folder)}
    assert len(before) == len(set(FILES.values()))  # the same content once
    store.put(publish(tmp_path / "two", {**FILES, "ranks/00/batch.json": '{"x": 2}'}))
    after = {path: path.stat().st_mtime_ns for path in objects(folder)}
    assert len(after) == len(before) + 1
    assert before.items() <= after.items()


def test_storing_again_changes_nothing_and_mends_what_was_cut_short(store: Store, incident: Incident, tmp_path: Path):
    id = store.put(incident)
    damage(store.url, tmp_path, b"cut", pick=FILES["config.yaml"])
    assert store.put(incident) == id
    assert contents(store.get(id, tmp_path / "cache")) == contents(incident)


def test_an_object_that_was_altered_is_refused(store: Store, incident: Incident, tmp_path: Path):
    id = store.put(incident)
    damage(store.url, tmp_path, b"depth: 3\n", pick=FILES["config.yaml"])
    with pytest.raises(BadInput, match="not what was stored there; delete it"):
        store.get(id, tmp_path / "cache")
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]  # nothing half fetched is left


def test_an_object_that_is_missing_is_named(store: Store, incident: Incident, tmp_path: Path):
    id = store.put(incident)
    damage(store.url, tmp_path, None, pick=FILES["config.yaml"])
    with pytest.raises(BadInput, match=r"objects/.*: missing; put the incident there again"):
        store.get(id, tmp_path / "cache")


def test_a_manifest_that_is_another_one_is_refused(tmp_path: Path):
    store, folder = Store(str(tmp_path / "store")), tmp_path / "store/incidents"
    one = store.put(publish(tmp_path / "one", FILES))
    two = store.put(publish(tmp_path / "two", {**FILES, "more.txt": "more"}))
    shutil.copy(folder / f"{two}.json", folder / f"{one}.json")
    with pytest.raises(BadInput, match="not what was stored there"):
        store.get(one, tmp_path / "cache")


def test_a_manifest_that_leads_outside_is_refused(tmp_path: Path):
    signature = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
    files = {"../../escaped": FileEntry(sha256="0" * 64, bytes=1)}
    evil = Manifest(signature=signature, step=1, entrypoint="a:b", layout={}, files=files).to_json()
    folder = tmp_path / "store/incidents"
    folder.mkdir(parents=True)
    (folder / f"{evil['id']}.json").write_text(json.dumps(evil))
    with pytest.raises(BadInput, match="not what was stored there"):
        Store(str(tmp_path / "store")).get(evil["id"], tmp_path / "cache")


def test_what_is_not_in_the_store_is_said(store: Store, tmp_path: Path):
    with pytest.raises(BadInput, match=r"not in the store .*; check the id, or --store"):
        store.get("0" * 64, tmp_path / "cache")
    with pytest.raises(BadInput, match="not the id of an incident"):
        store.get("../escape", tmp_path / "cache")


def test_an_altered_file_is_not_stored(store: Store, incident: Incident, tmp_path: Path):
    (incident.path / "config.yaml").write_text("depth: 9\n")
    with pytest.raises(BadInput, match="does not match its hash"):
        store.put(incident)
    with pytest.raises(BadInput, match="not in the store"):  # the manifest is last
        store.get(incident.manifest.id, tmp_path / "cache")


def test_a_file_that_is_gone_is_said(store: Store, incident: Incident):
    (incident.path / "config.yaml").unlink()
    with pytest.raises(BadInput, match=r"config.yaml: missing"):
        store.put(incident)


def test_a_cached_copy_is_used_and_an_altered_one_fetched_again(incident: Incident, tmp_path: Path):
    store, cache = Store(str(tmp_path / "store")), tmp_path / "cache"
    found = store.get(store.put(incident), cache)
    shutil.rmtree(tmp_path / "store")
    assert store.get(incident.manifest.id, cache).path == found.path  # no store is asked
    store.put(incident)
    (found.path / "config.yaml").write_text("altered")
    assert contents(store.get(incident.manifest.id, cache)) == contents(incident)


def _get(url: str, id: str, cache: str) -> int:
    return Store(url).get(id, Path(cache)).path.stat().st_ino


@pytest.mark.slow
def test_processes_that_ask_at_once_share_one_copy(incident: Incident, tmp_path: Path):
    url, cache = str(tmp_path / "store"), str(tmp_path / "cache")
    id = Store(url).put(incident)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert len(set(pool.starmap(_get, [(url, id, cache)] * 6))) == 1


def test_threads_that_store_at_once_do_not_meet(incident: Incident, tmp_path: Path):
    store = Store(str(tmp_path / "store"))
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: store.put(incident), range(16)))) == 1
    assert not list((tmp_path / "store").rglob(".part-*"))
    assert contents(store.get(incident.manifest.id, tmp_path / "cache")) == contents(incident)


def test_a_place_that_cannot_be_written_is_one_line(incident: Incident, tmp_path: Path):
    (tmp_path / "store").write_text("a file")
    with pytest.raises(Infrastructure, match="the store cannot be used"):
        Store(str(tmp_path / "store")).put(incident)


def test_a_cache_that_cannot_be_written_is_one_line(incident: Incident, tmp_path: Path):
    store = Store(str(tmp_path / "store"))
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(Infrastructure, match="cache: File exists"):
        store.get(store.put(incident), tmp_path / "cache")


def test_an_unknown_kind_of_store_is_one_line():
    with pytest.raises(BadInput, match=r"nosuch://x: no store; give a folder, file:// or s3://"):
        Store("nosuch://x")


def test_credentials_of_a_url_are_not_shown():
    with pytest.raises(BadInput) as caught:
        Store("nosuch://me:secret@host/x")
    assert "secret" not in str(caught.value)
