"""Options of engines travel to the nodes of a cluster."""

import json
from dataclasses import fields
from pathlib import Path

from reprokit.pipeline import Options
from reprokit.replay.engines.options import EngineOptions

CLUSTER = {"engine", "inner", "jobs", "ray_address", "store", "partition"}  # of the one around, and for it alone
ALL = EngineOptions(
    engine="ray", inner="docker", jobs=3, timeout=7.0, match="x", image="i", base="b", wheelhouse=Path("w"),
    compiler=True, network="bridge", trust=True, ray_address="a", store="s", partition="p",
)  # fmt: skip


def test_a_node_gets_all_of_them_but_those_of_the_cluster():
    default, there = EngineOptions(), ALL.there("docker")
    for field in fields(EngineOptions):
        assert getattr(ALL, field.name) != getattr(default, field.name), "set every one above"
        if field.name not in CLUSTER:
            assert getattr(there, field.name) == getattr(ALL, field.name)
    assert (there.engine, there.inner, there.jobs) == ("docker", None, None)


def test_they_come_back_from_json_as_they_were():
    for options in (ALL, EngineOptions()):
        assert EngineOptions.from_json(json.loads(json.dumps(options.to_json()))) == options


def test_options_of_a_verb_are_more_and_only_those_of_engines_travel():
    options = Options(engine="ray", n=3, out=Path("out"), image="i")
    assert EngineOptions.from_json(options.there("docker").to_json()) == EngineOptions(engine="docker", image="i")
