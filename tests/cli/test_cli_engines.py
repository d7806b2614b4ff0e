"""What breaks around a container: one line, and the exit code that says whose fault it is."""

import json
import os
import subprocess

import pytest

from reprokit.incident import Draft, Incident
from reprokit.replay import bases, image

pytestmark = pytest.mark.slow

MACHINERY, USER = 3, 2


def one_line(said):
    code, out, err = said
    lines = [line for line in err.splitlines() if line.startswith("reprokit: ")]
    assert len(lines) == 1 and "Traceback" not in err and not json_of(out), (out, err)
    return code, lines[0]


def json_of(out):
    return [line for line in out.splitlines() if line.startswith("{")]


@pytest.fixture
def incident(made):
    return made()


def changed(path, name, **parts):
    """A copy of an incident with other JSON files."""
    old = Incident.open(path)
    with Draft(path.parent) as draft:
        for file in old.manifest.files:
            target = draft.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((path / file).read_bytes())
        for file, data in parts.items():
            (draft.path / f"{file}.json").write_text(json.dumps(data))
        manifest = old.manifest
        return draft.publish(
            name, signature=manifest.signature, step=1, entrypoint=manifest.entrypoint, layout=manifest.layout
        ).path


@pytest.mark.parametrize("verb", [["replay", "{}", "--engine", "docker"], ["image", "build", "{}"], ["image", "ls"],
                                  ["image", "rm", "--all"]])  # fmt: skip
def test_where_no_engine_answers_that_is_said(cli, incident, tmp_path, monkeypatch, verb):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    code, line = one_line(cli(*(word.format(incident) for word in verb)))
    assert code == MACHINERY and f"does not answer at unix://{tmp_path}/none.sock" in line


@pytest.mark.parametrize("socket", ["{}/file", "{}", "tcp://127.0.0.1:1", "nonsense", "ssh://nobody@127.0.0.1:1"])
def test_a_wrong_socket_is_named(cli, incident, tmp_path, monkeypatch, socket):
    monkeypatch.setenv("DOCKER_HOST", "to be restored")
    (tmp_path / "file").write_text("")
    where = socket.format(tmp_path)
    code, line = one_line(cli("replay", incident, "--engine", "docker", "--socket", where))
    assert code == MACHINERY and where in line


@pytest.mark.docker
def test_an_image_that_is_not_there_is_named(cli, incident):
    code, line = one_line(cli("replay", incident, "--engine", "docker", "--image", "localhost:1/never:built"))
    assert code == MACHINERY and "localhost:1/never:built: not on this machine and not to be pulled" in line
    assert "leave out --image" in line


@pytest.mark.docker
def test_a_base_of_another_python_is_refused_with_one_that_fits(cli, incident, base_image, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(bases, "MINOR", "3.9")
    code, line = one_line(cli("replay", incident, "--engine", "docker", "--base-image", base_image))
    assert code == USER and "choose a base image with 3.9, such as python:3.9-slim" in line


@pytest.mark.docker
def test_the_captured_image_is_asked_for_by_its_name(cli, incident):
    code, line = one_line(cli("image", "build", incident, "--image", "captured"))
    assert code == USER and "did not say which image" in line
    named = changed(incident, "named", environment={"container": {"image": "localhost:1/train:7"}})
    code, _, err = cli("image", "build", named, "--image", "captured")
    assert code == MACHINERY and "localhost:1/train:7: a tag, which may be of another image by now" in err
    assert "reprokit: localhost:1/train:7: not on this machine" in err


@pytest.mark.docker
@pytest.mark.parametrize("what", ["build", "gather"])
def test_a_full_disk_is_said_with_the_way_out(cli, incident, base_image, tmp_path, monkeypatch, make_house, what):
    """The cache is on a disk of its own, too small for a wheel, or for a wheel and what is sent to the engine."""
    if os.getuid() != 0:
        pytest.skip("mounts a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    size = {"gather": 1, "build": 3}[what]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "none", disk], check=True)
    try:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        house = make_house(tmp_path / "house", "torch", 2 << 20)
        words = ["image", "build", incident, "--base-image", base_image, "--wheelhouse", house]
        code, line = one_line(cli(*words))
        assert code == MACHINERY and "disk full" in line and "XDG_CACHE_HOME" in line
        assert not list(disk.rglob("gather-*"))
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.fixture
def make_house(monkeypatch):
    """make_house(folder, name, bytes) -> a folder with a wheel of that size, which does not compress."""
    import zipfile

    for name in ("PIP_FIND_LINKS", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def make(folder, name, size):
        folder.mkdir()
        with zipfile.ZipFile(folder / f"{name}-2.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/data.bin", os.urandom(size))
            info = f"{name}-2.0.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        return folder

    return make


@pytest.mark.docker
def test_a_cache_that_cannot_be_written_is_named(cli, incident, tmp_path, monkeypatch):
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, line = one_line(cli("image", "build", incident))
    assert code == MACHINERY and str(tmp_path / "cache") in line


@pytest.mark.parametrize("engine", [pytest.param("docker", marks=pytest.mark.docker), "process"])
def test_a_gpu_that_is_not_there_is_no_silent_cpu_replay(cli, incident, request, engine):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    on_gpu = changed(incident, "on-gpu", flags=json.loads((incident / "flags.json").read_text()) | {"device": "cuda:0"})
    options = ["--image", request.getfixturevalue("replay_image")] if engine == "docker" else []
    code, line = one_line(cli("replay", on_gpu, "-n", "2", "--engine", engine, *options))
    assert code == MACHINERY and ("GPU" in line or "CUDA" in line)


def test_a_bundle_without_trust_runs_nowhere_but_in_a_container(cli, incident, tmp_path, monkeypatch):
    code, _, err = cli("bundle", incident, "--out", tmp_path / "one.tar.zst")
    assert code == 0, err
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    for engine in ([], ["--engine", "process"], ["--engine", "inline"], ["--engine", "fork"]):
        code, line = one_line(cli("replay", tmp_path / "one.tar.zst", *engine))
        assert code == USER and "add --trust" in line


def test_image_rm_wants_to_know_what(cli):
    code, line = one_line(cli("image", "rm"))
    assert code == USER and "give a TAG" in line


@pytest.mark.docker
def test_images_are_listed_for_people_and_for_programs(cli, replay_image):
    code, out, _ = cli("image", "ls")
    assert code == 0 and replay_image in out and "kept wheels" in out
    code, out, _ = cli("image", "ls", "--json")
    found = json.loads(out)
    assert code == 0 and replay_image in [one["tag"] for one in found["images"]] and found["wheels"]["bytes"] >= 0
    assert image.REPOSITORY in replay_image
