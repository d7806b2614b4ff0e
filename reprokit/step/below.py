"""Whatever a process has started, ended with it: children, theirs, and those that cut themselves loose.

A process that forks twice and lets the middle one end belongs to init, and killing a group misses what left it. On
Linux a process can ask to be given such orphans instead (a subreaper); then whatever was started below it is a
descendant until the end. To kill something that forks faster than it is looked at, everything is stopped first: what is
stopped starts nothing, and at the latest where no more processes may be started all of them are seen.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of linux/prctl.h
_PAUSE = 0.002  # seconds between rounds of killing
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process. Elsewhere than on Linux nothing happens."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """This process gets a signal when its parent (by its pid, as it was before the fork) ends."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before we had asked
        os.kill(os.getpid(), number)


def end_all(spare: Collection[int] = (), *, seconds: float = 20.0) -> bool:
    """Kill and reap all descendants of this process, but these children and theirs. Whether all of them are gone."""
    until = monotonic() + seconds
    while _has_children():
        found = kill(os.getpid(), spare)
        for pid in found:
            with suppress(ChildProcessError):  # of those that are our own children by now
                os.waitpid(pid, os.WNOHANG)
        if not found or monotonic() > until:
            return not found
        sleep(_PAUSE)
    return True


def kill(of: int, spare: Collection[int] = ()) -> set[int]:
    """Kill all descendants of a process once, and tell which there were."""
    found = _stopped(of, spare)
    for pid in found:
        _send(pid, signal.SIGKILL)
    return found


def _has_children() -> bool:
    """Asked first, since a look at all processes takes milliseconds."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _stopped(of: int, spare: Collection[int]) -> set[int]:
    """All descendants, each of them stopped before its own descendants are looked for."""
    found: set[int] = set()
    while new := descendants(of, spare) - found:
        for pid in new:
            _send(pid, signal.SIGSTOP)
        found |= new
    return found


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):  # it ended, or became somebody else
        os.kill(pid, number)


def descendants(of: int, spare: Collection[int] = ()) -> set[int]:
    """Of a process, by pid; zombies too, until they are reaped. None where there is no /proc."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    todo = [of]
    while todo:
        below = [pid for pid in children.get(todo.pop(), ()) if pid not in spare and pid not in found]
        found.update(below)
        todo += below
    return found


def _parents() -> list[tuple[int, int]]:
    """Each process of the machine, as far as we see it, and its parent."""
    pairs = []
    for name in os.listdir(_PROC) if _PROC.is_dir() else ():
        if name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                told = (_PROC / name / "stat").read_text()
                pairs.append((int(name), int(told.rpartition(")")[2].split()[1])))  # its name may hold anything
    return pairs


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
