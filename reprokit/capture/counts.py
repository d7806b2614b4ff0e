"""Failures of a run that came again: captured once, then counted.

An incident never changes, so the counts are beside it, in a hidden file of the folder of incidents, by the incidents'
ids. It is replaced whole, at most once a second: a loop that fails each step and goes on is not held up by it.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reprokit import failure
from reprokit.failure import Signature
from reprokit.incident import DRAFT_PREFIX, Incident

FILE = ".seen.json"
EVERY = 1.0  # seconds between two writes
FALLBACKS = 16  # of one failure that are kept, the last ones


@dataclass(kw_only=True, slots=True)
class _Known:
    signature: Signature  # as it was raised: never written, for its message may hold a secret
    path: Path
    id: str
    times: int
    last: int  # step
    fallbacks: list[dict[str, Any]] = field(default_factory=list)  # what was tried so that training could go on


class Counts:
    """The captured failures of one run."""

    def __init__(self, out: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._out, self._clock = out, clock
        self._known: list[_Known] = []
        self._due = 0.0
        self._unsaved = False

    def add(self, signature: Signature, incident: Incident, step: int) -> None:
        """It was captured."""
        known = _Known(signature=signature, path=incident.path, id=incident.manifest.id, times=1, last=step)
        self._known.append(known)

    def again(self, signature: Signature, step: int) -> Path | None:
        """The incident of this failure, which is counted; None where there is none yet."""
        for known in self._known:
            if failure.same(known.signature, signature):
                known.times, known.last, self._unsaved = known.times + 1, step, True
                if self._clock() >= self._due:
                    self.save()
                return known.path
        return None

    def fell_back(self, path: Path, told: dict[str, Any]) -> None:
        """What was tried when the failure of this incident came, and what helped."""
        for known in self._known:
            if known.path == path:
                known.fallbacks, self._unsaved = [*known.fallbacks, told][-FALLBACKS:], True
                self.save()

    def save(self) -> None:
        """Write what has not been; a file that cannot be written loses counts and nothing else."""
        if self._unsaved:
            self._unsaved, self._due = False, self._clock() + EVERY
            counts = {known.id: _entry(known) for known in self._known if known.times > 1 or known.fallbacks}
            beside = self._out / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
            with suppress(OSError):
                beside.write_text(json.dumps({**_read(self._out), **counts}, indent=1) + "\n")
                os.replace(beside, self._out / FILE)


def _entry(known: _Known) -> dict[str, Any]:
    entry: dict[str, Any] = {"times": known.times, "last": known.last}
    return entry | ({"fallbacks": known.fallbacks} if known.fallbacks else {})


def seen(incident: Incident) -> dict[str, int] | None:
    """How many times the failure came and at which step last; None where it came once, or nobody knows."""
    found = _read(incident.path.resolve().parent).get(incident.manifest.id)
    if not isinstance(found, dict) or not all(type(found.get(name)) is int for name in ("times", "last")):
        return None
    return {name: found[name] for name in ("times", "last")} if found["times"] > 1 else None


def fallbacks(incident: Incident) -> list[dict[str, Any]]:
    """What was tried in training when this failure came: the step, each variant with what came of it, what helped."""
    found = _read(incident.path.resolve().parent).get(incident.manifest.id)
    told = found.get("fallbacks") if isinstance(found, dict) else None
    return [one for one in told if _is_fallback(one)] if isinstance(told, list) else []


def _is_fallback(one: Any) -> bool:
    """As `capture.fallback` writes it: anybody may have changed the file since."""
    if not isinstance(one, dict) or type(one.get("step")) is not int or not isinstance(one.get("tried"), list):
        return False
    pairs = all(isinstance(pair, list) and [type(part) for part in pair] == [str, str] for pair in one["tried"])
    return pairs and (one.get("helped") is None or type(one["helped"]) is str)


def _read(out: Path) -> dict[str, Any]:
    try:
        found = json.loads((out / FILE).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
