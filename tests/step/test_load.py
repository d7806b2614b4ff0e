"""An entrypoint is loaded without training again, and what cannot be loaded is said in one line."""

import sys

import pytest

from reprokit.errors import BadInput
from reprokit.step.load import build_harness, load_entrypoint

BUILD = "def build(config):\n    return ('built', config)\n"
TRAIN = "import reprokit\nr = reprokit.Recorder(None, build=build, config={})\nraise SystemExit('trained again')\n"


@pytest.fixture(autouse=True)
def _clean_imports(monkeypatch):
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if not name.startswith(("reprokit", "torch")):
            del sys.modules[name]


def test_a_guarded_script_is_loaded_by_its_path(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.py").write_text("import sizes\n" + BUILD + "if __name__ == '__main__':\n    1 / 0\n")
    (tmp_path / "jobs" / "sizes.py").write_text("")  # beside the script, where Python would look
    assert load_entrypoint("jobs/train.py:build", tmp_path)(3) == ("built", 3)


def test_a_module_below_the_root_or_a_path_entry(tmp_path):
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "training.py").write_text("class Job:\n    build = staticmethod(lambda c: c)\n")
    assert load_entrypoint("pkg.training:Job.build", tmp_path, ["src"])(7) == 7


def test_a_script_without_a_guard_is_left_at_its_recorder(tmp_path):
    (tmp_path / "unguarded.py").write_text(BUILD + TRAIN)
    assert load_entrypoint("unguarded.py:build", tmp_path)(1) == ("built", 1)


def test_a_module_without_a_guard_is_left_at_its_recorder(tmp_path):
    (tmp_path / "careless.py").write_text(BUILD + TRAIN)
    assert load_entrypoint("careless:build", tmp_path)(1) == ("built", 1)


def test_the_scripts_own_handlers_do_not_catch_the_stop(tmp_path):
    body = TRAIN.replace("\n", "\n    ").rstrip()
    (tmp_path / "handler.py").write_text(
        BUILD + f"try:\n    {body}\nexcept Exception:\n    raise SystemExit('caught')\n"
    )
    assert load_entrypoint("handler.py:build", tmp_path)(1) == ("built", 1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TRAIN.replace("build=build", "build=None") + BUILD, "no function 'build' at that point"),
        ("raise RuntimeError('no data')", "does not import .RuntimeError: no data.*__main__"),
        ("raise SystemExit(3)", "exits when it is loaded.*__main__"),
        ("import a_package_that_nobody_has", "does not import .ModuleNotFoundError"),
        ("build = 3", "no function 'build'"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(tmp_path, text, says):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(BadInput, match=says) as error:
        load_entrypoint("broken.py:build", tmp_path)
    assert "\n" not in str(error.value)
    assert "broken" not in sys.modules


@pytest.mark.parametrize(
    "entrypoint",
    [
        "train.py",
        "train:",
        "train:make.<locals>.build",
        "train:<lambda>",
        "missing.py:build",
        "missing_module:build",
        "missing.module:build",
        "..bad:build",
    ],
)
def test_names_that_lead_nowhere(tmp_path, entrypoint):
    with pytest.raises(BadInput, match=r"entrypoint|no file|no module|does not import"):
        load_entrypoint(entrypoint, tmp_path)


def test_a_build_that_returns_something_else():
    with pytest.raises(BadInput, match=r"build returned a dict; expected a reprokit\.Harness"):
        build_harness(lambda config: {}, "train.py:build", {})
