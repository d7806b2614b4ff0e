"""Who failed first, from what each rank claims to have seen of one step. Pure: nothing is asked of anybody.

Under DistributedDataParallel a step that fails in one rank fails in all, and each sees it in its own way. A loss term
is computed before anything is exchanged, so a bad one is the rank's own; a bad gradient may have come with the others'.
The kinds are in causal order already (`reprokit.failure`), and the first of them tells. What a rank saw of its peers'
end, a collective that broke or hangs, tells least. Among equals it is the lowest rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reprokit import failure
from reprokit.capture.board import Message
from reprokit.capture.snapshot import Saw
from reprokit.failure import Kind


def claim_of(rank: int, step: int, saw: Saw, error: BaseException | None) -> Message:
    """What a rank saw. received: most likely it is the effect of what another rank did."""
    signature = saw.signature or failure.first(saw.symptoms)
    at = str(saw.symptoms[0].evidence.get("at", "")) if saw.symptoms else ""
    stops = signature is not None and signature.kind is not Kind.HANG
    return {
        "rank": rank,
        "step": step,
        "kind": str(signature.kind) if signature else None,
        "where": signature.where if signature else "",
        "stops": stops,
        "quiet": stops and error is None,
        "received": "distributed_c10d.py" in at or (error is not None and _of_a_peer(error)),
    }


def _of_a_peer(error: BaseException) -> bool:
    """A collective that broke since the other side is gone."""
    named = any(kind.__name__ in ("DistBackendError", "DistNetworkError") for kind in type(error).__mro__)
    text = failure.said(error)
    return named or "gloo" in text or "NCCL" in text or "Connection closed by peer" in text


def order(claim: Mapping[str, Any]) -> tuple[bool, int, int]:
    """The least failed first."""
    kinds = list(Kind)
    return bool(claim["received"]), kinds.index(Kind(claim["kind"])) if claim["kind"] else len(kinds), claim["rank"]


def evidence_of(origin: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Who showed what: in the others it is what they received, or nothing."""
    ranks = {}
    for rank in map(str, range(size)):
        said = origin["absent"].get(rank) or origin["claims"].get(rank) or "had not failed"
        ranks[rank] = said if rank == str(origin["rank"]) or rank not in origin["claims"] else f"{said}, later"
    return {"origin": origin["rank"], "ranks": ranks}
