"""What an engine is opened with: which one, what attempts run in, and where a cluster is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """What the user says of engines; every engine takes what concerns it."""

    engine: str | None = None  # None: docker where it answers, else process
    inner: str | None = None  # engine inside fork, ray and slurm; None: as of `engine`
    jobs: int | None = None  # attempts at once
    timeout: float = 900.0  # seconds for one attempt
    match: str | None = None  # a failure is the same one if its message matches this pattern
    image: str | None = None  # used as it is; None: one is built from the captured requirements
    base: str | None = None  # image that this one is built on
    wheelhouse: Path | None = None  # folder of wheels for it
    compiler: bool = False  # it has one, for torch.compile
    network: str = "none"  # Docker's, of containers
    trust: bool = False  # code from elsewhere may run outside of a container
    ray_address: str | None = None
    store: str | None = None  # where nodes of a cluster fetch incidents
    partition: str | None = None  # of Slurm

    def there(self, inner: str) -> EngineOptions:
        """Those of the engine on a node of a cluster."""
        return replace(self, engine=inner, inner=None, jobs=None, ray_address=None, store=None, partition=None)

    def to_json(self) -> dict[str, Any]:
        """As plain data, for another machine; without what a subclass adds, which is no engine's matter."""
        data = {field.name: getattr(self, field.name) for field in fields(EngineOptions)}
        return data | {"wheelhouse": str(self.wheelhouse) if self.wheelhouse else None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EngineOptions:
        wheelhouse = data["wheelhouse"]
        return EngineOptions(**{**data, "wheelhouse": Path(wheelhouse) if wheelhouse else None})


PROCESS = EngineOptions(engine="process")
