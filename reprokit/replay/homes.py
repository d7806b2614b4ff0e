"""Where the parent of forked attempts lives (`step.forks`): in a container, or in a process of this machine.

A home has one folder. In it are the FIFO that requests go into, which a home is lost without and ends by, and a folder
for each attempt. Whatever is in there may have been written by the attempts' code, and is read with that in mind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from docker.models.containers import Container

from reprokit._scratch import Scratch
from reprokit.replay import daemon, machine
from reprokit.replay.container import OUT, ContainerSpec
from reprokit.replay.handover import Room
from reprokit.step import forks

_PARTING = 2 * forks.PATIENCE + 5  # seconds for a process to end all that it has started: longer than it takes


class Home(ABC):
    """One parent, from its start to its end; nothing of it is left after `close`."""

    inside: str  # its folder, as its attempts see it

    def __init__(self) -> None:
        self._scratch = Scratch("forks")
        self.folder = Path(self._scratch.name) / "out"  # open to the container's user, in a folder that is ours alone
        self.folder.mkdir()
        self.folder.chmod(0o777)
        fifo = self.folder / forks.FIFO
        os.mkfifo(fifo)
        fifo.chmod(0o644)
        self._asked = False
        self._requests = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)  # both ends: so it never blocks

    def ask(self, line: str) -> None:
        """A request to the parent. Lost where there is none any more, which `ended` then says."""
        self._asked = True
        with suppress(BlockingIOError):  # a parent that has not read for thousands of requests answers none of them
            os.write(self._requests, f"{line}\n".encode())

    @property
    def ready(self) -> bool:
        return (self.folder / forks.READY).exists()

    @abstractmethod
    def ended(self) -> str | None:
        """How the parent ended, and the last that it printed; None while it lives. May raise `daemon.Silent`."""

    @abstractmethod
    def kill(self) -> None:
        """End the parent and all that it started, from any thread."""

    def close(self) -> None:
        os.close(self._requests)
        self.kill()
        self._scratch.cleanup()


class Process(Home):
    """On this machine, in an environment that was captured."""

    def __init__(self, environment: Mapping[str, str], *, match: str | None = None) -> None:
        super().__init__()
        self.inside = str(self.folder)
        self._log = self.folder.parent / "log.txt"
        matching = ("--match", match) if match else ()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *forks.COMMAND, self.inside, *matching],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder.parent,
                env={**environment, "TMPDIR": str(self.folder.parent)},
                start_new_session=True,
            )

    def ended(self) -> str | None:
        code = self._process.poll()
        if code is None:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        return f"{how}\n{machine.printable(self._log.read_bytes())}".strip()

    def kill(self) -> None:
        """It ends all that it started when its requests end; what is left of its group then goes with it."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PARTING if self._asked else 0)  # before that it starts nothing
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Contained(Home):
    """In a container, whose end is that of all that runs in it."""

    inside = OUT

    def __init__(self) -> None:
        super().__init__()
        self._container: Container | None = None
        self._memory = 0
        self._room: Room | None = None

    def start(self, host: machine.Machine, spec: ContainerSpec) -> None:
        """Apart from the making: the spec names our folder. May raise `daemon.Silent`."""
        self._memory, self._room = spec.limits.memory, Room(self.folder, spec.limits.out)
        self._container = host.create(spec)
        self._container.start()

    def ended(self) -> str | None:
        assert self._container is not None
        self._container.reload()
        if self._container.status not in ("exited", "dead"):
            greedy = self._room.exceeded() if self._room else ""
            if greedy:
                machine.kill(self._container)
            return greedy or None
        end = machine.end_of(self._container, overdue="", begun=False)
        how = f"exited with {end.code}"
        if end.out_of_memory:
            how = f"was killed at its memory limit of {self._memory / (1 << 30):.1f} GiB; run fewer jobs at once"
        return f"{how}\n{end.log}".strip()

    def kill(self) -> None:
        if self._container is not None:
            machine.remove(self._container)


Lost = daemon.Silent  # what asking after a container may raise
