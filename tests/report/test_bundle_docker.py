"""A bundle in a real container: the image of where it was made, and one that it builds itself."""

import os
import subprocess
import zipfile

import pytest

from reprokit.report import bundle

pytestmark = pytest.mark.docker


def unpacked(incident, folder, **options):
    folder.chmod(0o755)
    bundle.unpack(bundle.write(incident, folder / "nan.tar.zst", **options), folder / "bundle")
    return folder / "bundle"


def wheelhouse(folder):
    """A folder with a wheel of nothing, made by hand: no index and no build tool is needed."""
    folder.mkdir()
    info = "hello-1.0.dist-info"
    with zipfile.ZipFile(folder / "hello-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", f"{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def run(folder, *arguments, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **variables}
    command = [str(folder / "run.sh"), *arguments]
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_failure_comes_back_in_a_container_without_network(captured, replay_image, tmp_path):
    done = run(unpacked(captured, tmp_path, image=replay_image), "-n", "2", "--engine", "docker")
    assert done.returncode == 0, done.stderr
    assert replay_image in done.stderr and "REPRODUCIBLE  2/2 failed as captured, bitwise-stable 2/2" in done.stderr
    assert "every attempt failed in the captured way" in done.stderr


def test_without_that_image_it_builds_one_from_wheels(captured, base_image, tmp_path):
    """Of one small wheel, so without torch: the container must say just that."""
    folder = unpacked(captured, tmp_path)
    wheelhouse(tmp_path / "wheels")
    (folder / "requirements.txt").write_text("hello==1.0+local\n")
    for _ in range(2):
        done = run(folder, REPROKIT_BASE=base_image, REPROKIT_WHEELS=str(tmp_path / "wheels"))
        assert done.returncode == 2 and "has no torch" in done.stderr, done.stderr
    assert "building the image" not in done.stderr
