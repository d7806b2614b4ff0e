import json
import shutil
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay import bases, daemon, image, wheels

pytestmark = pytest.mark.slow

REQUIREMENTS = "alpha==1.0\nbeta==1.0+cpu\nreprokit==0.1.0\n"
Ensure = Callable[..., str]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reprokit"


@pytest.fixture
def ensure(tmp_path: Path, own_cache: Path, make_wheel, no_index, base_image: str) -> Iterator[Ensure]:
    """`image.ensure` for two packages without dependencies: made in seconds, and removed afterwards."""
    made: set[str] = set()
    make_wheel(tmp_path / "house", "alpha", "1.0", says=f"alpha of {tmp_path}")  # so that the image is not there yet
    make_wheel(tmp_path / "house", "beta", "1.0+cpu")

    def ensure_one(requirements: str = REQUIREMENTS, **options) -> str:
        tag = image.ensure(requirements, **{"base": base_image, "wheelhouse": tmp_path / "house"} | options)
        made.add(tag)
        return tag

    yield ensure_one
    for tag in made:
        daemon.connect().images.remove(tag, force=True)


def run(tag: str, code: str) -> str:
    client = daemon.connect()
    return client.containers.run(tag, ["python3", "-c", code], network_mode="none", remove=True).decode().strip()


def forbid(monkeypatch: pytest.MonkeyPatch, place: object, name: str) -> None:
    def never(*_: object) -> None:
        raise AssertionError(f"{name} must not be needed")

    monkeypatch.setattr(place, name, never)


@pytest.mark.docker
def test_an_image_has_the_pinned_packages_and_nothing_of_how_they_came(ensure: Ensure, tmp_path: Path):
    news: list[str] = []
    tag = ensure(progress=news.append)
    assert tag.startswith("reprokit/replay:")
    look = """
import alpha, importlib.metadata as m, json, os, pathlib, sys
print(json.dumps({
    "says": alpha.SAYS, "uid": os.getuid(), "beta": m.version("beta"), "python": sys.executable,
    "compiled": pathlib.Path(alpha.__cached__).exists(), "wheels": pathlib.Path("/wheels").exists(),
}))"""
    assert json.loads(run(tag, look)) == {
        "says": f"alpha of {tmp_path}",
        "uid": 1000,
        "beta": "1.0+cpu",
        "python": "/opt/venv/bin/python3",
        "compiled": True,
        "wheels": False,
    }
    assert any(line.startswith("gathering wheels: 2 of 2") for line in news)
    assert any(line.startswith("building") for line in news) and all("\n" not in line for line in news)
    stage = {"dangling": True, "label": f"reprokit.stage={tag.rpartition(':')[2]}"}
    assert not daemon.connect().images.list(filters=stage)


@pytest.mark.docker
def test_while_another_prunes_a_build_tidies_up_all_the_same(ensure: Ensure, prunes_already):
    tag = ensure()
    stage = {"dangling": True, "label": f"reprokit.stage={tag.rpartition(':')[2]}"}
    assert not daemon.connect().images.list(filters=stage)


