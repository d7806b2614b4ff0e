"""SIGUSR1 asks for a capture; SIGTERM waits for what is being written; nobody else's handler is lost."""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from reprokit.capture.signals import Signals
from reprokit.incident import Incident


@pytest.fixture(autouse=True)
def handlers():
    """As they were before."""
    numbers = (signal.SIGUSR1, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Write:
    """Of an incident, which lasts until it is waited for."""

    def __init__(self):
        self.busy, self.order = False, []

    def signals(self):
        return Signals(busy=lambda: self.busy, finish=self.finish)

    def finish(self):
        if self.busy:
            self.order.append("written")
        self.busy = False


def send(number):
    os.kill(os.getpid(), number)


def test_recorders_that_end_in_the_order_in_which_they_began_leave_no_handler():
    number, before = signal.SIGUSR1, signal.getsignal(signal.SIGUSR1)
    first, second, third = (Signals(busy=lambda: False, finish=lambda: None) for _ in range(3))
    for one in (first, second, third):
        one.__enter__()
    for one in (first, second, third):
        one.__exit__()
    assert signal.getsignal(number) == before


def test_a_capture_is_asked_for_once():
    with Write().signals() as signals:
        assert not signals.asked()
        send(signal.SIGUSR1)
        assert signals.asked() and not signals.asked()
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_the_handler_before_is_called_as_well_and_put_back():
    heard = []
    mine = lambda number, frame: heard.append(number)
    signal.signal(signal.SIGUSR1, mine)
    with Write().signals() as signals:
        send(signal.SIGUSR1)
        assert heard == [signal.SIGUSR1] and signals.asked()
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_a_handler_that_was_set_meanwhile_stays():
    mine = lambda number, frame: None
    with Write().signals():
        signal.signal(signal.SIGUSR1, mine)
    assert signal.getsignal(signal.SIGUSR1) is mine


def test_sigterm_waits_for_the_write_and_then_does_what_it_would_have_done():
    write = Write()
    signal.signal(signal.SIGTERM, lambda number, frame: write.order.append("terminated"))
    with write.signals() as signals:
        with signals.writing():
            write.busy = True
            send(signal.SIGTERM)
        assert write.order == ["written", "terminated"]


def test_sigterm_is_left_alone_where_nothing_is_written():
    write, before = Write(), signal.getsignal(signal.SIGTERM)
    with write.signals() as signals:
        assert signal.getsignal(signal.SIGTERM) == before
        with signals.writing():
            assert signal.getsignal(signal.SIGTERM) != before
        assert signal.getsignal(signal.SIGTERM) == before


def test_a_write_that_goes_on_is_waited_for_until_it_ended():
    write, before = Write(), signal.getsignal(signal.SIGTERM)
    with write.signals() as signals:
        with signals.writing():
            write.busy = True
        signals.settle()
        assert signal.getsignal(signal.SIGTERM) != before
        write.finish()
        signals.settle()
        assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("instant", ["after ours is set", "before the one before is put back"])
def test_sigterm_may_come_at_any_instant_and_is_not_lost(monkeypatch, instant):
    write, set_handler, handler = Write(), signal.signal, signal.getsignal
    set_handler(signal.SIGTERM, lambda number, frame: write.order.append("terminated"))
    ours = lambda found: getattr(found, "__self__", None) is signals

    def setting(number, new):
        before = set_handler(number, new)
        if ours(new):
            send(number)
        return before

    def asking(number):
        found = handler(number)
        monkeypatch.undo()  # once
        if ours(found):
            send(number)
        return found

    with write.signals() as signals:
        if instant == "after ours is set":
            monkeypatch.setattr(signal, "signal", setting)
        with signals.writing():
            monkeypatch.undo()
            if instant != "after ours is set":
                monkeypatch.setattr(signal, "getsignal", asking)
        monkeypatch.undo()
    assert write.order == ["terminated"]


def test_a_write_inside_a_write_is_one():
    write, before = Write(), signal.getsignal(signal.SIGTERM)
    with write.signals() as signals, signals.writing(), signals.writing():
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_sigterm_ignores_is_ignored_still():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    write = Write()
    with write.signals() as signals, signals.writing():
        write.busy = True
        send(signal.SIGTERM)
    assert write.order == ["written"] and signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


def test_in_another_thread_nothing_is_set():
    before, seen = signal.getsignal(signal.SIGUSR1), []

    def work():
        with Write().signals() as signals, signals.writing():
            seen.append((signal.getsignal(signal.SIGUSR1), signals.asked()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]


@pytest.mark.slow
def test_a_process_dies_of_sigterm_once_its_write_is_done(tmp_path):
    script = f"""
        import os, pathlib, signal, threading
        from reprokit.capture.signals import Signals
        done = pathlib.Path({str(tmp_path / "done")!r})
        def write():
            asked.wait(60)
            done.write_text("whole")
        asked, thread = threading.Event(), threading.Thread(target=write)
        def finish():
            asked.set()
            thread.join()
        with Signals(busy=thread.is_alive, finish=finish) as signals, signals.writing():
            thread.start()
            os.kill(os.getpid(), signal.SIGTERM)
            print("not reached")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, ""), done.stderr
    assert (tmp_path / "done").read_text() == "whole"


RECORDS = """
import threading
import torch
import reprokit
from reprokit.capture import snapshot
from reprokit.capture.writer import Writer

write, waited, wait = snapshot.write, threading.Event(), Writer.wait


def slow(*arguments, **options):
    print("writing", flush=True)
    assert waited.wait(60)  # until SIGTERM has come, and waits for what is written here
    return write(*arguments, **options)


def waiting(writer):
    waited.set()
    wait(writer)


snapshot.write, Writer.wait = slow, waiting


def build(config):
    net = torch.nn.Linear(1, 1)
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
                            step=lambda batch: net(batch["x"]).mean() / 0.0, layout={"x": "b d"})


if __name__ == "__main__":
    with reprokit.Recorder(build({}), build=build, config={}, rehearse=False) as recorder:
        recorder.step({"x": torch.ones(2, 1)})
"""


@pytest.mark.slow
def test_an_incident_that_is_being_written_is_whole_before_sigterm_ends_the_run(tmp_path):
    (tmp_path / "train.py").write_text(RECORDS)
    with subprocess.Popen([sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == -signal.SIGTERM
    [path] = [path for path in (tmp_path / "incidents").iterdir() if path.is_dir()]
    assert Incident.open(path).manifest.step == 1
