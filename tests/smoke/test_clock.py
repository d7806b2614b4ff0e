"""What hangs is interrupted where it stands, wherever that is; what goes on is left alone."""

import re
import signal
import threading
import time

import pytest
import torch

from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.smoke.clock import Clock, Overdue
from reprokit.smoke.gate import HANGS, Gate, Verdict
from reprokit.smoke.gates.extremes import Extremes
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.overfit import Overfit
from reprokit.smoke.opening import opened
from reprokit.smoke.smoke import smoke

TIME = 1.0  # a step here takes hundredths of it, on a busy machine too


@pytest.fixture(autouse=True, scope="module")
def warm(plain):
    """What torch imports at the first optimizer takes longer than a step."""
    smoke(plain.subject(), [Numbers(), Gradients()])


def for_ever():
    threading.Event().wait()


def turning():
    while True:
        pass


def deaf():
    while True:
        try:
            time.sleep(60)
        except Exception:  # a step that tries again whatever it meets
            continue


@pytest.fixture
def passes(monkeypatch):
    """passes(*seconds): time that passes for a clock, and only then; returns when it has looked at it each time."""
    now, looked = [100.0], threading.Semaphore(0)

    def late(clock, since):
        found = _late(clock, since)
        looked.release()
        return found

    def passed(*times):
        for seconds in times:
            now[0] += seconds
            while looked.acquire(blocking=False):
                pass
            for _ in range(3):  # at the least one of them began after that
                assert looked.acquire(timeout=60)

    _late = Clock._late
    monkeypatch.setattr("reprokit.smoke.clock.monotonic", lambda: now[0])
    monkeypatch.setattr(Clock, "_late", late)
    return passed


@pytest.mark.parametrize("hang", [for_ever, turning, deaf, lambda: time.sleep(60)])
def test_what_hangs_is_interrupted_and_says_where(hang):
    with pytest.raises(Overdue, match=r"no end after 1 s, at .*:\d+ in ") as found, Clock(TIME).watching():
        hang()
    assert any(entry.name == hang.__name__ for entry in found.traceback)


def test_what_begins_anew_has_its_time_anew(passes):
    clock = Clock(1.0)
    with clock.watching():
        for _ in range(4):
            clock.begins()
            passes(0.9)
        with clock.longer(60):
            passes(60.0)
    with pytest.raises(Overdue), clock.watching():
        hung(passes, 0.9, 0.2)


def test_what_has_come_to_that_already_has_no_more_time_than_any(passes):
    clock = Clock(1.0)
    with pytest.raises(Overdue), clock.watching(), clock.longer(60) as over:
        hung(passes, 30.0, over=over)
    with clock.watching():
        passes(0.9)
    with pytest.raises(Overdue), clock.watching():
        hung(passes, 1.1)


def hung(passes, *times, over=lambda: None):
    passes(*times)
    over()
    for_ever()


def test_before_and_after_it_nothing_is_interrupted():
    clock, before = Clock(TIME), signal.getsignal(signal.SIGURG)
    with clock.watching():
        pass
    clock.begins()
    time.sleep(1.5 * TIME)
    signal.raise_signal(signal.SIGURG)
    assert signal.getsignal(signal.SIGURG) == before


def test_in_another_thread_it_does_nothing():
    done = []

    def work():
        with Clock(0.05).watching():
            time.sleep(0.2)
        done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done


def test_who_does_not_hear_it_is_told_of_from_outside():
    """With the signal blocked the main thread hears nothing, as within a kernel."""
    clock, told = Clock(0.2), []
    clock.stuck = told.append
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGURG})
    try:
        with clock.watching():
            while not told:
                time.sleep(0.01)
    finally:
        clock.seconds = None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGURG})
    (overdue,) = told
    assert "test_clock.py" in str(overdue)
    assert overdue.__traceback__ is not None


def hanging(net, batch):
    for_ever()


class Backward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        for_ever()


def hanging_backward(net, batch):
    return Backward.apply(net(batch["clip"].flatten(0, 1).float()).mean())


