"""Is restoring enough, and does the case fail at all? Checked, not assumed: run case, donor, case.

What a step leaves behind outside the state that is restored (a NaN in a buffer nobody registered, a counter in a
closure) would answer the next question in place of the batch. So before anything is asked, the case must fail, the
donor must pass right after it, and the case must then fail again with the same fingerprint. Where that does not hold,
the harness is built again for each evaluation, and where that is not enough either, each gets a fresh process. What a
donor does there is the truth about it: one that still fails is no healthier than the batch, and nothing in the batch is
to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reprokit.errors import ReprokitError
from reprokit.failure import Kind, Signature
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

LEVELS = ("restore", "rebuild", "process")
_DEADLY = (Kind.HANG, Kind.CRASH)  # they take their process with them: only a fresh one is worth a try
_DETAIL = 200  # characters of another failure's message: what fits on the line

Run = Callable[[Case, str], Outcome]


class NotReproduced(ReprokitError):
    """The incident does not fail here as it did when it was captured, so there is nothing to reduce."""

    exit_code = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """What it takes to evaluate one case after another, and what case and donor do then."""

    level: str
    case: Outcome
    donor: Outcome | None  # None: the incident has none
    stable: bool  # two runs of the case had the same fingerprint
    runs: tuple[dict[str, Any], ...]  # level, content, status of every run

    @property
    def batch_guilty(self) -> bool | None:
        """False: the donor fails as the batch does. None: without a healthy donor nobody knows."""
        return {Status.FAIL: False, Status.PASS: True}.get(self.donor.status) if self.donor else None


def settle(case: Case, donor: Case | None, run: Run, captured: Signature) -> Isolation:
    """The lightest level at which evaluations do not disturb each other. Raises NotReproduced."""
    runs: list[dict[str, Any]] = []
    for level in LEVELS[LEVELS.index("process") if captured.kind in _DEADLY else 0 :]:
        last = level == LEVELS[-1]

        def at_level(asked: Case, level: str = level) -> Outcome:
            outcome = run(asked, level)
            runs.append({"isolation": level, "content": asked.content, "status": str(outcome.status)})
            return outcome

        first = at_level(case)
        if first.status is not Status.FAIL:
            if last:
                raise NotReproduced(_refusal(case, captured, first, runs))
            continue
        healthy = at_level(donor) if donor else None
        if healthy and healthy.status is not Status.PASS and not last:
            continue
        again = at_level(case)
        stable = again.status is Status.FAIL and again.fingerprint == first.fingerprint
        if again.status is not Status.FAIL and last:
            raise NotReproduced(_refusal(case, captured, again, runs))
        if stable or last:
            return Isolation(level=level, case=first, donor=healthy, stable=stable, runs=tuple(runs))
    raise AssertionError("the last level decides")


def name(signature: Signature | None) -> str:
    """On one line: "nonfinite_loss at pred_loss"."""
    if signature is None:
        return "nothing"
    place = f"{signature.kind} at {signature.where}"
    if not signature.exception:
        return place
    return f"{place} ({signature.exception}: {' '.join(signature.message.split())[:_DETAIL]})"


def _refusal(case: Case, captured: Signature, seen: Outcome, runs: list[dict[str, Any]]) -> str:
    """Says with the counts which of three it is: another failure, one that comes and goes, none."""
    mine = [run for run in runs if run["content"] == "batch"]
    failed = sum(run["status"] == Status.FAIL for run in mine)
    counts = f"{failed} of {len(mine)} runs failed as captured"
    follow = f"see how often it does: reprokit replay {case.incident}"
    if failed:
        return f"{case.incident}: fails only sometimes ({counts}): {name(captured)}; {follow}"
    if seen.status in (Status.OTHER, Status.INVALID):
        now = name(seen.signature) if seen.signature else f"{seen.status}: {_last_line(seen.detail)}"
        return f"{case.incident}: fails for another reason ({counts}): captured {name(captured)}, now {now}; {follow}"
    return f"{case.incident}: does not fail here ({counts}): {name(captured)}; {follow}"


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no detail"])[-1][:_DETAIL]
