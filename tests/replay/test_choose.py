"""Which engine it becomes."""

from dataclasses import replace

import pytest

from reprokit.errors import BadInput
from reprokit.replay import choose
from reprokit.replay.choose import ENGINES, open_engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.engines.process import Process


@pytest.fixture
def incident(make_incident):
    return make_incident()


@pytest.mark.parametrize(
    ("name", "inner", "says"),
    [
        ("podman", None, "--engine podman: unknown; one of docker, process, fork, inline, ray, slurm"),
        ("docker", "process", "--inner process: goes with --engine fork, ray, slurm, and is one of docker, pr"),
        ("fork", "fork", "--inner fork: goes with --engine fork, ray, slurm, and is one of docker, process"),
        ("ray", "inline", "--inner inline: goes with"),
        (None, "process", "--inner process: goes with"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_one_line(incident, name, inner, says):
    with pytest.raises(BadInput, match=says) as refusal:
        open_engine(incident, EngineOptions(engine=name, inner=inner))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", [name for name in ENGINES if name not in ("docker", "inline")])
def test_somebodys_code_is_confined_in_whatever_is_around_it(incident, name):
    inner = None if name == "process" else "process"
    with pytest.raises(BadInput, match="engine process runs it unconfined"):
        open_engine(incident, EngineOptions(engine=name, inner=inner), foreign=True)


@pytest.mark.parametrize(
    ("flags", "ranks", "why"), [({"device": "cuda:0"}, 1, "ran on a GPU"), ({"device": "cpu"}, 2, "ran in 2 ranks")]
)
def test_what_cannot_be_forked_takes_fresh_ones_and_says_so(incident, monkeypatch, flags, ranks, why):
    monkeypatch.setattr(type(incident), "flags", lambda self: flags)
    incident = replace(incident, manifest=replace(incident.manifest, world_size=ranks))
    said = []
    options = EngineOptions(engine="fork", inner="process", jobs=1)
    with open_engine(incident, options, say=said.append) as engine:
        assert isinstance(engine, Process)
    assert len(said) == 1 and why in said[0] and "engine process instead" in said[0]


@pytest.mark.parametrize(("answers", "within"), [(True, "docker"), (False, "process")])
def test_the_inner_engine_is_docker_where_it_answers(monkeypatch, answers, within):
    monkeypatch.setattr("reprokit.replay.daemon.answers", lambda: answers)
    said = []
    assert choose._chosen("fork", None, said.append) == ("fork", within)
    assert bool(said) is not answers
