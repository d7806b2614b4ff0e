"""A step that takes too long is captured while it hangs, and is left alone."""

import logging
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from reprokit.capture.watchdog import Watchdog, observe
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.incident import Incident, Manifest
from reprokit.replay.choose import open_engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.step.case import Case
from reprokit.step.deadline import patience
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

ZOO = Path(__file__).parents[1] / "zoo"
SOON = 0.02  # seconds: whatever waits for the watchdog waits for its word, not for a time
LONG = 60.0  # seconds until a test gives up waiting


@pytest.fixture
def watch(caplog):
    """watch(seconds) -> a watchdog, the hangs that it saw, and an event that is set with each."""
    open_ones = []

    def make(seconds):
        hangs, seen = [], threading.Event()

        def write(hang):
            hangs.append(hang)
            seen.set()
            return Path("incident")

        dog = Watchdog(seconds)
        open_ones.append(dog)
        return dog, write, hangs, seen

    yield make
    for dog in open_ones:
        dog.close()


def decode(event):
    assert event.wait(LONG)


def test_it_is_told_once_while_the_step_is_under_way_and_the_step_ends_as_it_would(watch, caplog):
    dog, write, hangs, seen = watch(SOON)
    with caplog.at_level(logging.WARNING, "reprokit"):
        with dog.watching(7, write):
            decode(seen)
        with dog.watching(8, lambda hang: pytest.fail("step 8 does not hang")):
            pass
    [hang] = hangs
    assert (hang.seen.signature.kind, hang.seen.signature.where) == (Kind.HANG, "forward")
    [symptom] = hang.seen.symptoms
    assert symptom.evidence["hang_after"] == SOON
    first, *_ = hang.stacks.split("\nThread ")
    assert first.startswith("Thread MainThread (hangs):") and "in decode" in first
    told = [record.message for record in caplog.records]
    assert told[0] == f"step 7 has taken over {SOON} s: captured as a hang in incident, and left alone; " + (
        "next: reprokit show incident"
    )
    assert told[1].startswith("step 7 ended after all, after ") and len(told) == 2


def test_each_step_has_its_own_time(watch):
    dog, write, hangs, seen = watch(LONG)
    for step in range(50):
        with dog.watching(step, write):
            pass
    assert not hangs and not seen.is_set()


def test_without_a_limit_there_is_no_thread(watch):
    dog, write, hangs, _ = watch(None)
    before = set(threading.enumerate())  # of other tests some may end meanwhile
    with dog.watching(1, write):
        assert set(threading.enumerate()) <= before
    assert not hangs


def test_the_end_of_a_step_waits_for_what_is_being_written(watch):
    dog, *_ = watch(SOON)
    order, began, may_end = [], threading.Event(), threading.Event()

    def write(hang):
        began.set()
        assert may_end.wait(LONG)
        order.append("written")

    release = threading.Thread(target=lambda: (began.wait(LONG), may_end.set()))
    release.start()
    with dog.watching(1, write):
        decode(began)
    order.append("ended")
    release.join()
    assert order == ["written", "ended"]


def test_what_breaks_while_it_is_written_is_one_line(watch, caplog):
    dog, *_ = watch(SOON)
    began = threading.Event()

    def write(hang):
        began.set()
        raise OSError("no space")

    with dog.watching(1, write):
        decode(began)
    [record] = [record for record in caplog.records if record.name == "reprokit" and "cannot" in record.message]
    assert record.message == "step 1 hangs and cannot be captured: OSError: no space"


def test_a_step_that_is_interrupted_is_forgotten(watch):
    dog, write, hangs, _ = watch(LONG)
    with pytest.raises(KeyboardInterrupt), dog.watching(1, write):
        raise KeyboardInterrupt
    assert dog._now is None and not hangs


@pytest.mark.parametrize(("what", "phase"), [("backward", "backward"), ("optimizer", "optimizer")])
def test_the_phase_is_told_by_where_the_thread_stands(what, phase):
    at, go = threading.Event(), threading.Event()

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            stand()
            return grad

    def stand():
        at.set()
        assert go.wait(LONG)

    def work():
        x = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.1)
        if what == "optimizer":
            optimizer.register_step_pre_hook(lambda *_: stand())
            x.grad = torch.ones(1)
            optimizer.step()
        else:
            Waits.apply(x).sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    assert at.wait(LONG)
    try:
        seen = observe(thread.ident, 1.0).seen
    finally:
        go.set()
        thread.join()
    assert seen.signature.where == phase


@pytest.mark.slow
def test_a_clip_on_which_decoding_hangs_is_captured_and_hangs_again(tmp_path):
    for name in ("adapter.py", "z35.py"):
        shutil.copy(ZOO / name, tmp_path)
    (tmp_path / "go.py").write_text(
        "import adapter, reprokit\n"
        "adapter.main('z35', 'incidents', rehearse=False, limits=reprokit.Limits(hang_after=3.0))\n"
    )
    done = subprocess.run([sys.executable, "go.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "step 2 has taken over 3 s: captured as a hang in" in done.stderr and "step 2 ended after all" in done.stderr
    [path] = (tmp_path / "incidents").iterdir()
    incident = Incident.open(path)
    signature, [symptom] = incident.manifest.signature, incident.manifest.symptoms
    assert (signature.kind, signature.where, incident.manifest.step) == (Kind.HANG, "forward", 2)
    assert symptom.evidence["at"].endswith("in decode") and patience(incident.manifest) == 5.5
    assert incident.batch()["locals"].max() == 7.0 and incident.donor()["locals"].max() < 1.0
    with Worker(incident) as worker:
        outcome = worker.evaluate(Case(incident=path), "process", timeout=300)
        assert outcome.status is Status.FAIL and "did not end within 5.5 s" in outcome.detail
        donor = worker.evaluate(Case(incident=path, content="donor"), "process", timeout=300)
    assert donor.status is Status.PASS, donor.detail


def test_what_takes_its_process_with_it_is_not_run_in_this_one(tmp_path):
    signature = Signature(kind=Kind.HANG, where="forward")
    manifest = Manifest(signature=signature, step=1, entrypoint="a:b", layout={}, files={})
    with pytest.raises(BadInput, match="a hang would take this process with it; choose engine process or docker"):
        open_engine(Incident(tmp_path, manifest), EngineOptions(engine="inline"))
