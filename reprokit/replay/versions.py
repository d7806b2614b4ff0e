"""Which versions attempts ran with that are not the captured ones, and whether the failure went with an upgrade.

A failure that no longer shows says little where torch, Python or the driver is a newer one: it may be mended there. So
that is said beside "not reproduced", and for certain only where attempts with the captured versions still fail. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from reprokit.step.outcome import Outcome, Status


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A version that is not the captured one."""

    name: str  # torch, python, driver
    captured: str
    here: str

    @property
    def newer(self) -> bool:
        """Another build of the same version is not."""
        try:
            here, captured = Version(self.here).release, Version(self.captured).release
        except InvalidVersion:
            return False
        return here > captured

    def __str__(self) -> str:
        return f"{self.name} {self.here} (captured: {self.captured})"


def of(environment: Any) -> dict[str, str]:
    """The versions that an environment.json has, which may be anybody's."""
    data = environment if isinstance(environment, dict) else {}
    gpus = data.get("gpus")
    first = gpus[0] if isinstance(gpus, list) and gpus and isinstance(gpus[0], dict) else {}
    found = {"torch": data.get("torch"), "python": data.get("python"), "driver": first.get("driver")}
    return {name: version.split()[0] for name, version in found.items() if isinstance(version, str) and version.strip()}


def changes(captured: Mapping[str, str], outcomes: Iterable[Outcome]) -> tuple[Change, ...]:
    """Each once, in the order in which they were met."""
    found = (
        Change(name=name, captured=version, here=outcome.versions[name])
        for outcome in outcomes
        for name, version in captured.items()
        if outcome.versions.get(name, version) != version
    )
    return tuple(dict.fromkeys(found))


def gone(captured: Mapping[str, str], outcomes: Sequence[Outcome]) -> bool | None:
    """Whether the failure went with an upgrade. None: it may have, but nothing ran with the captured versions."""
    known = [outcome for outcome in outcomes if outcome.versions]
    newer = [any(change.newer for change in changes(captured, [outcome])) for outcome in known]
    failed = [outcome.status is Status.FAIL for outcome in known]
    if not any(newer) or any(fails for fails, new in zip(failed, newer) if new):
        return False
    before = [fails for fails, new in zip(failed, newer) if not new]
    return all(before) if before else None
