"""The main job from end to end, as a person runs it: on real clips, with a real Docker engine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reprokit

REPROKIT = Path(sys.executable).with_name("reprokit")
LONG = 1500  # seconds: the first image takes a minute or two, and CI machines are slow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONG)]


def run(*words, code=0, cwd=None):
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=LONG, cwd=cwd, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def demo(tmp_path_factory, base_image):
    folder = tmp_path_factory.mktemp("demo")
    made = run(REPROKIT, "demo", "--out", folder, "--engine", "docker", "--base-image", base_image, "--json")
    return json.loads(made)


@pytest.fixture(scope="module")
def padded(demo):
    """What a person would find by looking: samples and frames that are black, in the captured batch."""
    batch = reprokit.Incident.open(demo["incident"]["path"]).batch()
    black = (batch["global"].flatten(2) == 0).all(-1)
    assert torch.equal(black, (batch["local"].flatten(3) == 0).all(-1).all(1))
    [sample] = black.any(1).nonzero().flatten().tolist()
    return sample, black[sample].nonzero().flatten().tolist()


@pytest.mark.docker
def test_the_padded_sample_and_its_frames_are_found(demo, padded):
    sample, frames = padded
    axes, reduction = demo["reduce"]["axes"], demo["reduce"]
    assert axes["b"]["guilty"] == [sample]
    assert sample in axes["b"]["kept"] and len(axes["b"]["kept"]) <= 2
    assert len(axes["t"]["kept"]) == 1 and axes["t"]["kept"][0] in frames
    assert axes["t"]["guilty"] == frames
    assert len(axes["v"]["kept"]) <= 1
    assert reduction["one_minimal"] is True and reduction["batch_guilty"] is True
    assert reduction["verified"]["verdict"] == "REPRODUCIBLE"
    assert reduction["signature"] == demo["incident"]["signature"]


@pytest.mark.docker
def test_the_replay_is_reproducible_in_containers(demo):
    replay = demo["replay"]
    assert (replay["verdict"], replay["engine"], replay["fail"], replay["n"]) == ("REPRODUCIBLE", "docker", 14, 14)
    assert replay["rate_at_least"] > 0.8 and replay["fingerprints"] == {"distinct": 1, "stable": 14}
    reduced = reprokit.Incident.open(demo["reduce"]["path"]).manifest
    assert reduced.parent == demo["incident"]["id"]
    assert all(attempt["fingerprint"] == reduced.fingerprint for attempt in replay["attempts"])


@pytest.mark.docker
@pytest.mark.parametrize("engine", ["process", "docker"])
def test_the_captured_step_replays_bit_for_bit(demo, base_image, engine):
    base = ["--base-image", base_image] if engine == "docker" else []
    found = json.loads(run(REPROKIT, "replay", demo["incident"]["path"], "-n", 2, "--engine", engine, *base, "--json"))
    captured = demo["incident"]["fingerprint"]
    assert set(captured) == {
        f"{what}/{m}" for what in ("gradients", "parameters") for m in ("encoder", "projector")
    } | {"losses"}
    assert [attempt["fingerprint"] for attempt in found["attempts"]] == [captured] * 2


@pytest.mark.docker
def test_the_bundle_reproduces_from_an_empty_folder(demo, tmp_path):
    bundle = demo["bundle"]
    assert run(REPROKIT, "verify", bundle["path"]).startswith(bundle["path"])
    run("tar", "--zstd", "-xf", bundle["path"], cwd=tmp_path)
    before = {path for path in tmp_path.rglob("*")}
    found = json.loads(run(tmp_path / bundle["folder"] / "run.sh", "-n", 3, "--json", cwd=os.sep))
    assert (found["verdict"], found["fail"]) == ("REPRODUCIBLE", 3)
    assert {path for path in tmp_path.rglob("*")} == before


def test_a_healthy_run_says_so_and_writes_nothing(tmp_path):
    assert run(REPROKIT, "demo", "--out", tmp_path / "out", "--healthy") == "nothing failed in 12 steps\n"
    assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("text", [b"", b"not a video"])
def test_a_video_that_does_not_decode_is_one_line(tmp_path, text):
    (tmp_path / "clip.mp4").write_bytes(text)
    done = subprocess.run(
        [REPROKIT, "demo", "--out", tmp_path / "out", "--video", tmp_path / "clip.mp4"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("  ")]  # what is said while one waits
    assert line.startswith("reprokit: ") and "clip.mp4" in line
    assert not (tmp_path / "out").exists()
