"""What a process starts cannot get away from it."""

import os
import subprocess
import sys
import time
from collections import defaultdict

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.step import below

PARENTS = st.lists(st.tuples(st.integers(2, 30), st.integers(1, 30)), unique_by=lambda pair: pair[0])


@given(PARENTS, st.sets(st.integers(2, 30)))
def test_descendants_are_those_below_by_whatever_way(pairs, spare):
    children = defaultdict(set)
    for pid, parent in pairs:
        children[parent].add(pid)
    wanted, todo = set(), [1]
    while todo:
        new = children[todo.pop()] - spare - wanted - {1}
        wanted |= new
        todo += new
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(below, "_parents", lambda: pairs)
        assert below.descendants(1, spare) == wanted


def test_a_process_with_any_name_has_its_parent(tmp_path, monkeypatch):
    monkeypatch.setattr(below, "_PROC", tmp_path)
    for pid, name in (("10", "a) S 99 ("), ("11", "sleep"), ("self", "no pid")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(f"{pid} ({name}) S 7 10 10 0 -1\n")
    (tmp_path / "12").mkdir()  # gone between two looks
    assert sorted(below._parents()) == [(10, 7), (11, 7)]


SCRIPT = """
import os, signal, subprocess, sys, time
from reprokit.step import below
below.adopt_orphans()
spared = subprocess.Popen(["sleep", "600"])
def loose(depth):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if depth:
            loose(depth - 1)
            os._exit(0)
        while True:  # a bomb, as slow as this machine bears
            time.sleep(0.02)
            if os.fork() == 0:
                time.sleep(600)
for depth in range(3):
    loose(depth)
time.sleep(0.5)
began = len(below.descendants(os.getpid(), [spared.pid]))
gone = below.end_all([spared.pid])
left = below.descendants(os.getpid(), [spared.pid])
print(began, gone, len(left), spared.poll(), flush=True)
gone = below.end_all()
print(gone, below.descendants(os.getpid()))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="orphans can be adopted on Linux alone")
def test_all_that_was_started_ends_but_what_is_spared():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=100)
    first, second = done.stdout.splitlines()
    began, gone, left, spared = first.split()
    assert int(began) >= 3 and (gone, left, spared) == ("True", "0", "None"), done.stderr
    assert second == "True set()"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_a_process_can_end_with_its_parent():
    code = (
        "import os, time; from reprokit.step import below; me = os.getpid(); told, tell = os.pipe(); pid = os.fork()\n"
        "if pid == 0: below.end_with_parent(me); print(os.getpid(), flush=True); os.write(tell, b'x')\n"
        "if pid == 0: time.sleep(600)\n"
        "os.read(told, 1); os._exit(0)"
    )
    done = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    with done:
        child = int(done.stdout.readline())
        done.wait(60)
    until = time.monotonic() + 60
    while lives(child):
        assert time.monotonic() < until
        time.sleep(0.02)


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_without_children_there_is_nothing_to_look_for(monkeypatch):
    monkeypatch.setattr(below, "_has_children", lambda: False)
    monkeypatch.setattr(below, "kill", lambda *_: os.abort())
    assert below.end_all()
