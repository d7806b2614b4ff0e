"""What a step started from and what it showed, and how both become an incident on disk.

What training goes on to change is written first: batches, which may be its own, of this step and of those before. All
else was copied when the step began, or taken when it ended, so a write may go on beside training from there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reprokit import checkpoint, failure, tree, works
from reprokit.capture import environment, history, pointers, redact, source
from reprokit.capture.black_box import Run
from reprokit.capture.seen import Seen
from reprokit.capture.told import Told
from reprokit.checkpoint import Pointers
from reprokit.harness import State
from reprokit.incident import GROUP, Draft, Incident, folder_of
from reprokit.layout import Layout
from reprokit.step import group
from reprokit.step.detectors import inputs
from reprokit.step.probe import Probe


@dataclass(frozen=True, kw_only=True, slots=True)
class Company:
    """The ranks that a failure is of, as the one sees them that writes the incident: the one that failed first."""

    rank: int  # its own
    size: int
    group: Mapping[str, Any]  # what its process group is
    parts: Sequence[Path]  # folders that the others wrote, called as an incident calls them, to be moved into it
    evidence: Mapping[str, Any]  # for the first symptom: who showed what
    left_out: Sequence[str]  # ranks that are not in it, and why


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """Everything as it was when the step began. But for `past` and `donor` it shares no memory with training."""

    step: int  # counted from 1
    state: State | None  # None where it must be made from the past
    loop: Mapping[str, int]  # what of the loop's state is the recorder's
    rng: dict[str, Any]
    flags: dict[str, Any]
    batch: tree.Packed | None  # None where the loader failed
    donor: tree.Packed | None  # the last healthy batch before
    left_out: list[str]  # entries of the batch that cannot be stored
    past: history.Past | None = None  # the steps before
    loader: tree.Packed | None = None  # where in its data the loader was
    company: Company | None = None  # None: there is one rank

    @property
    def folder(self) -> str:
        """Where an incident has what is this rank's."""
        return folder_of(self.company.rank if self.company else 0)


Saw = Probe | Seen


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """What the step and its process showed, taken before training goes on."""

    saw: Saw
    error: BaseException | None  # that the step raised
    fingerprint: Mapping[str, str]
    logs: Mapping[str, str]  # name -> text
    metrics: Sequence[Mapping[str, Any]]
    telemetry: Sequence[Mapping[str, Any]]


def write(
    out: Path,
    start: Snapshot,
    shown: Shown,
    run: Run,
    *,
    without: Collection[str] = (),
    held: Pointers | None = None,
    on_own: Callable[[], None] = lambda: None,
) -> Incident:
    """Write one incident below `out`. Whole, or not there at all.

    without: parts to leave out, of history, donor, state and batch. checkpoint: where blocks of the state are instead.
    on_own: called once the rest shares nothing with training; what it raises ends the write.
    """
    now = datetime.now(UTC)
    out.mkdir(parents=True, exist_ok=True)
    with Draft(out) as draft, Told(run.config) as told:
        redacted = write_batches(draft, start, run.layout, without)
        on_own()
        draft.write_tree(start.folder, "rng", start.rng)
        _write_state(draft, start, without, held, redacted)
        left_out = _join(draft, start)
        record = source.archive(draft, run.root, exclude=[run.out])
        told.write_config(draft)
        told.write_command(draft, run.root)
        signature, symptoms = told.failure(shown.saw, shown.error)
        if start.company and symptoms:
            evidence = {**symptoms[0].evidence, **start.company.evidence}
            symptoms = (replace(symptoms[0], evidence=evidence), *symptoms[1:])
        draft.write_json("flags.json", start.flags)
        draft.write_text("requirements.txt", environment.requirements(record.distributions))
        told.write_logs(draft, shown.logs, None)
        draft.write_text("logs/metrics.jsonl", _lines(shown.metrics))
        draft.write_text("telemetry.jsonl", _lines(shown.telemetry))
        size, origin = (start.company.size, start.company.rank) if start.company else (1, 0)
        cannot = works.sentence(draft.names(), size)
        return draft.publish(
            f"{now:%Y-%m-%d}-{_slug(signature)}-step{start.step}",
            parent=None,
            signature=signature,
            symptoms=symptoms,
            step=start.step,
            world_size=size,
            origin=origin,
            entrypoint=run.entrypoint,
            layout=run.layout,
            created=now.isoformat(timespec="seconds"),
            commit=record.commit,
            fingerprint=shown.fingerprint,
            redacted=(*redacted, *record.redacted, *told.redacted),
            left_out=(*([cannot] if cannot else []), *told.lines(left_out), *record.left_out, *told.left_out),
            certificate=None,
        )


