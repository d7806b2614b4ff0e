"""A bundle: the same bytes each time, verified without unpacking, and refused in one line where anything is off."""

import json
import shutil
import subprocess
import sys

import pytest

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.report import archive, bundle
from reprokit.report.checksums import MANIFEST


@pytest.fixture
def written(captured, tmp_path):
    return bundle.write(captured, tmp_path / "nan.tar.zst")


def contents(file):
    """Path -> bytes, of everything in an archive."""
    found = {}
    archive.read(file, lambda path, chunk: found.__setitem__(path, found.get(path, b"") + chunk))
    return found


def test_the_same_incident_gives_the_same_bytes(captured, copy, written, tmp_path):
    again = bundle.write(Incident.open(copy), tmp_path / "elsewhere" / "nan.tar.zst")
    assert again.read_bytes() == written.read_bytes()


def test_it_verifies_and_keeps_the_id(captured, written, tmp_path):
    assert bundle.verify(written) == captured.manifest
    incident = bundle.unpack(written, tmp_path / "out")
    assert incident.manifest == captured.manifest and incident.path == tmp_path / "out/incident"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["nan.tar.zst", "out"]


def test_everything_a_person_needs_is_inside(written):
    found = contents(written)
    assert {*bundle.ALWAYS, MANIFEST, "reprokit/step/worker.py", "reprokit/replay/verdict.py"} <= found.keys()
    assert not [path for path in found if "__pycache__" in path or path.startswith(("reprokit/cli", "reprokit/report"))]
    assert found["requirements.txt"] == found["incident/requirements.txt"]


def test_the_copy_of_reprokit_stands_alone(written, tmp_path):
    bundle.unpack(written, tmp_path / "out")
    rooms = ("step.worker", "replay.verdict", "incident", "capture.recorder", "video.train")
    names = ", ".join(f"reprokit.{room}" for room in rooms)
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {names}; print(reprokit.__file__)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], cwd="/", capture_output=True, text=True)
    assert done.stdout.strip() == str(tmp_path / "out/reprokit/__init__.py"), done.stderr


def test_a_name_of_no_image_is_refused(captured, tmp_path):
    with pytest.raises(BadInput, match="image"):
        bundle.write(captured, tmp_path / "b", image="x'; touch evil #")
    assert not list(tmp_path.iterdir())


def test_open_any_knows_what_is_foreign(captured, written, tmp_path):
    assert bundle.open_any(captured.path) == (captured, False)
    incident, foreign = bundle.open_any(written)
    assert incident.manifest == captured.manifest and foreign
    bundle.unpack(written, tmp_path / "out")
    for path in (tmp_path / "out", tmp_path / "out/incident"):
        incident, foreign = bundle.open_any(path)
        assert incident.manifest.id == captured.manifest.id and foreign
    for nothing in (tmp_path / "absent", tmp_path):
        with pytest.raises(BadInput):
            bundle.open_any(nothing)


def repack(written, out, change):
    """The same bundle with other files, honestly hashed: the incident inside has to defend itself."""
    files = contents(written)
    del files[MANIFEST]
    change(files)
    index = archive.read(written)
    archive.pack(files, top="b", incident=index.incident, out=out)
    return out


def alter(path, content):
    return lambda files: files.update({path: content})


def newer(files):
    manifest = json.loads(files["incident/incident.json"])
    files["incident/incident.json"] = json.dumps(manifest | {"schema": 99}).encode()


def other_step(files):
    manifest = json.loads(files["incident/incident.json"])
    files["incident/incident.json"] = json.dumps(manifest | {"step": 99}).encode()


@pytest.mark.parametrize(
    "change",
    [
        alter("incident/config.yaml", b"lr: 1"),
        alter("incident/extra.txt", b""),
        lambda files: files.pop("incident/flags.json"),
        lambda files: files.pop("incident/incident.json"),
        lambda files: files.pop("run.sh"),
        alter("incident/incident.json", b"{}"),
        alter("incident/incident.json", b"\xff"),
        newer,
        other_step,
    ],
)
def test_an_incident_that_was_changed_is_refused_in_one_line(change, written, tmp_path):
    changed = repack(written, tmp_path / "changed.tar.zst", change)
    with pytest.raises(BadInput) as told:
        bundle.verify(changed)
    assert "\n" not in str(told.value) and "changed.tar.zst" in str(told.value)
    with pytest.raises(BadInput):
        bundle.unpack(changed, tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


def test_an_incident_under_another_id_is_refused(written, tmp_path):
    files = contents(written)
    del files[MANIFEST]
    archive.pack(files, top="b", incident="0" * 64, out=tmp_path / "changed.tar.zst")
    with pytest.raises(BadInput, match="id"):
        bundle.verify(tmp_path / "changed.tar.zst")


def test_whatever_the_file_is_called_what_is_made_of_it_has_the_incidents_name(captured, written, tmp_path):
    name = captured.path.name
    sent = written.rename(tmp_path / "failure from ann.tar.zst")
    incident, foreign = bundle.open_any(sent)
    assert (incident.name, bundle.folder_of(incident), foreign) == (name, name, True)
    assert bundle.unpack(sent, tmp_path / "by hand").name == "by hand"
    own = Incident.open(shutil.copytree(captured.path, tmp_path / "mine" / "incident"))
    assert own.name == "incident"  # no bundle, but a folder that somebody calls so


def test_a_name_from_elsewhere_is_a_plain_one(captured, written, tmp_path):
    files = contents(written)
    del files[MANIFEST]
    archive.pack(files, top="a $(b)\x1b[2J", incident=captured.manifest.id, out=tmp_path / "odd.tar.zst")
    assert bundle.open_any(tmp_path / "odd.tar.zst")[0].name == "a-b-2J"
