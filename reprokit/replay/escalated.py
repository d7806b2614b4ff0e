"""An incident with the evidence of a further round of attempts: the same one, and a folder `escalation/`.

An incident never changes, so this is a new one whose parent it is. What is in there came from replays of somebody's
code, and is searched for secrets as everything that a capture writes.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from reprokit.capture import redact
from reprokit.incident import Draft, Incident, Manifest
from reprokit.replay.result import Replay
from reprokit.replay.strata import Attempt

FOLDER = "escalation"
SUMMARY = f"{FOLDER}/summary.json"
_OWN = ("id", "schema", "files", "parent")  # of a manifest, what is not that of the incident before
_TEXT = 1 << 16  # characters of a text that are searched and kept: the end of it
_TRACE = 4 << 20  # bytes of a packed trace that are written: as large as a step may make it, and some


def publish(
    incident: Incident,
    out: Path,
    found: Replay,
    summary: Mapping[str, Any],
    telemetry: Iterable[Mapping[str, Any]],
) -> Incident:
    """Write it below `out`. Raises BadInput where that cannot be."""
    with Draft(out) as draft:
        incident.copy_into(draft, except_=(FOLDER,))
        for attempt in found.attempts:
            _write(draft, attempt)
        draft.write_text(f"{FOLDER}/telemetry.jsonl", "".join(f"{json.dumps(line)}\n" for line in telemetry))
        draft.write_json(SUMMARY, summary)
        same = {one.name: getattr(incident.manifest, one.name) for one in fields(Manifest) if one.name not in _OWN}
        return draft.publish(f"{incident.name}-escalated", **same, parent=incident.manifest.id)


def _write(draft: Draft, attempt: Attempt) -> None:
    name, data = f"{attempt.index:04d}", attempt.to_json()
    evidence = dict(data.pop("evidence", None) or {})
    log = data.pop("log", "")
    if (trace := _unpacked(evidence.pop("trace", None))) is not None:
        draft.file(f"{FOLDER}/traces/{name}.json.gz").write_bytes(trace)
    place = f"{FOLDER}/attempts/{name}.json"
    texts = {name: _cleaned(data[name], place) for name in ("detail", "signature", "symptoms")}
    draft.write_json(place, {**data, **texts, "evidence": evidence})  # hashes and numbers look like secrets
    place = f"{FOLDER}/logs/{name}.txt"
    if log:
        draft.write_text(place, _clean(log, place))


def _unpacked(trace: object) -> bytes | None:
    """Of what says that it is one, and is not opened here."""
    if not isinstance(trace, str) or len(trace) > _TRACE * 4 // 3:
        return None
    try:
        data = base64.b64decode(trace, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if data[:2] == b"\x1f\x8b" else None


def _cleaned(value: Any, place: str) -> Any:
    """Every text in plain data."""
    if isinstance(value, dict):
        return {name: _cleaned(part, place) for name, part in value.items()}
    if isinstance(value, list):
        return [_cleaned(part, place) for part in value]
    return _clean(value, place) if isinstance(value, str) else value


def _clean(text: str, place: str) -> str:
    try:
        return redact.content(text[-_TEXT:].encode("utf-8", "backslashreplace"), place)[0].decode("utf-8", "replace")
    except redact.Unscanned as reason:
        return f"left out: {reason}"
