"""What is installed from a wheel is all there: the package, its templates, its Dockerfile."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    [file] = folder.glob("*.whl")
    return file


def test_templates_and_dockerfile_are_inside(wheel):
    inside = {
        Path(name).relative_to("reprokit/templates")
        for name in zipfile.ZipFile(wheel).namelist()
        if "/templates/" in name
    }
    beside = {path.relative_to(ROOT / "templates") for path in (ROOT / "templates").rglob("*") if path.is_file()}
    assert beside <= inside
    assert Path("replay.Dockerfile") in inside


def test_an_installed_package_finds_them(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import reprokit; from reprokit.replay import image; from reprokit.report import templates\n"
        "assert reprokit.__file__.startswith(__import__('sys').argv[1]), reprokit.__file__\n"
        "assert image.dockerfile().startswith('#') and templates.static('bundle/reproduce.py')\n"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
    )
