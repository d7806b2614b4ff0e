"""Verdicts on real mechanisms: what is flaky, what is not, what decides, and how often it fails."""

import importlib.util
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from reprokit import pipeline
from reprokit.incident import Incident
from reprokit.pipeline import Options, Subject
from reprokit.progress import Silence
from reprokit.replay import journal
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.inline import Inline
from reprokit.replay.replay import Asking, replay
from reprokit.replay.sentence import sentence
from reprokit.replay.verdict import Verdict
from reprokit.step.case import Case

ZOO = Path(__file__).resolve().parents[1] / "zoo"

pytestmark = pytest.mark.slow

BARE = 5  # steps of the bare recipe beside each attempt
TRAIN = """
import torch, adapter, reprokit

for name in ("z01", "z32", "z36", "z48"):
    for seed in range(20):  # some fail only sometimes
        torch.manual_seed(seed)
        if adapter.main(name, name, rehearse=False).incidents:
            break
adapter.main("z35", "z35", rehearse=False, limits=reprokit.Limits(hang_after=3.0))  # no healthy step takes as long
"""


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """captured(name): the incident of a recipe. All are captured in a process of their own, as training would be: this
    one knows no module of theirs."""
    folder = tmp_path_factory.mktemp("zoo")
    for file in ("adapter.py", "z01.py", "z32.py", "z35.py", "z36.py", "z48.py"):
        shutil.copy(ZOO / file, folder)
    (folder / "train.py").write_text(TRAIN)
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True, timeout=250)
    return lambda name: Incident.open(next((folder / name).iterdir()))


@pytest.fixture(autouse=True)
def own_adapter(monkeypatch):
    """What an incident brings is what is loaded, though another test file has imported the recipes' own."""
    monkeypatch.delitem(sys.modules, "adapter", raising=False)


def recipe_of(name):
    spec = importlib.util.spec_from_file_location(f"bare_{name}", ZOO / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Beside(Engine):
    """Attempts in this process, and beside each some steps of the bare recipe: what the machine does to time, it does
    to both."""

    name = "inline"

    def __init__(self, incident, name):
        self.inner = Inline(incident)
        self.recipe = recipe_of(name)
        self.model, self.batch = self.recipe.make_model(), self.recipe.make_batch(0)
        self.runs = self.failed = 0
        self.random = random.Random(1)  # of its own: an attempt puts the process's generators to the captured state

    def dephase(self):
        """Wait from 0 to 4 ms, as fine as the clock is (sleeps may end with a timer's period): a step of z48 takes
        whole ticks, so the next one would begin in phase with it."""
        until = time.perf_counter_ns() + self.random.randrange(4_000_000)
        while time.perf_counter_ns() < until:
            pass

    def submit(self, case):
        for _ in range(BARE):
            self.runs += 1
            torch.manual_seed(self.runs)
            self.dephase()
            try:
                self.failed += not torch.isfinite(self.recipe.step(self.model, self.batch))
            except ZeroDivisionError:
                self.failed += 1
        self.dephase()
        return self.inner.submit(case)

    def __exit__(self, *error):
        self.inner.__exit__(*error)


@pytest.mark.parametrize(("name", "rng"), [("z32", "captured"), ("z36", "fresh"), ("z48", "captured")])
def test_over_200_attempts_the_interval_holds_the_rate_of_the_bare_recipe(captured, name, rng):
    """At a confidence at which it does so in all runs of this test but one of some thousands."""
    incident = captured(name)
    with Beside(incident, name) as engine:
        asking = Asking(n=200, estimate=True, rng=rng, alpha=0.001)
        found = replay(incident, Case(incident=incident.path), engine, asking)
    low, high = found.interval
    assert found.n == 200 and found.verdict is Verdict.FLAKY
    assert low <= engine.failed / engine.runs <= high, (found.fail, engine.failed, engine.runs)
    assert found.depends_on == (("rng",) if rng == "fresh" else ())


def in_this_process(incident, **options):
    sys.modules.pop("adapter", None)  # of the session before, whose files are gone
    return pipeline.replay(Subject(incident=incident), Options(engine="inline", **options), Silence())


@pytest.mark.parametrize("name", ["z32", "z48"])
def test_what_no_seed_controls_is_flaky(captured, name):
    found = in_this_process(captured(name), n=59)
    assert found.verdict is Verdict.FLAKY and found.stopped == "flaky"


def test_what_a_seed_controls_is_reproducible_with_the_captured_one_and_depends_on_it(captured):
    incident = captured("z36")
    assert in_this_process(incident).verdict is Verdict.REPRODUCIBLE
    fresh = in_this_process(incident, n=59, rng="fresh")
    assert fresh.verdict is Verdict.FLAKY and fresh.depends_on == ("rng",)
    assert "depends on RNG" in sentence(fresh) and "depends on RNG" not in sentence(in_this_process(incident, n=5))


def test_what_the_batch_alone_decides_is_reproducible_with_any_seed(captured):
    incident = captured("z01")
    found = in_this_process(incident)
    assert found.verdict is Verdict.REPRODUCIBLE and "bitwise-stable 14/14" in sentence(found)
    assert in_this_process(incident, n=5, rng="fresh").verdict is Verdict.REPRODUCIBLE


def test_a_hang_is_reproducible(captured):
    options = Options(engine="process", n=2, jobs=2)
    found = pipeline.replay(Subject(incident=captured("z35")), options, Silence())
    assert found.verdict is Verdict.REPRODUCIBLE, sentence(found)
    assert {str(one.signature.kind) for one in found.usable} == {"hang"} and all(one.host for one in found.usable)


HASHED = "if hash('clip') % 2: x = x * float('nan')"


def test_a_failure_that_the_hash_seed_alone_decides_shows_in_fresh_processes_and_is_named(make_incident, monkeypatch):
    healthy = {"x": torch.rand(4, 4, generator=torch.Generator().manual_seed(1))}
    incident = Subject(incident=make_incident(HASHED, batch=healthy))
    again = pipeline.replay(incident, Options(engine="process", n=25, jobs=2), Silence())
    assert again.verdict is Verdict.FLAKY and again.stopped == "flaky"
    monkeypatch.setattr(journal.secrets, "randbits", lambda bits: 4)  # whose first two seeds differ in what they decide
    options = Options(engine="fork", inner="process", n=25, jobs=2, vary=("hashseed",))  # a new parent for each seed
    varied = pipeline.replay(incident, options, Silence())
    assert varied.verdict is Verdict.FLAKY and varied.depends_on == ("hashseed",), sentence(varied)
    assert "depends on hash seed" in sentence(varied)