@pytest.mark.docker
def test_the_second_time_is_instant(ensure: Ensure, own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    tag = ensure()
    forbid(monkeypatch, image, "_build")
    shutil.rmtree(own_cache)
    assert ensure() == tag  # the tag is of what went in, not of when and where
    forbid(monkeypatch, wheels, "_pip")
    forbid(monkeypatch, bases, "_said")
    assert ensure() == tag
    news: list[str] = []
    assert ensure("# in another order\nbeta==1.0+cpu\nalpha==1.0\n", progress=news.append) == tag and not news


@pytest.mark.docker
def test_other_content_is_another_image(ensure: Ensure, make_wheel, tmp_path: Path):
    before = ensure()
    make_wheel(tmp_path / "house", "alpha", "1.0", says="the same version, built again")
    after = ensure()
    assert before != after
    assert run(after, "import alpha; print(alpha.SAYS)") == "the same version, built again"


@pytest.mark.docker
def test_a_removed_image_is_built_again_from_the_kept_wheels(ensure: Ensure, monkeypatch: pytest.MonkeyPatch):
    tag = ensure()
    daemon.connect().images.remove(tag, force=True)
    forbid(monkeypatch, wheels, "_pip")
    assert ensure() == tag and run(tag, "import alpha, beta") == ""


@pytest.mark.docker
def test_no_credentials_get_in(ensure: Ensure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:s3cret@index.invalid/simple")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    proxies = {"default": {"httpProxy": "http://me:s3cret@proxy.invalid", "noProxy": "s3cret.invalid"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    listed = REQUIREMENTS.replace("alpha==1.0", "alpha @ git+https://me:s3cret@index.invalid/alpha@abc")
    news: list[str] = []
    folder = "# gamma==3: from a folder (editable), so no index has it\n"
    tag = ensure(f"--extra-index-url https://me:s3cret@index.invalid/extra\n{folder}{listed}", progress=news.append)
    assert "s3cret" not in str(news) and any("not in the image: gamma==3" in line for line in news)
    monkeypatch.delenv("DOCKER_CONFIG")  # or the container below gets them, which is docker-py's default
    made = daemon.connect().images.get(tag)
    assert "s3cret" not in json.dumps([made.attrs, made.history()])
    look = "import os, subprocess as s; print(os.environ, s.run(['grep', '-rl', 's3c' + 'ret', '/opt']).returncode)"
    assert "s3cret" not in (found := run(tag, look)) and found.endswith(" 1")


@pytest.mark.docker
def test_a_base_with_another_python_is_refused_with_one_that_fits(ensure: Ensure, base_image, monkeypatch):
    monkeypatch.setattr(bases, "MINOR", "3.9")
    with pytest.raises(BadInput, match=r"has Python 3\.\d+, and wheels are gathered here for 3\.9; .*python:3\.9-slim"):
        ensure()


@pytest.mark.docker
def test_a_base_that_cannot_run_python_is_refused(ensure: Ensure):
    empty = BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"))
    client = daemon.connect()
    client.api.import_image_from_data(empty.getvalue(), repository="reprokit-test-empty", tag="latest")
    try:
        with pytest.raises(BadInput, match=r"^reprokit-test-empty: no base for replays: .*like python:3"):
            ensure(base="reprokit-test-empty")
        assert not client.containers.list(all=True, filters={"ancestor": "reprokit-test-empty"})
    finally:
        client.images.remove("reprokit-test-empty", force=True)


@pytest.mark.docker
def test_a_base_that_cannot_be_had_is_named_with_the_way_out(ensure: Ensure):
    with pytest.raises(Infrastructure, match=r"^localhost:1/none:latest: not on this machine and .*\.ci/base-image"):
        ensure(base="localhost:1/none:latest")


@pytest.mark.docker
def test_a_pin_that_nobody_has_is_named(ensure: Ensure):
    with pytest.raises(BadInput, match=r"^alpha==9\.9: not in any index"):
        ensure("alpha==9.9")


def test_without_an_engine_there_is_one_line(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    with pytest.raises(Infrastructure, match=r"does not answer at unix://.*--engine process$"):
        image.ensure("alpha==1.0")


def test_the_dockerfile_is_the_one_at_the_top():
    assert image.dockerfile() == (Path(__file__).parents[2] / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (["Step 6", "write /wheels/torch.whl: no space left on device"], Infrastructure, "Docker's disk is full"),
        (
            ["ERROR: a-1.0-cp311-manylinux_2_99_x86_64.whl is not a supported wheel on this platform.", "returned 1"],
            BadInput,
            "not a supported wheel",
        ),
        (["Step 7", "The command '/bin/sh -c\n python3' returned 1"], Infrastructure, "does not build: The command"),
    ],
)
def test_a_failed_build_is_one_line(said: list[str], kind: type, words: str):
    with pytest.raises(kind, match=words) as refusal:
        raise image._failed_build("reprokit/replay:0", said)
    assert "\n" not in str(refusal.value)
