"""What one evaluation of a case came to."""

from __future__ import annotations

import json
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
    bad_rows: tuple[int, ...] | None = None  # of a watched case: samples with bad values; None where they do not differ
    random: bool = False  # the step drew from a global generator
    located: Mapping[str, Any] | None = None  # of a traced case: the operation that made the first bad value
    ranks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # fingerprints of all ranks, of several
    unused: tuple[str, ...] = ()  # modules that the case's variant changes and the step never ran
    operations: tuple[tuple[str, str], ...] = ()  # of a case that asks: each operation in its order, and a hash
    compiled: bool = False  # torch.compile was at work in this process
    concurrency: int = 0  # attempts that ran at the same time when it began, its own included; 0: nobody counted
    exit_code: int | None = None  # of a process that ended by itself; 128 + n of one that died of signal n
    log: str = ""  # the last that it printed
    versions: Mapping[str, str] = field(default_factory=dict)  # of where it ran: "torch", "python", "driver"; "cpu"
    evidence: Mapping[str, Any] | None = None  # of a case that asks: see `evidence`; not in the JSON of others

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: losses that are no numbers become the strings "nan", "inf" and "-inf"."""
        plain = {name: getattr(self, name) for name in self.__slots__}
        if self.evidence is None:
            del plain["evidence"]
        return plain | {
            "status": str(self.status),
            "signature": self.signature.to_json() if self.signature else None,
            "symptoms": [symptom.to_json() for symptom in self.symptoms],
            "losses": {term: value if isfinite(value) else str(value) for term, value in self.losses.items()},
            "fingerprint": dict(self.fingerprint),
            "ranks": {rank: dict(one) for rank, one in self.ranks.items()},
            "bad_rows": None if self.bad_rows is None else list(self.bad_rows),
            "unused": list(self.unused),
            "operations": [list(one) for one in self.operations],
            "versions": dict(self.versions),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Raises ValueError or its like for what no evaluation writes: the process may have run anybody's code."""
        data = {"evidence": None, **data}
        _check(data)
        return cls(
            **{name: data[name] for name in cls.__slots__}
            | {
                "status": Status(data["status"]),
                "signature": Signature.from_json(data["signature"]) if data["signature"] else None,
                "symptoms": tuple(Symptom.from_json(symptom) for symptom in data["symptoms"]),
                "bad_rows": None if data["bad_rows"] is None else tuple(data["bad_rows"]),
                "unused": tuple(data["unused"]),
                "operations": tuple((name, found) for name, found in data["operations"]),
                "losses": {term: _number(value) for term, value in data["losses"].items()},
            }
        )


def _check(data: Mapping[str, Any]) -> None:
    prints = [value for one in data["ranks"].values() for value in one.values()]
    names = (*prints, *data["fingerprint"].values(), *data["losses"], *data["unused"])
    versions = (*data["versions"], *data["versions"].values())
    operations = (text for one in data["operations"] for text in one)
    texts = (data["host"], data["device"], data["detail"], data["log"], *names, *versions, *operations)
    numbers = (data["seconds"], data["total_seconds"], data["peak_memory"])
    sound = all(type(one) is str for one in texts) and all(
        type(one) in (int, float) and isfinite(_number(one)) for one in numbers
    )
    rows = data["bad_rows"] or []
    sound = sound and type(data["concurrency"]) is int and type(data["compiled"]) is bool
    sound = sound and type(data["exit_code"]) in (int, type(None))
    sound = sound and type(data["random"]) is bool and type(rows) is list and all(type(row) is int for row in rows)
    if not sound or not all(isinstance(data[name], dict | None) for name in ("located", "evidence")):
        raise ValueError("not an outcome's values")
    json.dumps([data["located"], data["evidence"]], allow_nan=False)  # a ValueError here, not where it is kept


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError as error:  # an integer beyond all of them
        raise ValueError("not an outcome's values") from error
