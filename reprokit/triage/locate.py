"""Name the operation that makes the first bad value, on one evaluation of an incident.

Tracing every operation costs a few times a step, so it is meant for a reduced incident; it works on any. The step runs
eagerly: what a compiler fused has no operations to name.

Where the state was bad before the step began, whatever the step does to it is a victim. The incident's history is then
run as well, from its oldest state, and bad values are followed through the state to the step that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.reduce.isolation import NotReproduced
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status

EAGER = Variant(name="eager", env={"TORCHDYNAMO_DISABLE": "1"})
TRACEABLE = (Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM, Kind.EXCEPTION, Kind.OOM)
_HANDED = "the step, or its optimizer, handed it a number that is not finite"
_FOREIGN = "what it read was bad already, and no torch operation made that: NumPy did, or a kernel of the step's own"
_NO_HISTORY = "this incident holds no earlier steps, so what made it bad lies outside; Recorder(history=...) keeps some"


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

    Raises BadInput where the failure is of a kind that no operation makes, NotReproduced where the incident does not
    fail here, Infrastructure where it cannot be evaluated.
    """
    signature = incident.manifest.signature
    if signature is None or signature.kind not in TRACEABLE:
        what = signature.kind if signature else "nothing failed"
        kinds = ", ".join(TRACEABLE)
        raise BadInput(f"{incident.path}: {what}: no single operation makes that; locate follows {kinds}")
    case = Case(incident=incident.path, variant=EAGER, trace=True)
    outcome = evaluate(case)
    _check(incident, outcome)
    if outcome.located is None:
        raise BadInput(f"{incident.path}: no torch operation made the bad value: the step computed it in another way, "
                       "in NumPy or a kernel of its own")  # fmt: skip
    in_python = outcome.located["op"] is None and outcome.located["phase"]
    told = {"rewind": 0, "note": _message(outcome) if in_python else _passed_on(outcome.located)}
    found = Located(description={**outcome.located, **told}, arguments=arguments())
    return _further_back(incident, case, found, evaluate, arguments) if outcome.located["bad_before"] else found


def _check(incident: Incident, outcome: Outcome) -> None:
    why = (outcome.detail.strip().splitlines() or ["no reason given"])[-1]
    if outcome.status is Status.INFRA:
        raise Infrastructure(f"{incident.path}: could not be evaluated: {why}")
    if outcome.status is Status.INVALID:
        raise BadInput(f"{incident.path}: cannot run eagerly: {why}")
    if outcome.status is not Status.FAIL:
        raise NotReproduced(f"{incident.path}: does not fail here when it runs eagerly ({outcome.status}); "
                            f"see how often it does: reprokit replay {incident.path}")  # fmt: skip


def _message(outcome: Outcome) -> str:
    """Of an exception, its first line."""
    said = str(outcome.symptoms[0].evidence.get("message", "")) if outcome.symptoms else ""
    return (said.strip().splitlines() or ["it has no message"])[0]


def _passed_on(found: Mapping[str, Any]) -> str:
    """Where the operation only passed on what it read: what that was."""
    bad = [one for one in found["inputs"] if one["nan"] or one["inf"]]
    made = any(one["nan"] for one in found["outputs"]) and not any(one["nan"] for one in bad)
    if not bad or not found["outputs"] or made:
        return ""
    return _HANDED if any(one["dtype"] == "float" for one in bad) else _FOREIGN


def _further_back(
    incident: Incident,
    case: Case,
    found: Located,
    evaluate: Callable[[Case], Outcome],
    arguments: Callable[[], Mapping[str, Any] | None],
) -> Located:
    """What made the state bad that the step began with; or the same with a note why that is not known."""
    back = incident.rewindable()
    if not back:
        return replace(found, description={**found.description, "note": _NO_HISTORY})
    outcome = evaluate(replace(case, rewind=back))
    if outcome.status is not Status.FAIL or outcome.located is None:
        why = f"going back {back} steps does not lead to it again ({outcome.status}), so who made it is not known"
        return replace(found, description={**found.description, "note": why})
    earlier, note = outcome.located, ""
    if not earlier["phase"] and not earlier["producer"].startswith("batch"):
        after = earlier["spoiled_in"]
        by = f"by no torch operation: step {after}, or what the loop did after it, wrote it in another way"
        note = by if after is not None else f"it was bad before all {back} steps that this incident holds"
    told = {"bad_before": found.description["bad_before"], "rewind": back, "note": note}
    return Located(description={**earlier, **told}, arguments=arguments())
