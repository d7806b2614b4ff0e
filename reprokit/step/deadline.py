"""How long an evaluation may take: all of it, and its step alone where a hang was captured.

The whole, with the start of a process and the build, has one generous deadline, since both are slow on a busy machine.
To wait that long for each attempt at a hang would take hours. A captured hang says how long its run had waited for one
step, so from where the step begins a replay waits for so long and a margin, and no longer. What is overdue before that
says nothing about the step.
"""

from __future__ import annotations

import os
from math import inf, isfinite
from pathlib import Path
from time import monotonic
from typing import TypeGuard

from reprokit.failure import Kind
from reprokit.incident import Manifest

WAITED = "hang_after"  # of the evidence of a hang: seconds that its run had waited
_MARGIN, _LEAST = 1.5, 1.0  # times, and plus seconds: a step that is its process's first, beside others, is slower


def patience(manifest: Manifest, steps: int = 1) -> float | None:
    """Seconds that so many steps may take; None where the incident does not say, or is no hang."""
    if manifest.signature is None or manifest.signature.kind is not Kind.HANG:
        return None
    found = [one.evidence.get(WAITED) for one in manifest.symptoms if one.kind is Kind.HANG]
    known = [one for one in found if _is_seconds(one)]  # the file may be anybody's
    return steps * (_MARGIN * known[0] + _LEAST) if known else None


def _is_seconds(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value) and value > 0


class Deadline:
    """Of one evaluation that starts now. marker: a file that is there while the step is under way."""

    def __init__(self, seconds: float | None, marker: Path, patience: float | None = None) -> None:
        self._until = monotonic() + (inf if seconds is None else seconds)
        self._seconds, self._marker, self._patience = seconds, marker, patience
        self._in_step = False

    def passed(self) -> bool:
        """Asked now and then: it is by this that the step's beginning is seen."""
        now = monotonic()
        if self._patience is not None and not self._in_step and self._begun():
            self._in_step = True
            if now + self._patience < self._until:
                self._until, self._seconds = now + self._patience, self._patience
        return now >= self._until

    def why(self) -> str:
        """What passed, for people: as an outcome says it."""
        seconds = "" if self._seconds is None else f" within {self._seconds:g} s"
        return f"its step did not end{seconds}" if self._begun() else f"did not come to its step{seconds}"

    def _begun(self) -> bool:
        """Not where a link leads: the folder may be open to anybody's code."""
        return os.path.lexists(self._marker)
