"""The page of integrations is run: each block is a module of a project, and trains."""

import importlib
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from reprokit.capture.rehearsal import Rehearsals
from reprokit.incident import Incident

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
QUIET = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")


def blocks():
    found = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == PAGE.read_text().count("```python")
    return dict(found)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """project(name): the module of a block."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(Rehearsals, "after", lambda self, *_: [])  # the adapters' own tests have it

    def load(name):
        (tmp_path / f"{name}.py").write_text(blocks()[name])
        return importlib.import_module(name)

    yield load
    for name in blocks():
        sys.modules.pop(name, None)


def batches(bad):
    generator = torch.Generator().manual_seed(0)
    return [{"x": torch.rand(4, 4, generator=generator) * (float("nan") if i == bad else 1)} for i in range(4)]


def lightning(module):
    loader = torch.utils.data.DataLoader(batches(2), batch_size=None)
    module.train(loader, {"width": 3}, accelerator="cpu", max_epochs=1, **dict.fromkeys(QUIET, False))


def trainer(module):
    config = {"out": "trainer"}
    made = module.build(config)
    made.train_dataset[5]["x"][0] = float("nan")
    module.build._make = lambda config: made  # the page's data has no failure of its own
    module.train(config)


TRAIN = {
    "lightning_project": lightning,
    "trainer_project": trainer,
    "accelerate_project": lambda module: module.train(batches(2), {"accumulate": 2}),
    "hydra_project": lambda module: module.train(batches(2), OmegaConf.create({"width": 4, "lr": 0.1})),
}


@pytest.mark.parametrize("name", TRAIN)
def test_a_block_trains_and_a_nan_leaves_an_incident(project, tmp_path, name):
    with pytest.raises(Exception, match="nonfinite_loss at loss"):
        TRAIN[name](project(name))
    (path,) = (tmp_path / "incidents").iterdir()
    assert Incident.open(path).manifest.entrypoint.startswith(f"{name}:build")


def test_the_block_of_trackers_tells_all_of_them(project):
    shown = []
    writer = SimpleNamespace(add_text=lambda *_, **__: shown.append("text"), flush=lambda: None)
    run = SimpleNamespace(alert=lambda **_: shown.append("alert"), summary={})
    manifest = SimpleNamespace(signature=None, step=3, id="0" * 64)
    tell = project("trackers_project").told(writer, run)["on_incident"]
    tell(SimpleNamespace(manifest=manifest, path=Path("incidents/one")))
    assert shown == ["text", "alert"] and run.summary["reprokit/incidents"][0]["step"] == 3


def test_the_page_names_every_adapter():
    folder = Path(sys.modules["reprokit"].__file__).parent / "integrations"
    names = {file.stem for file in folder.glob("[a-z]*.py")} - {"pytest_plugin"}
    assert all(re.search(rf"reprokit\.integrations(\.| import .*){name}", PAGE.read_text()) for name in names)
