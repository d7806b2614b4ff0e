"""What was seen of a failure where no probe sees the step to its end: a step that hangs, a process that died."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reprokit.failure import Signature, Symptom


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Of a probe that which an incident is made of."""

    signature: Signature | None = None  # None: nothing failed, somebody asked for a capture
    symptoms: tuple[Symptom, ...] = ()

    def fingerprint(self) -> Mapping[str, str]:
        """Nothing was computed to the end."""
        return {}
