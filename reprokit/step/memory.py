"""How often the kernel has killed for memory, where this process is: a SIGKILL beside a rising count was that.

A container beside this process may run out of memory at any time. So it is the own control group that is asked, and not
what lies below it, nor the machine as long as anything nearer answers.
"""

from __future__ import annotations

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def kills(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> int:
    """Of this process's control group, or where it does not say, of the whole machine; 0 where nobody counts."""
    groups = _text(proc / "self/cgroup")
    unified = re.search(r"(?m)^0::/?(.*)$", groups)
    memory = re.search(r"(?m)^\d+:(?:[^:\n]*,)?memory(?:,[^:\n]*)?:/([^\n]+)$", groups)  # of version 1; not of its root
    files = []
    for events in ("memory.events.local", "memory.events"):
        files += [cgroups / unified[1] / events] if unified else []
        files += [cgroups / events]
    if memory:  # where a container has its own in the place of the root's, its path leads nowhere
        files += [cgroups / "memory" / place / "memory.oom_control" for place in (memory[1], "")]
    for file in (*files, proc / "vmstat"):
        if found := re.search(r"(?m)^oom_kill (\d+)$", _text(file)):
            return int(found[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
