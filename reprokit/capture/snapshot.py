"""What a step started from, and how it becomes an incident on disk."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reprokit import failure, tree
from reprokit.capture import environment, redact, source
from reprokit.capture.logs import stacks
from reprokit.harness import State
from reprokit.incident import Draft
from reprokit.step.probe import Probe


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything as it was when the step began; it shares no memory with training."""

    step: int  # counted from 1
    state: State
    rng: dict[str, Any]
    flags: dict[str, Any]
    batch: tree.Packed
    donor: tree.Packed | None  # the last healthy batch before
    left_out: list[str]  # entries of the batch that cannot be stored


def write(
    out: Path,
    start: Snapshot,
    probe: Probe,
    error: BaseException | None,
    *,
    config: Any,
    entrypoint: str,
    layout: Any,
    root: Path,
    exclude: Sequence[Path],
    metrics: Sequence[Mapping[str, Any]],
    logs: Mapping[str, str],
) -> Path:
    """Write one incident below `out`; returns its folder. Whole, or not there at all."""
    signature = probe.signature or failure.first(probe.symptoms)
    now = datetime.now(UTC)
    out.mkdir(parents=True, exist_ok=True)
    with Draft(out) as draft:
        record = source.archive(draft, root, exclude=exclude)
        clean_config, redacted = redact.config(config)
        draft.write_yaml("config.yaml", clean_config)
        draft.write_json("command.json", environment.command(root))
        draft.write_json("environment.json", environment.describe())
        draft.write_json("flags.json", start.flags)
        draft.write_text("requirements.txt", environment.requirements(record.distributions))
        draft.write_tree("state", "state", start.state)
        draft.write_tree("ranks/00", "batch", start.batch)
        if start.donor is not None:
            draft.write_tree("ranks/00", "donor", start.donor)
        draft.write_tree("ranks/00", "rng", start.rng)
        found = _write_logs(draft, logs, metrics, error)
        return draft.publish(
            f"{now:%Y-%m-%d}-{_slug(signature)}-step{start.step}",
            parent=None,
            signature=signature,
            symptoms=tuple(probe.symptoms),
            step=start.step,
            world_size=1,
            entrypoint=entrypoint,
            layout=layout,
            created=now.isoformat(timespec="seconds"),
            commit=record.commit,
            fingerprint=probe.fingerprint(),
            redacted=(*record.redacted, *redacted, *found),
            left_out=(*record.left_out, *start.left_out),
            certificate=None,
        ).path


def _write_logs(
    draft: Draft, logs: Mapping[str, str], metrics: Sequence[Mapping[str, Any]], error: BaseException | None
) -> list[str]:
    texts = dict(logs)
    texts["traceback"] = ("".join(traceback.format_exception(error)) + "\n" if error else "") + stacks()
    redacted = []
    for name, text in texts.items():
        clean, found = redact.text(text)
        draft.write_text(f"logs/{name}.txt", clean)
        redacted += [f"logs/{name}.txt:{place}" for place in found]
    draft.write_text("logs/metrics.jsonl", "".join(json.dumps(dict(line)) + "\n" for line in metrics))
    return redacted


def _slug(signature: failure.Signature | None) -> str:
    if signature is None:
        return "healthy"
    what = signature.exception or signature.kind
    return "".join(c if c.isalnum() else "-" for c in what).strip("-").lower()
