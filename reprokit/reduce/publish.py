"""A case made real: the smallest case as an incident of its own, complete, with its parent's id and its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reprokit.incident import Draft, Incident, folder_of
from reprokit.layout import Layout
from reprokit.reduce.isolation import NotReproduced
from reprokit.reduce.result import Reduction
from reprokit.step import rewind, rng, smooth, values
from reprokit.step.case import Case
from reprokit.step.detectors import inputs

_ANCHOR = ("state/anchor.json", "state/anchor.safetensors")


def publish(incident: Incident, reduction: Reduction, out: Path) -> Incident:
    """Write it below `out`. Raises NotReproduced, and writes nothing, where the case was not seen to replay afresh."""
    verified = reduction.verified
    if not verified or not verified["fail"]:
        seen = f"{verified['fail']} of {verified['n']} attempts failed" if verified else "nobody replayed it"
        raise NotReproduced(f"{incident.path}: the smallest case was not seen to replay ({seen}): not published")
    (batch, donor), seed = _cut(incident, reduction), reduction.case.rng
    manifest, place = incident.manifest, incident.folder
    with Draft(out) as draft:
        back = reduction.case.rewind
        history = _history(incident, reduction) if back or incident.rolls_forward else None
        old = _past(incident) if history is None else tuple(f"{place}/history/{step}" for step in history)
        replaced = ("inputs.json", *_tree("batch"), *_tree("donor"), *(() if seed == "captured" else _tree("rng")))
        dropped = _dropped_elsewhere(incident, history or {})
        incident.copy_into(draft, except_=(*(f"{place}/{name}" for name in replaced), *old, *dropped))
        for folder, start in dropped.items():
            draft.write_tree(folder, "start", start)
        for step, content in (history or {}).items():
            _write_step(draft, incident, step, content)
        draft.write_tree(place, "batch", batch)
        draft.write_json(f"{place}/inputs.json", inputs.look(batch, Layout.parse(manifest.layout)))
        if donor is not None:
            draft.write_tree(place, "donor", donor)
        if seed != "captured":
            draft.write_tree(place, "rng", rng.seeded(seed))
        return draft.publish(
            f"{incident.name}-reduced",
            parent=manifest.id,
            signature=manifest.signature,
            symptoms=reduction.symptoms,
            step=manifest.step,
            world_size=manifest.world_size,
            origin=manifest.origin,
            entrypoint=manifest.entrypoint,
            layout=manifest.layout,
            commit=manifest.commit,
            fingerprint=dict(reduction.fingerprint),
            redacted=manifest.redacted,
            left_out=manifest.left_out,
            certificate=certificate(reduction),
        )


def _dropped_elsewhere(incident: Incident, history: dict[str, Any]) -> dict[str, Any]:
    """Folder -> what is written there: of the other ranks, the steps that the one that failed first no longer has. It
    would not be there for their collectives."""
    gone = {name for name, step in history.items() if step["batch"] is None}
    return {
        f"{folder_of(rank)}/history/{step['step']}": {**step, "batch": None, "dropped": True}
        for rank in incident.ranks
        if gone and folder_of(rank) != incident.folder
        for step in incident.history(rank)
        if str(step["step"]) in gone
    }


def _tree(name: str) -> tuple[str, ...]:
    return tuple(f"{name}.{ending}" for ending in ("json", "safetensors"))


def _past(incident: Incident) -> tuple[str, ...]:
    """All of it, of every rank: it is of whole batches."""
    of_ranks = [f"{folder_of(rank)}/{name}" for rank in incident.ranks for name in ("history", *_tree("anchor"))]
    return (*of_ranks, *_ANCHOR)


def _history(incident: Incident, reduction: Reduction) -> dict[str, Any]:
    """The steps that the case goes back, each with its part of the batch, or None where it was dropped. Those before
    them lead to the state that it starts from, and stay whole: the last one too, whose batch was the donor's."""
    layout, case = Layout.parse(incident.manifest.layout), reduction.case
    earlier, donor = incident.history(), _healthy(incident, reduction)
    first = len(earlier) - case.rewind
    parts = rewind.split(case, layout)[:-1]
    whole = {str(step["step"]): step for step in earlier[first - 1 : first]} if not case.rewind else {}
    return whole | {
        str(step["step"]): {**step, "batch": None if part is None else _content(layout, part, step["batch"], donor)}
        for step, part in zip(earlier[first:], parts, strict=True)
    }


def _healthy(incident: Incident, reduction: Reduction) -> Any:
    """What the case was healed with."""
    if reduction.donor == "generated":
        return smooth.generated(incident.batch(), Layout.parse(incident.manifest.layout))
    return rewind.healthy(incident, reduction.case.rewind)


def _write_step(draft: Draft, incident: Incident, step: str, content: dict[str, Any]) -> None:
    batch = content.pop("batch")
    folder = f"{incident.folder}/history/{step}"
    draft.write_tree(folder, "start", {**content, "dropped": batch is None})
    if batch is not None:
        draft.write_tree(folder, "batch", batch)


def _content(layout: Layout, case: Case, whole: Any, donor: Any) -> Any:
    """What a case makes of one batch."""
    healed = layout.heal(whole, donor, case.heal) if case.heal else whole
    return layout.select(values.simplified(healed, layout, case.values), case.keep)


def certificate(reduction: Reduction) -> dict[str, Any]:
    """What was found and every test behind it; attempts are left to whoever replays the incident."""
    verified = {key: value for key, value in (reduction.verified or {}).items() if key != "attempts"}
    return {**reduction.to_json(), "verified": verified, "path": None, **reduction.certificate}


def _cut(incident: Incident, reduction: Reduction) -> tuple[Any, Any]:
    """Batch and donor of the case. The donor is the case's twin, so that the new incident can be reduced further; one
    that does not fit into the batch's shape stays as it is."""
    layout, case = Layout.parse(incident.manifest.layout), reduction.case
    whole, donor = incident.batch(), _healthy(incident, reduction)
    last = rewind.split(case, layout)[-1]
    assert last is not None  # the failing step is never dropped
    batch = _content(layout, last, whole, donor)
    if donor is None or not reduction.donor:
        return batch, donor
    return batch, layout.select(layout.heal(whole, donor, ({},)), last.keep)
