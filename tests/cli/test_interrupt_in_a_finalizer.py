"""Ctrl-C comes at any moment; what is raised in a finalizer is lost, so it is raised a moment later."""

import os
import signal
import time

import pytest

from reprokit.cli.signals import Ending


@pytest.fixture
def listening():
    ending = Ending()
    before = signal.signal(signal.SIGINT, ending.heard)
    yield
    signal.signal(signal.SIGINT, before)


class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        self.finished = [i for i in range(1000)]


def test_an_interrupt_in_a_finalizer_is_heard_after_it(listening):
    def work():
        Finalized()
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        work()
