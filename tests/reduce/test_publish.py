"""With real incidents and real steps: what is reduced is published, replays bit for bit, and can be reduced again."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reprokit.failure import Kind, Signature
from reprokit.harness import take_state
from reprokit.incident import Draft, Incident
from reprokit.reduce.isolation import NotReproduced
from reprokit.reduce.publish import publish
from reprokit.reduce.reducer import reduce
from reprokit.reduce.supersede import place, supersede
from reprokit.step import flags, rng
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status

TRAIN = '''
import torch
import reprokit

def build(config):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), *([torch.nn.BatchNorm1d(5)] if config["norm"] else []))

    def step(batch):
        clips = batch["clips"]
        std = clips.std(-1, keepdim=True) if config["standardize"] else 1.0
        features = model(((clips - clips.mean(-1, keepdim=True)) / std).mean(1))
        return {"loss": features.square().mean(), "size": features.abs().mean()}

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return reprokit.Harness(modules={"model": model}, optimizer=optimizer, step=step,
                            layout={"clips": "b t h", "path": "b"})
'''
REPLAYED = {"verdict": "REPRODUCIBLE", "n": 3, "fail": 3}


def clips(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"clips": torch.rand(4, 8, 6, generator=generator), "path": [f"{seed}/{i}.mp4" for i in range(4)]}


def capture(folder, *, damage=lambda batch: None, donor=True, **config):
    """An incident as the recorder would have written it."""
    source = folder / "repository"
    source.mkdir()
    (source / "train.py").write_text(TRAIN)
    config = {"norm": False, "standardize": True} | config
    state = take_state(load_entrypoint("train.py:build", source)(config))
    batch = clips(0)
    damage(batch)
    with Draft(folder) as draft:
        draft.write_text("source/tree/train.py", TRAIN)
        draft.write_yaml("config.yaml", config)
        draft.write_json("command.json", {"argv": ["train.py"], "cwd": ".", "path": [""]})
        draft.write_json("environment.json", {"variables": {}})
        draft.write_json("flags.json", {**flags.take(), "device": "cpu"})
        draft.write_text("requirements.txt", "torch\n")
        draft.write_tree("state", "state", {**state, "loop": {"micro": 0}})
        draft.write_tree("ranks/00", "batch", batch)
        if donor:
            draft.write_tree("ranks/00", "donor", clips(1))
        draft.write_tree("ranks/00", "rng", rng.take())
        return draft.publish(
            "nan",
            signature=Signature(kind=Kind.NONFINITE_LOSS, where="size"),
            step=7,
            entrypoint="train.py:build",
            layout={"clips": "b t h", "path": "b"},
        )


def black(batch):
    batch["clips"][2, 6:] = 0


def shrink(incident):
    with Session(incident) as session:
        return reduce(incident, session.evaluate)


def test_a_real_nan_becomes_an_incident_of_one_frame(tmp_path):
    incident = capture(tmp_path, damage=black)
    found = shrink(incident)
    assert found.axes["b"].guilty == found.axes["b"].kept == (2,) and found.axes["t"].guilty == (6, 7)
    assert found.one_minimal and found.isolation == "restore" and found.step_equivalents < 3

    smaller = publish(incident, replace(found, verified=REPLAYED), tmp_path / "reduced")
    opened = Incident.open(smaller.path)
    assert opened.manifest.parent == incident.manifest.id and opened.manifest.signature == incident.manifest.signature
    assert opened.manifest.certificate["axes"]["b"]["guilty"] == [2] and opened.manifest.certificate["tests"]
    assert opened.batch()["clips"].shape == (1, 1, 6) and opened.batch()["path"] == ["0/2.mp4"]
    assert torch.equal(opened.donor()["clips"], incident.donor()["clips"][2:3, 6:7])
    assert opened.state().keys() == incident.state().keys() and opened.config() == incident.config()

    with Session(opened) as session:
        outcome = session.evaluate(Case(incident=opened.path))
    assert outcome.status is Status.FAIL and outcome.fingerprint == opened.manifest.fingerprint
    assert all(axis.size == 1 for name, axis in shrink(opened).axes.items() if name != "key")


def test_batchnorm_keeps_a_second_sample_with_the_donor_s_content(tmp_path):
    incident = capture(tmp_path, damage=black, norm=True)
    found = shrink(incident)
    assert found.axes["b"].kept == (2, 3) and found.axes["b"].healed == (3,) and found.axes["b"].guilty == (2,)
    smaller = publish(incident, replace(found, verified=REPLAYED), tmp_path)
    assert smaller.batch()["path"] == ["0/2.mp4", "1/3.mp4"]
    assert smaller.manifest.certificate["axes"]["b"]["healed"] == [3]
    assert smaller.donor()["clips"].shape == smaller.batch()["clips"].shape


def test_without_a_donor_the_published_incident_has_the_generated_one(tmp_path):
    incident = capture(tmp_path, damage=black, donor=False)
    found = shrink(incident)
    smaller = publish(incident, replace(found, verified=REPLAYED), tmp_path)
    assert found.donor == smaller.manifest.certificate["donor"] == "generated"
    assert smaller.donor()["clips"].shape == smaller.batch()["clips"].shape == (1, 1, 6)


@pytest.mark.parametrize("verified", [None, {"verdict": "NOT_REPRODUCED", "n": 3, "fail": 0}])
def test_nothing_is_published_that_does_not_replay(tmp_path, verified):
    incident = capture(tmp_path, damage=black)
    with pytest.raises(NotReproduced, match="not published"):
        publish(incident, replace(shrink(incident), verified=verified), tmp_path / "reduced")
    assert not (tmp_path / "reduced").exists()


def test_an_incident_that_passes_here_is_refused(tmp_path):
    with pytest.raises(NotReproduced, match="0 of 23 runs"):
        shrink(capture(tmp_path))


def test_the_case_survives_its_way_through_a_request(tmp_path):
    found = shrink(capture(tmp_path, damage=black, norm=True))
    again = Case.from_json(found.case.to_json())
    assert again == found.case and isinstance(again.incident, Path)


def twice(tmp_path):
    """Two results of one incident, and how the first is known again."""
    incident = capture(tmp_path, damage=black)
    found = replace(shrink(incident), verified=REPLAYED)
    first = publish(incident, found, tmp_path / "out")
    return first, publish(incident, replace(found, notes=("more",)), tmp_path / "out"), place(first)


def test_a_result_takes_the_place_of_the_unfinished_one(tmp_path):
    first, second, known = twice(tmp_path)
    assert (first.path.name, second.path.name) == ("nan-reduced", "nan-reduced-2")
    placed = supersede(second, known)
    assert placed.path == first.path and [path.name for path in (tmp_path / "out").iterdir()] == ["nan-reduced"]
    assert Incident.open(placed.path).manifest.id == second.manifest.id


@pytest.mark.parametrize(
    "harm",
    [
        lambda first: (first.path / "notes.txt").write_text("mine"),
        lambda first: first.path.rename(first.path.with_name("moved")),
        lambda first: first.path.rename(first.path.with_name("moved")) and first.path.write_text("a file"),
    ],
)
def test_an_unfinished_result_that_somebody_touched_is_left(tmp_path, harm):
    first, second, known = twice(tmp_path)
    harm(first)
    before = sorted((tmp_path / "out").rglob("*"))
    assert supersede(second, known) == second and sorted((tmp_path / "out").rglob("*")) == before
