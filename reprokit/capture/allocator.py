"""Where memory went, when there was none left: asked while the exception still holds what the step had taken.

In numbers among the evidence, and as a page of text in `logs/memory.txt`. Of a GPU the allocator is asked, which knows
what it holds back and in how large pieces; of the host the operating system and the control group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch

LARGEST = 5  # blocks that are named


def evidence() -> dict[str, Any]:
    """Bytes, by what they are. Never raises: an incident is worth more than its numbers."""
    found: dict[str, Any] = {}
    with suppress(Exception):
        found["host"] = _host()
    with suppress(Exception):
        if torch.cuda.is_initialized():
            found["devices"] = summary(torch.cuda.memory._snapshot())
    return found


def text(found: Mapping[str, Any]) -> str:
    """For people: the numbers, and torch's own table of each device."""
    parts = [json.dumps(found, indent=2)]
    for device in found.get("devices", {}):
        with suppress(Exception):
            parts.append(torch.cuda.memory_summary(int(device)))
    return "\n\n".join(parts) + "\n"


def summary(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Per device, of the allocator's snapshot: what is taken, what is held back, and the largest piece that is free."""
    devices: dict[str, dict[str, Any]] = {}
    for segment in snapshot["segments"]:
        one = devices.setdefault(
            str(segment["device"]), {"segments": 0, "reserved": 0, "allocated": 0, "largest_free": 0, "largest": []}
        )
        one["segments"] += 1
        one["reserved"] += segment["total_size"]
        one["allocated"] += segment["allocated_size"]
        for block in segment["blocks"]:
            if block["state"] == "inactive":
                one["largest_free"] = max(one["largest_free"], block["size"])
            elif block["state"] == "active_allocated":
                one["largest"].append(block["size"])
    for one in devices.values():
        one["largest"] = sorted(one["largest"], reverse=True)[:LARGEST]
    return devices


def _host() -> dict[str, int]:
    process, machine = psutil.Process().memory_info(), psutil.virtual_memory()
    found = {
        "resident": process.rss,
        "address_space": process.vms,
        "available": machine.available,
        "total": machine.total,
        "swap_free": psutil.swap_memory().free,
    }
    limit = Path("/sys/fs/cgroup/memory.max")
    with suppress(OSError, ValueError):  # "max" where there is none
        found["limit"] = int(limit.read_text())
    return found
