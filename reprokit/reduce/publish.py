"""A case made real: the smallest case as an incident of its own, complete, with its parent's id and its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reprokit.incident import Draft, Incident
from reprokit.layout import Layout
from reprokit.reduce.isolation import NotReproduced
from reprokit.reduce.result import Reduction

_RANK = "ranks/00"
_REPLACED = tuple(f"{_RANK}/{name}.{ending}" for name in ("batch", "donor") for ending in ("json", "safetensors"))


def publish(incident: Incident, reduction: Reduction, out: Path) -> Incident:
    """Write it below `out`. Raises NotReproduced, and writes nothing, where the case was not seen to replay afresh."""
    verified = reduction.verified
    if not verified or not verified["fail"]:
        seen = f"{verified['fail']} of {verified['n']} attempts failed" if verified else "nobody replayed it"
        raise NotReproduced(f"{incident.path}: the smallest case was not seen to replay ({seen}): not published")
    batch, donor = _cut(incident, reduction)
    manifest = incident.manifest
    with Draft(out) as draft:
        incident.copy_into(draft, except_=_REPLACED)
        draft.write_tree(_RANK, "batch", batch)
        if donor is not None:
            draft.write_tree(_RANK, "donor", donor)
        return draft.publish(
            f"{incident.path.resolve().name}-reduced",
            parent=manifest.id,
            signature=manifest.signature,
            symptoms=reduction.symptoms,
            step=manifest.step,
            world_size=manifest.world_size,
            entrypoint=manifest.entrypoint,
            layout=manifest.layout,
            commit=manifest.commit,
            fingerprint=dict(reduction.fingerprint),
            redacted=manifest.redacted,
            left_out=manifest.left_out,
            certificate=certificate(reduction),
        )


def certificate(reduction: Reduction) -> dict[str, Any]:
    """What was found and every test behind it; attempts are left to whoever replays the incident."""
    verified = {key: value for key, value in (reduction.verified or {}).items() if key != "attempts"}
    return {**reduction.to_json(), "verified": verified, "path": None, **reduction.certificate}


def _cut(incident: Incident, reduction: Reduction) -> tuple[Any, Any]:
    """Batch and donor of the case. The donor is the case's twin, so that the new incident can be reduced further; one
    that does not fit into the batch's shape stays as it is."""
    layout, case = Layout.parse(incident.manifest.layout), reduction.case
    whole, donor = incident.batch(), incident.donor()
    batch = layout.select(layout.heal(whole, donor, case.heal) if case.heal else whole, case.keep)
    if donor is None or not reduction.donor_admitted:
        return batch, donor
    return batch, layout.select(layout.heal(whole, donor, ({},)), case.keep)
