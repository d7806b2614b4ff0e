"""Name the operation that makes the first bad value, on one evaluation of an incident.

Tracing every operation costs a few times a step, so it is meant for a reduced incident; it works on any. The step runs
eagerly: what a compiler fused has no operations to name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reprokit.errors import BadInput
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status

EAGER = Variant(name="eager", env={"TORCHDYNAMO_DISABLE": "1"})
TRACEABLE = (Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM, Kind.EXCEPTION, Kind.OOM)


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """The operation, as `locate --json` has it, and its arguments where they could be kept."""

    description: Mapping[str, Any]
    arguments: Mapping[str, Any] | None

    def to_json(self) -> dict[str, Any]:
        return dict(self.description)


def locate(
    incident: Incident, evaluate: Callable[[Case], Outcome], arguments: Callable[[], Mapping[str, Any] | None]
) -> Located:
    """Trace the incident. evaluate: one case, in its environment. arguments: what the evaluator kept of the
    operation's.

    Raises BadInput where the failure is of a kind that no operation makes, or where the incident does not fail here.
    """
    signature = incident.manifest.signature
    if signature is None or signature.kind not in TRACEABLE:
        what = signature.kind if signature else "nothing failed"
        kinds = ", ".join(TRACEABLE)
        raise BadInput(f"{incident.path}: {what}: no single operation makes that; locate follows {kinds}")
    outcome = evaluate(Case(incident=incident.path, variant=EAGER, trace=True))
    if outcome.status is not Status.FAIL:
        raise BadInput(f"{incident.path}: does not fail here when it runs eagerly ({outcome.status}); "
                       f"see how often it does: reprokit replay {incident.path}")  # fmt: skip
    if outcome.located is None:
        raise BadInput(f"{incident.path}: no torch operation made the bad value: the step computed it in another way, "
                       "in NumPy or a kernel of its own")  # fmt: skip
    return Located(description=outcome.located, arguments=arguments())
