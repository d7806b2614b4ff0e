"""Scripts as users have them, each in a folder of its own: what is captured is that folder."""

import importlib
import shutil
import sys
import warnings
from pathlib import Path

import pytest

from reprokit import pipeline
from reprokit.incident import Incident
from reprokit.progress import Silence
from reprokit.step.case import Case
from reprokit.step.evaluate import Session

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _quiet():
    """Trainers say on stderr what they run on, at length."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def _no_accelerator():
    """Accelerate keeps one state for a process, and refuses another."""
    yield
    if state := sys.modules.get("accelerate.state"):
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


@pytest.fixture
def script(tmp_path, monkeypatch):
    """script(name): the module of tests/integrations/scripts, imported from a copy."""

    def load(name):
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        shutil.copy(HERE / "scripts" / f"{name}.py", folder)
        monkeypatch.syspath_prepend(str(folder))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    yield load
    for name in [n for n, m in sys.modules.items() if str(tmp_path) in (getattr(m, "__file__", None) or "")]:
        del sys.modules[name]


@pytest.fixture
def replayed():
    """replayed(path, n): the replay in fresh processes, and the incident."""

    def run(path, n=3):
        options = pipeline.Options(n=n, engine="process", jobs=2)
        return pipeline.replay(pipeline.opened(path), options, Silence()), Incident.open(path)

    return run


@pytest.fixture
def again():
    """again(path, **case): one evaluation in this process, and the incident."""

    def run(path, **case):
        incident = Incident.open(path)
        sys.modules.pop(incident.manifest.entrypoint.partition(":")[0], None)  # it is imported from the incident
        with Session(incident) as session:
            return session.evaluate(Case(incident=path, thorough=True, **case)), incident

    return run
