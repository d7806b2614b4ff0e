"""A clock that moves by what was said, for who looks at it, and goes back to the real one."""

import sys
import threading
import time
from itertools import pairwise
from types import ModuleType

import pytest

from reprokit.step import clock
from reprokit.step.case import Case, Variant
from reprokit.step.clock import ticking
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Status


def test_each_look_takes_a_tick_whichever_clock_it_is():
    looks = ("time_ns", "monotonic_ns", "perf_counter_ns")
    real = [getattr(time, look) for look in looks]
    with ticking(0.002):
        seen = [getattr(time, look)() for look in (*looks, *looks)]
        assert time.perf_counter() - time.perf_counter() == pytest.approx(-0.002, abs=1e-6)
    assert {after - before for before, after in pairwise(seen)} == {2_000_000}
    assert [getattr(time, look) for look in looks] == real


def test_every_attempt_sees_the_same_times():
    def times():
        with ticking(1e-3):
            return [time.time(), time.perf_counter_ns(), time.monotonic()]

    assert times() == times()


def test_names_that_a_module_imported_are_replaced_and_put_back(monkeypatch):
    module = ModuleType("trains_by_the_clock")
    module.now, module.wait = time.perf_counter, time.sleep
    module.other = time.process_time
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with ticking(5.0):
        before, after = module.now(), module.now()
        assert after - before == pytest.approx(5.0, abs=1e-3) and module.other is time.process_time
        module.wait(0.01)
        assert module.now() - after == pytest.approx(5.01, abs=1e-3)
    assert module.wait is time.sleep
    assert module.now is time.perf_counter


def test_what_other_threads_look_at_moves_nothing_here():
    def look():
        while not ended.is_set():
            time.monotonic()

    ended, looking = threading.Event(), threading.Thread(target=look)
    with ticking(5.0):
        looking.start()
        seen = [time.perf_counter() for _ in range(100) if not time.sleep(1e-4)]
        ended.set()
        looking.join()
    assert {round(after - before, 3) for before, after in pairwise(seen)} == {5.0}


def test_what_another_thread_imports_meanwhile_breaks_nothing():
    def imports():
        while not ended.is_set():
            names = [f"imported_meanwhile_{number}" for number in range(200)]
            for name in names:
                sys.modules[name] = module
            for name in names:
                del sys.modules[name]

    module, ended = ModuleType("meanwhile"), threading.Event()
    importing, interval = threading.Thread(target=imports), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    importing.start()
    try:
        assert all(time in clock._modules() for _ in range(500))
    finally:
        ended.set()
        importing.join()
        sys.setswitchinterval(interval)


def test_a_step_that_reads_the_clock_is_decided_by_it(make_incident):
    body = "import time\nbegan = time.time()\nx = x / (time.time() - began > 0.5)"
    incident = make_incident(body, batch=None)
    ask = lambda session, tick: session.evaluate(
        Case(incident=incident.path, content="donor", variant=Variant(clock=tick))
    )
    with Session(incident) as session:
        assert [ask(session, tick).status for tick in (1.0, 0.1, 1.0, 0.1)] == [Status.PASS, Status.FAIL] * 2


def test_a_clock_that_stands_still_is_refused(make_incident):
    incident = make_incident()
    with Session(incident) as session:
        outcome = session.evaluate(Case(incident=incident.path, variant=Variant(clock=0.0)))
    assert outcome.status is Status.INVALID and "clock=0.0" in outcome.detail
