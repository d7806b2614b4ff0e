"""What a command prints and measures, looked at as it comes: bounded, however much there is of it.

Of what was printed the end is kept, the first line that matches each pattern, and the last value of each metric. A
metric stands in a line as `name: value`, `name=value` or `"name": value`, or in a file of JSON lines that the command
wrote; what is in a file counts, since only a program writes there.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from reprokit.replay.criterion import Criterion, Metric, Output
from reprokit.replay.handover import read_tail
from reprokit.replay.machine import printable

_LINE = 16_384  # bytes of a line that are looked at: a progress bar's may be megabytes
_TAIL = 1 << 16  # bytes of output that are kept
_SHOWN = 300  # characters of a line that matched
_FILES, _READ = 50, 16 << 20  # files of metrics, and bytes of the end of each
_NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|(?i:nan|inf(?:inity)?))"


class Scanner:
    """Fed from one thread, read from another."""

    def __init__(self, fails_on: Sequence[Criterion]) -> None:
        self.matched: dict[str, str] = {}
        self.metrics: dict[str, float] = {}
        self.seen = 0  # bytes
        self._patterns = [one.pattern for one in fails_on if isinstance(one, Output)]
        self._values = {one.name: _told(one.name) for one in fails_on if isinstance(one, Metric)}
        self._tail, self._line = b"", b""
        self._lock = threading.Lock()

    def feed(self, data: bytes) -> None:
        """What was printed since the last time."""
        with self._lock:
            self._tail = (self._tail + data[-_TAIL:])[-_TAIL:]
            self.seen += len(data)
        if not self._patterns and not self._values:
            return
        *lines, rest = data.replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            self._end(line)
        self._take(rest)

    def close(self) -> None:
        """No more comes."""
        self._end(b"")

    @property
    def log(self) -> str:
        """The last that was printed, without what a terminal would obey."""
        with self._lock:
            return printable(self._tail)

    def _take(self, part: bytes) -> None:
        self._line += part[: _LINE - len(self._line)]

    def _end(self, part: bytes) -> None:
        self._take(part)
        line, self._line = self._line, b""
        text = line.decode(errors="replace")
        for pattern in self._patterns:
            if pattern.pattern not in self.matched and pattern.search(text):
                self.matched[pattern.pattern] = printable(line)[:_SHOWN]
        for name, value in self._values.items():
            for found in value.finditer(text):
                self.metrics[name] = float(found[1])


def drain(reader: threading.Thread, scanner: Scanner, patience: float) -> None:
    """Wait for the last output of what has ended, for as long as some of it comes within `patience` seconds: on a busy
    machine a lot of it takes its time."""
    seen = -1
    while reader.is_alive() and scanner.seen != seen:
        seen = scanner.seen
        reader.join(patience)


def _told(name: str) -> re.Pattern[str]:
    """In a line: also as a dict, or a tensor, is printed."""
    return re.compile(rf"(?<![\w./]){re.escape(name)}['\"]?\s*[:=]\s*(?:tensor\()?({_NUMBER})(?![\w.])")


def measured(folder: Path, names: Iterable[str]) -> dict[str, float]:
    """The last value of each metric in the files of JSON lines directly in a folder, in the order of their names.
    Anybody's code may have written there."""
    wanted, found = tuple(names), dict[str, float]()
    for path in _files(folder) if wanted else ():
        for line in read_tail(path, _READ).splitlines():
            for name in wanted:
                if (value := _value(line, name)) is not None:
                    found[name] = value
    return found


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.name.endswith(".jsonl") and _plain(one))[:_FILES]
    except OSError:
        return []


def _plain(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
    return False


def _value(line: bytes, name: str) -> float | None:
    """Under its name, or step by step where that has dots: `train.loss`."""
    if name.rpartition(".")[2].encode(errors="replace") not in line:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    value: Any = record.get(name) if isinstance(record, dict) else None
    if value is None:
        value = record
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