@pytest.mark.parametrize("step", [hanging, hanging_backward])
def test_a_step_that_hangs_is_a_failure_with_its_place_and_no_gate_waits_for_it_again(plain, step):
    subject = plain.subject(lambda: plain.harness(step), clock=Clock(TIME))
    began = time.monotonic()
    report = smoke(subject, [Numbers(), Gradients(), Overfit()])
    assert time.monotonic() - began < 20 * TIME
    assert not report.passed and report.failed_gates == ("numbers",)
    (hung,) = [one for one in report.findings if one.check == HANGS]
    assert f"no end after {TIME:g} s, at threading.py:" in hung.observed
    assert " in wait (" in hung.observed and re.search(r"test_clock.py:\d+ in for_ever\)$", hung.observed)
    assert "--hang-after" in hung.advice
    after = [one for one in report.findings if one.gate in ("gradients", "overfit")]
    assert [one.verdict for one in after] == [Verdict.NOT_APPLICABLE] * 2
    assert all("see numbers" in one.observed for one in after)


def test_rows_before_a_hang_are_kept(plain):
    report = smoke(plain.subject(lambda: plain.harness(hanging), clock=Clock(TIME)), [Numbers()])
    assert any(one.verdict is Verdict.PASSED and one.check.startswith("clip: finite") for one in report.findings)


def test_a_hang_is_no_refusal_of_a_hostile_batch(plain):
    def step(net, batch):
        if not len(batch["clip"]):
            for_ever()
        return net(batch["clip"].flatten(0, 1).float() / 255).square().mean()

    report = smoke(plain.subject(lambda: plain.harness(step), clock=Clock(TIME)), [Extremes()])
    assert report.failed_gates == ("extremes",)
    assert HANGS in [one.check for one in report.findings]


def test_a_step_that_is_slower_than_a_deadline_of_all_of_them_passes(plain):
    def step(net, batch):
        time.sleep(TIME / 4)
        return net(batch["clip"].flatten(0, 1).float() / 255).square().mean()

    report = smoke(plain.subject(lambda: plain.harness(step), clock=Clock(TIME)), [Numbers(), Gradients()])
    assert report.passed


def test_a_hang_leaves_an_incident_of_its_kind(mutants, tmp_path):
    subject = mutants.subject(mutants.hanging, out=tmp_path, clock=Clock(1.0))
    report = smoke(subject, [Numbers()])
    ((gate, path),) = report.incidents
    incident = Incident.open(path)
    assert gate == "numbers"
    assert incident.manifest.signature.kind is Kind.HANG
    assert HANGS in (path / "logs" / "reason.txt").read_text()
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_a_hang_is_captured_also_where_the_recorder_sees_it_late(mutants, tmp_path, monkeypatch):
    """As on a busy machine, where the time to interrupt it has come by then."""
    monkeypatch.setattr("reprokit.capture.watchdog._LOOKS", 0.1)
    monkeypatch.setattr("reprokit.capture.watchdog._LONGEST_PAUSE", 2.5)
    report = smoke(mutants.subject(mutants.hanging, out=tmp_path, clock=Clock(TIME)), [Numbers()])
    ((_, path),) = report.incidents
    assert Incident.open(path).manifest.signature.kind is Kind.HANG


class Objecting(Gate):
    """Without running a step."""

    name = "objecting"

    def look(self, subject):
        yield self.failed("fine", "yes", "no", "mend it")


def test_a_hang_that_only_the_capture_of_another_failure_meets_is_captured(mutants, tmp_path):
    report = smoke(mutants.subject(mutants.hanging, out=tmp_path, clock=Clock(1.0)), [Objecting()])
    assert report.failed_gates == ("objecting",)
    ((_, path),) = report.incidents
    assert Incident.open(path).manifest.signature.kind is Kind.HANG


SCRIPT = """
import threading, torch, reprokit
from torch import nn

def default_config():
    return {}

def build(config):
    with open(__file__ + ".begun", "a") as begun:
        begun.write("x")
    threading.Event().wait()
"""


def test_a_build_that_hangs_is_a_failure_and_no_gate_waits_for_it_again(tmp_path):
    (tmp_path / "hanging_build.py").write_text(SCRIPT)
    subject = opened("hanging_build.py:build", root=tmp_path, out=tmp_path / "out", clock=Clock(TIME))
    report = smoke(subject, [Numbers(), Gradients()])
    assert [one.verdict for one in report.findings] == [Verdict.FAILED, *[Verdict.NOT_APPLICABLE] * 2]
    assert report.findings[0].observed.endswith("(hanging_build.py:11 in build)")
    assert report.uncaptured == ("opening: no incident, because build hangs",)
    assert (tmp_path / "hanging_build.py.begun").read_text() == "x" and not (tmp_path / "out").exists()
