"""The tee remembers the end, and nobody notices it."""

import io
import logging
import os
import signal
import subprocess
import sys
import threading
from functools import wraps
from inspect import Signature, signature

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.capture.logs import LIMIT, Tail, Tee, one_line, stacks


def on_own_streams(test):
    """Streams of this test alone. A fixture would be too early: pytest puts in its own when the test itself begins."""

    @wraps(test)
    def run(**arguments):
        kept = sys.stdout, sys.stderr
        own = tuple(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        sys.stdout, sys.stderr = own
        try:
            test(own, **arguments)
        finally:
            sys.stdout, sys.stderr = kept

    parameters = list(signature(test).parameters.values())
    run.__signature__ = Signature(parameters[1:])
    return run


def written(stream):
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")


@on_own_streams
def test_what_is_printed_is_passed_on_and_kept(streams):
    out, err = streams
    with Tee() as tee:
        print("a", 1)
        print("b", file=sys.stderr)
        sys.stdout.writelines(["c", "d"])
    print("after")
    assert tee.stdout() == "a 1\ncd" and tee.stderr() == "b\n"
    assert written(out) == "a 1\ncdafter\n" and written(err) == "b\n"
    assert (sys.stdout, sys.stderr) == streams


@given(st.lists(st.text(st.characters())), st.integers(1, 50))
def test_a_tail_is_the_end_of_the_text(pieces, limit):
    tail = Tail(limit)
    for piece in pieces:
        tail.add(piece)
    data = "".join(pieces).encode("utf-8", "backslashreplace")
    assert tail.text() == data[-limit:].decode("utf-8", "ignore")


def test_a_tail_stays_small():
    tail = Tail(1000)
    for index in range(200_000):
        tail.add(f"{index}\n")
    assert tail.text().endswith("199998\n199999\n") and len(tail.text()) == 1000
    assert sum(map(len, tail._pieces)) < 20_000


@on_own_streams
def test_the_default_is_64_kib(streams):
    with Tee() as tee:
        print("x" * 100 + "y" * LIMIT, end="")
    assert tee.stdout() == "y" * LIMIT


@on_own_streams
def test_the_stream_is_the_one_below_in_everything(streams):
    out, _ = streams
    with Tee():
        assert sys.stdout.encoding == "utf-8" and sys.stdout.buffer is out.buffer and not sys.stdout.isatty()
        assert sys.stdout.errors == out.errors and not sys.stdout.closed and sys.stdout.write("ab") == 2
        sys.stdout.note = "kept"
        sys.stdout.reconfigure(errors="backslashreplace")
        with pytest.raises(io.UnsupportedOperation):
            sys.stdout.fileno()
        with pytest.raises(AttributeError):
            sys.stdout.no_such_thing  # noqa: B018
        with pytest.raises(TypeError):
            sys.stdout.write(b"bytes")
    assert out.note == "kept" and out.errors == "backslashreplace"


@on_own_streams
def test_surrogates_fail_as_they_would_and_are_kept_as_they_can(streams):
    with Tee() as tee:
        with pytest.raises(UnicodeEncodeError):
            print("\udcff")
        sys.stdout.reconfigure(errors="surrogateescape")
        print("\udcff")
    assert tee.stdout().replace("\n", "") == "\\udcff"


@on_own_streams
def test_another_stream_put_in_its_place_stays(streams):
    out, _ = streams
    tee = Tee()
    with tee:
        held, other = sys.stdout, io.StringIO()
        sys.stdout = other
    assert sys.stdout is other
    held.write("still passed on")
    assert written(out) == "still passed on" and tee.stdout() == ""


@pytest.mark.parametrize("order", ["inner first", "outer first"])
@on_own_streams
def test_two_tees_can_be_left_in_any_order(streams, order):
    outer, inner = Tee(), Tee()
    outer.__enter__(); inner.__enter__()
    print("both")
    first, second = (inner, outer) if order == "inner first" else (outer, inner)
    first.__exit__()
    print("one")
    second.__exit__()
    print("none")
    assert (sys.stdout, sys.stderr) == streams
    assert first.stdout() == "both\n" and second.stdout() == "both\none\n"


@on_own_streams
def test_a_tee_can_be_entered_again(streams):
    tee = Tee()
    with tee, tee:
        print("a")
    with tee:
        print("b")
    assert tee.stdout() == "a\nb\n" and written(streams[0]) == "a\nb\n"


@on_own_streams
def test_a_closed_stream_below(streams):
    with Tee() as tee:
        print("a")
        streams[0].close()
        with pytest.raises(ValueError, match="closed"):
            print("b")
    assert tee.stdout() == "a\n" and sys.stdout is streams[0]


def test_a_process_without_streams(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    with Tee() as tee:
        print("nowhere")
    assert tee.stdout() == "" and sys.stdout is None


@on_own_streams
def test_an_error_inside_goes_through(streams):
    with pytest.raises(ZeroDivisionError), Tee():
        1 / 0  # noqa: B018
    assert (sys.stdout, sys.stderr) == streams


@on_own_streams
def test_loggers_made_before_are_heard(streams):
    handler = logging.StreamHandler()
    logger = logging.getLogger("test_logs")
    logger.addHandler(handler)
    try:
        with Tee() as tee:
            logger.warning("step %d", 3)
        logger.warning("after")
    finally:
        logger.removeHandler(handler)
    assert tee.stderr() == "step 3\n" and handler.stream is streams[1]
    assert written(streams[1]) == "step 3\nafter\n"


@on_own_streams
def test_many_threads_lose_nothing(streams):
    def work(name):
        for index in range(2000):
            sys.stdout.write(f"{name}:{index}\n")

    with Tee(limit=1 << 20) as tee:
        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    lines = tee.stdout().splitlines()
    for name in "abcd":
        assert [line for line in lines if line.startswith(name)] == [f"{name}:{index}" for index in range(2000)]


def test_capture_of_pytest_still_works(capsys):
    with Tee() as tee:
        print("seen by both")
    assert capsys.readouterr().out == tee.stdout() == "seen by both\n"


def test_a_signal_handler_and_a_forked_child_never_wait():
    """The worst moment: the lock is held by a thread that the child does not have, or by the code under the handler."""
    code = f"""if True:
        import os, signal, sys
        from reprokit.capture.logs import Tee
        with Tee() as tee:
            tail = tee._tails["stdout"]
            signal.signal(signal.SIGUSR1, lambda *_: print("handler" + "x" * {LIMIT}))
            with tail._lock:
                os.kill(os.getpid(), signal.SIGUSR1)
                if (child := os.fork()) == 0:
                    print("child" + "y" * {LIMIT})
                    sys.stdout.flush()
                    os._exit(0)
            os.waitpid(child, 0)
        print("end", tee.stdout().count("x"))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "handlerx" in done.stdout and "childy" in done.stdout and "end 65" in done.stdout
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_stacks_of_all_threads():
    ready, done = threading.Event(), threading.Event()

    def waits_here():
        ready.set()
        done.wait()

    thread = threading.Thread(target=waits_here, name="loader-7")
    thread.start()
    ready.wait()
    try:
        text = stacks()
    finally:
        done.set()
        thread.join()
    first, *rest = text.split("\n\n")
    assert first.startswith(f"Thread {threading.current_thread().name} (current):")
    assert "test_stacks_of_all_threads" in first
    assert any("Thread loader-7:" in part and "waits_here" in part for part in rest)


def test_an_exception_that_says_a_book_is_a_line_that_can_be_read():
    assert one_line(ValueError("a  b\nc")) == "ValueError: a b c"
    told = one_line(ValueError("x" * 10_000_000))
    assert told.startswith("ValueError: xxx") and told.endswith(" ...")
    assert len(told) < 3000
