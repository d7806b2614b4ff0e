import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

MakeWheel = Callable[..., Path]


@pytest.fixture
def make_wheel() -> MakeWheel:
    """Makes a wheel of one module by hand: no index and no build tool is needed."""

    def make(folder: Path, name: str, version: str, *, says: str = "hello") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}-{version}-py3-none-any.whl"
        info = f"{name}-{version}.dist-info"
        files = {
            f"{name}.py": f"SAYS = {says!r}\n",
            f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
            f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        with zipfile.ZipFile(path, "w") as wheel:
            for inside, text in files.items():
                wheel.writestr(zipfile.ZipInfo(inside), text)  # without a date: the same content is the same file
            wheel.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "".join(f"{f},,\n" for f in [*files, f"{info}/RECORD"]))
        return path

    return make


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip as it is set up on no machine: it knows no index at all."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
