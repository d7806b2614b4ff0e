"""A busy host, for attempts that want to know whether load decides."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_SPIN = """
import os, sys
while os.getppid() == int(sys.argv[1]):  # nobody else would end it once whoever started it was killed
    sum(range(1_000_000))
"""


@contextmanager
def busy() -> Iterator[None]:
    """A process that computes for every core of this machine, and they compete with the attempts as equals."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())], stdin=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield
