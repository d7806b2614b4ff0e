"""What `import reprokit` and an attempt may import: a captured environment has no more than this. And that a test asks
the same whatever ran before it."""

import importlib
import json
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

LIGHT = {"torch", "numpy", "safetensors", "yaml"}  # what an attempt needs, beside the standard library
_PRINT = "import sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"


def imported(statement, blocked=()):
    block = f"import sys; sys.modules.update(dict.fromkeys({list(blocked)!r}))\n"
    done = subprocess.run(
        [sys.executable, "-c", block + statement + "\n" + _PRINT],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(json.loads(done.stdout))


def dependencies_of(names):
    """Top-level modules that importing these third-party packages brings along by itself."""
    return imported("\n".join(f"import {name}" for name in sorted(names)))


def test_importing_reprokit_imports_nothing_else():
    assert imported("import reprokit") - imported("pass") - set(sys.stdlib_module_names) == {"reprokit"}


def test_an_attempt_imports_torch_numpy_safetensors_and_yaml_only():
    allowed = dependencies_of(LIGHT) | set(sys.stdlib_module_names) | {"reprokit"}
    statement = "import reprokit.step.worker, reprokit.step.rehearse, reprokit.replay.verdict"
    assert imported(statement) - allowed == set()


def test_an_attempt_runs_without_the_other_dependencies():
    absent = ["docker", "rich", "typer", "jinja2", "psutil", "zstandard", "einops", "packaging"]
    assert "reprokit" in imported("import reprokit.step.worker, reprokit.step.rehearse", blocked=absent)


def test_the_public_names_are_there():
    import reprokit

    for name in reprokit.__all__:
        assert getattr(reprokit, name) is not None


def questions():
    asked = []

    @given(st.lists(st.integers()), st.text())
    def law(numbers, text):
        asked.append((numbers, text))

    law()
    return asked


def test_a_law_is_asked_the_same_whatever_was_imported_before(tmp_path, monkeypatch):
    before = questions()
    constants = f"X = {[*range(1000, 9000, 700)]}, 'a word', 'and another'\n"
    (tmp_path / "with_constants_of_its_own.py").write_text(constants)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("with_constants_of_its_own")
    assert questions() == before
    monkeypatch.delitem(sys.modules, "with_constants_of_its_own")
