"""What the templates of a bundle are filled with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.report import reductions, texts

TAG = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]*")  # what Docker takes for the name of an image


def values(
    incident: Incident,
    *,
    name: str,
    file: str,
    replay: Mapping[str, Any] | None,
    reduction: Mapping[str, Any] | None,
    image: str | None,
) -> dict[str, Any]:
    """Everything that `templates/bundle/` asks for. Raises BadInput where `image` is no name of an image."""
    if image is not None and not TAG.fullmatch(image):
        raise BadInput(f"{image!r}: no name of a container image; give one as `docker images` shows it")
    manifest, environment, command = incident.manifest, incident.environment(), incident.command()
    reduction = reduction or manifest.certificate
    replay = replay or (reduction or {}).get("verified")
    quoted = shlex.quote(file)
    return {
        "name": name,
        "id": manifest.id,
        "parent": manifest.parent if manifest.certificate else None,  # of one with more evidence it is no reduction
        "headline": texts.headline(incident),
        "frequency": texts.frequency(replay),
        "run": f"tar --zstd -xf {quoted} && cd {name}\n./run.sh           # with Docker\n./run.sh --trust   # without: "
        "runs the code in this bundle as you",
        "command": texts.command(command),
        "directory": str(command.get("cwd", ".")),
        "axes": reductions.axes(texts.sizes(incident), reduction),
        "notes": reductions.notes(reduction),
        "findings": reductions.sections(reduction),
        "reduced": reduction is not None,
        "failed": manifest.signature is not None,
        "entrypoint": manifest.entrypoint,
        "step": manifest.step,
        "commit": manifest.commit,
        "dirty": bool((patch := manifest.files.get("source/patch.diff")) and patch.bytes),
        "created": manifest.created,
        "size": texts.size(incident.size),
        "donor": (incident.path / incident.folder / "donor.json").is_file(),
        "expected": texts.EXPECTED[manifest.signature.kind] if manifest.signature else "The step is healthy.",
        "message": manifest.signature.message if manifest.signature else "",
        "symptoms": [
            {"kind": str(one.kind), "where": one.where, "evidence": texts.evidence(one.evidence)}
            for one in manifest.symptoms
        ],
        "traceback": texts.traceback(incident),
        "stack": texts.stack(incident),
        "metrics": texts.metrics(incident),
        "environment": texts.environment(environment, incident.flags()),
        "redacted": manifest.redacted,
        "left_out": manifest.left_out,
        "image": image or "",
        "pictures": [],
        "python": texts.python(environment),
        "gpu": texts.has_gpu(incident.flags()),
    }