def write_batches(draft: Draft, start: Snapshot, layout: Any, without: Collection[str]) -> list[str]:
    """What of a rank may be training's own memory, and where it came from. Returns where texts of it were redacted."""
    redacted: list[str] = []

    def clean(packed: tree.Packed, place: str) -> tree.Packed:
        return cleaned(packed, place, redacted)

    if start.batch is not None:
        batch = clean(start.batch, f"{start.folder}/batch")
        if "batch" in without:
            draft.write_tree(start.folder, pointers.FILE, pointers.of(batch))
        else:
            draft.write_tree(start.folder, "batch", batch)
        looked = inputs.look(tree.unpack(start.batch), Layout.parse(layout))
        draft.write_json(f"{start.folder}/inputs.json", looked)
    if start.donor is not None and "donor" not in without:
        draft.write_tree(start.folder, "donor", clean(start.donor, f"{start.folder}/donor"))
    if start.past is not None and "history" not in without:
        history.write(draft, start.past, None if "donor" in without else start.donor, start.folder, clean)
    if start.loader is not None:
        draft.write_tree(start.folder, "loader", clean(start.loader, f"{start.folder}/loader"))
    return redacted


def cleaned(packed: tree.Packed, place: str, redacted: list[str]) -> tree.Packed:
    """Without secrets in its texts; where there were some is added to `redacted`."""
    data, found = redact.tree(packed.data, place)
    redacted.extend(found)
    return replace(packed, data=data) if found else packed


def _join(draft: Draft, start: Snapshot) -> list[str]:
    """The parts of the other ranks; what is left out of the incident, a line each."""
    if start.company is None:
        if alone := group.describe():
            draft.write_json(f"{start.folder}/{GROUP}", alone)
        return start.left_out
    draft.write_json(f"{start.folder}/{GROUP}", dict(start.company.group))
    lines = [*start.left_out, *start.company.left_out]
    for part in start.company.parts:
        try:
            part.rename(draft.path / "ranks" / part.name)
        except OSError as error:
            lines.append(
                f"ranks/{part.name}: what it wrote is not seen from rank {start.company.rank} ({error.strerror}); give "
                "all ranks one folder of incidents on a disk that they share"
            )
    return lines


def _write_state(
    draft: Draft, start: Snapshot, without: Collection[str], held: Pointers | None, redacted: list[str]
) -> None:
    trees: dict[str, Any] = {}
    if "state" not in without:
        if start.state is None:
            draft.write_json("state/loop.json", dict(start.loop))
        else:
            trees["state"] = start.state
        if start.past is not None and "history" not in without:
            trees["anchor"] = start.past.anchor
    for name, data in trees.items():
        packed = data if isinstance(data, tree.Packed) else tree.refer(data, name=name)
        packed = cleaned(packed, f"state/{name}", redacted)
        draft.write_tree("state", name, packed, without=held.held(name) if held else ())
    if held and any(held.held(name) for name in trees):
        draft.write_json(f"state/{checkpoint.FILE}", held.to_json())


def _lines(lines: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(dict(line)) + "\n" for line in lines)


def _slug(signature: failure.Signature | None) -> str:
    if signature is None:
        return "healthy"
    what = signature.exception or signature.kind
    return "".join(c if c.isalnum() else "-" for c in what).strip("-").lower()
