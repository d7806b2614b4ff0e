"""How often the kernel has killed for memory, where this process is: a SIGKILL beside a rising count was that."""

from __future__ import annotations

import re
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def kills(proc: Path = Path("/proc"), cgroups: Path = _CGROUPS) -> int:
    """Of this process's control group, or where it does not say, of the whole machine; 0 where nobody counts."""
    own = re.search(r"(?m)^0::/?(.*)$", _text(proc / "self/cgroup"))
    for file in (cgroups / own[1] / "memory.events" if own else None, cgroups / "memory.events", proc / "vmstat"):
        if file and (found := re.search(r"(?m)^oom_kill (\d+)$", _text(file))):
            return int(found[1])
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
