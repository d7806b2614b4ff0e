"""The verb `bundle` as a function: one verified file with an incident and what a person needs to run and read it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from reprokit._scratch import Scratch
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.pipeline import Subject
from reprokit.report import bundle as bundles
from reprokit.report import figures


def bundle(
    subject: Subject,
    out: Path,
    *,
    replayed: Mapping[str, Any] | None = None,
    reduction: Mapping[str, Any] | None = None,
    image: str | None = None,
) -> dict[str, Any]:
    """Write the bundle and check it as a stranger would; its JSON. image: the tag that its run.sh looks for first."""
    with Scratch("pictures") as scratch:
        drawn = _pictures(subject.incident, Path(scratch))
        path = bundles.write(subject.incident, out, replay=replayed, reduction=reduction, image=image, pictures=drawn)
    manifest = bundles.verify(path)
    folder = bundles.folder_of(subject.incident)
    return {
        "path": str(path),
        "bytes": path.stat().st_size,
        "id": manifest.id,
        "folder": folder,
        "verified": True,
        "pictures": sorted(drawn),
        "run": f"tar --zstd -xf {shlex.quote(str(path))} && ./{folder}/run.sh",
    }


def _pictures(incident: Incident, folder: Path) -> dict[str, Path]:
    """By their names in a bundle; none where matplotlib is not installed, or nothing can be drawn."""
    trail = (incident.manifest.certificate or {}).get("trail") or []
    found = {}
    with suppress(BadInput, ValueError, TypeError, LookupError):
        found["batch.png"] = figures.sheet_of(incident, None, folder / "batch.png")
        if len(trail) > 1:
            found["curve.png"] = figures.curve([tuple(point) for point in trail], folder / "curve.png")
    return found
