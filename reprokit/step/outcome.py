"""What one evaluation of a case came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any

from reprokit.failure import Signature, Symptom


class Status(StrEnum):
    FAIL = "FAIL"  # the incident's signature
    PASS = "PASS"  # noqa: S105  # nothing failed
    OTHER = "OTHER"  # another failure
    INVALID = "INVALID"  # this case cannot run: a build that refuses it, a shape that cannot be
    INFRA = "INFRA"  # the machinery broke: says nothing about the case


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one evaluation. Hashes are hexadecimal; absent parts of a fingerprint were not reached."""

    status: Status
    signature: Signature | None = None
    symptoms: tuple[Symptom, ...] = ()
    losses: Mapping[str, float] = field(default_factory=dict)  # by term; NaN and infinities as they were
    fingerprint: Mapping[str, str] = field(default_factory=dict)  # "losses", "gradients/MODULE", "parameters/MODULE"
    seconds: float = 0.0  # of the step alone
    total_seconds: float = 0.0  # with process start, build and restore
    peak_memory: int = 0  # bytes
    host: str = ""
    device: str = ""
    detail: str = ""  # traceback, or why INVALID or INFRA
    located: Mapping[str, Any] | None = None  # of a traced case: the operation that made the first bad value

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: losses that are no numbers become the strings "nan", "inf" and "-inf"."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        return plain | {
            "status": str(self.status),
            "signature": self.signature.to_json() if self.signature else None,
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
            "losses": {term: value if isfinite(value) else str(value) for term, value in self.losses.items()},
            "fingerprint": dict(self.fingerprint),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Raises ValueError or its like for what no evaluation writes: the process may have run anybody's code."""
        _check(data)
        return cls(
            **{name: data[name] for name in cls.__slots__}
            | {
                "status": Status(data["status"]),
                "signature": Signature.from_json(data["signature"]) if data["signature"] else None,
                "symptoms": tuple(Symptom.from_json(symptom) for symptom in data["symptoms"]),
                "losses": {term: float(value) for term, value in data["losses"].items()},
            }
        )


def _check(data: Mapping[str, Any]) -> None:
    texts = (data["host"], data["device"], data["detail"], *data["fingerprint"].values(), *data["losses"])
    numbers = (data["seconds"], data["total_seconds"], data["peak_memory"])
    sound = all(type(one) is str for one in texts) and all(
        type(one) in (int, float) and isfinite(one) for one in numbers
    )
    if not sound or not isinstance(data["located"], dict | None):
        raise ValueError("not an outcome's values")
