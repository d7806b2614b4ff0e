"""Is restoring enough, and does the case fail at all? Checked, not assumed: run case, donor, case.

What a step leaves behind outside the state that is restored (a NaN in a buffer nobody registered, a counter in a
closure) would answer the next question in place of the batch. So before anything is asked, the case must fail, the
donor must pass right after it, and the case must then fail again with the same fingerprint. Where that does not hold,
the harness is built again for each evaluation, and where that is not enough either, each gets a fresh process. What a
donor does there is the truth about it: one that still fails is no healthier than the batch, and nothing in the batch is
to blame.

A case that fails in one fresh process and not in the next comes and goes whatever is restored, so the lightest level at
which it still comes and goes serves as well as a process, at a hundredth of the price.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from reprokit.errors import ReprokitError
from reprokit.failure import DEADLY, Signature
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

LEVELS = ("restore", "rebuild", "process")
_DETAIL = 200  # characters of another failure's message: what fits on the line
_PATIENCE = 20  # light evaluations before a case is said not to fail: one that fails in 3 of 10 hides with p = 0.0008
_TWICE = 2  # failures that a level must show before it is taken for one at which the failure comes and goes
_PROCESSES = 3  # fresh processes that are tried before that
_SURE = 6  # further ones in which a case must fail that lightly did not each time: of every second one, p = 0.016

Run = Callable[[Case, str], Outcome]


class NotReproduced(ReprokitError):
    """The incident does not fail here as it did when it was captured, so there is nothing to reduce."""

    exit_code = 11


class Unfinished(ReprokitError):
    """It ended before anything was known that could be kept."""

    exit_code = 12  # as of a replay that is INCONCLUSIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolation:
    """What it takes to evaluate one case after another, and what case and donor do then."""

    level: str
    case: Outcome
    donor: Outcome | None  # None: the incident has none
    stable: bool  # two runs of the case had the same fingerprint
    runs: tuple[dict[str, Any], ...]  # level, content, status of every run
    flaky: bool = False  # it fails only sometimes, whatever is restored

    @property
    def doubtful(self) -> bool:
        """Whether it may come and go for all that is known: a run of the case did not fail, or two that did left no
        numbers that they could have had in common, as of an exception before the first loss."""
        failed = all(run["status"] == Status.FAIL for run in self.runs if run["content"] == "batch")
        return not failed or not self.case.fingerprint

    @property
    def batch_guilty(self) -> bool | None:
        """False: the donor fails as the batch does. None: without a healthy donor nobody knows."""
        return {Status.FAIL: False, Status.PASS: True}.get(self.donor.status) if self.donor else None


def settle(
    case: Case, donor: Case | None, run: Run, captured: Signature, lightest: str = LEVELS[0]
) -> Isolation:
    """The lightest level at which evaluations do not disturb each other. Raises NotReproduced."""
    return _Settling(case, donor, run, captured).run(LEVELS[-1] if captured.kind in DEADLY else lightest)


class _Settling:
    def __init__(self, case: Case, donor: Case | None, run: Run, captured: Signature) -> None:
        self._case, self._donor, self._run, self._captured = case, donor, run, captured
        self._runs: list[dict[str, Any]] = []
        self._first: dict[str, Outcome] = {}  # by level: what the case came to there
        self._failed: Outcome | None = None  # the last run of the case that failed as captured
        self._last: Outcome | None = None  # the last run of the case that did not

    def run(self, lightest: str) -> Isolation:
        for level in LEVELS[LEVELS.index(lightest) :]:
            if found := self._try(level, last=level == LEVELS[-1]):
                return found
        return self._comes_and_goes(lightest)

    def _try(self, level: str, *, last: bool) -> Isolation | None:
        first = self._at(level, replace(self._case, watch=True))  # costs little, and may name the samples at once
        if first.status is not Status.FAIL:
            return None
        if not last:
            self._first[level] = first
        donor = self._at(level, self._donor) if self._donor else None
        if donor and donor.status is not Status.PASS and not last:
            return None
        again = self._at(level, self._case)
        if again.status is not Status.FAIL or (last and not self._surely()):
            return None
        stable = again.fingerprint == first.fingerprint
        if donor and donor.status is Status.FAIL and (lighter := self._lighter()):
            return self._found(lighter, first, donor, stable=stable)
        return self._found(level, first, donor, stable=stable) if stable or last else None

    def _surely(self) -> bool:
        """Two fresh processes may agree by chance on what comes and goes, and then each question would cost one. A case
        that did not fail where it was run lightly, not even once, may be such a one."""
        went = any(self._count(level, Status.FAIL) < self._count(level) for level in LEVELS[:-1])
        return not went or all(self._at(LEVELS[-1], self._case).status is Status.FAIL for _ in range(_SURE))

    def _lighter(self) -> str | None:
        """Where a donor fails in a fresh process, too, it was not the evaluation before that made it fail at a lighter
        level: the lightest at which the case repeats itself will do."""
        for level, first in self._first.items():
            again = self._at(level, self._case)
            if again.status is first.status is Status.FAIL and again.fingerprint == first.fingerprint:
                return level
        return None

    def _comes_and_goes(self, lightest: str) -> Isolation:
        """Fresh processes do not agree, or never fail: ask on, lightly, until it is clear which."""
        dear = lightest == LEVELS[-1]
        for _ in range(_PROCESSES if dear else _PATIENCE):
            outcome = self._at(lightest, self._case)
            if outcome.status is Status.INVALID or (outcome.status is Status.OTHER and self._never_failed(outcome)):
                break  # what cannot be built, or always fails in another way, will not fail as captured
        level = next((level for level in LEVELS if self._count(level, Status.FAIL) >= _TWICE), None)
        if level is None and self._failed and not dear:
            while self._count("process") < _PROCESSES and self._count("process", Status.FAIL) < _TWICE:
                self._at("process", self._case)
            level = "process" if self._count("process", Status.FAIL) else None
        if level is None or self._failed is None:
            raise NotReproduced(self._refusal())
        donor = self._at(level, self._donor) if self._donor else None
        return self._found(level, self._failed, donor, stable=False, flaky=True)

    def _never_failed(self, outcome: Outcome) -> bool:
        return self._failed is None and self._last is not None and self._last.signature == outcome.signature

    def _found(
        self, level: str, case: Outcome, donor: Outcome | None, *, stable: bool, flaky: bool = False
    ) -> Isolation:
        return Isolation(level=level, case=case, donor=donor, stable=stable, runs=tuple(self._runs), flaky=flaky)

    def _at(self, level: str, asked: Case) -> Outcome:
        outcome = self._run(asked, level)
        content = "donor" if asked == self._donor else "batch"
        self._runs.append({"isolation": level, "content": content, "status": str(outcome.status)})
        if asked != self._donor:
            if outcome.status is Status.FAIL:
                self._failed = outcome
            else:
                self._last = outcome
        return outcome

    def _count(self, level: str, status: Status | None = None) -> int:
        mine = [run for run in self._runs if run["content"] == "batch" and run["isolation"] == level]
        return sum(status is None or run["status"] == status for run in mine)

    def _refusal(self) -> str:
        """Says with the counts which of three it is: another failure, one that comes and goes, none."""
        mine = [run for run in self._runs if run["content"] == "batch"]
        failed, seen, where = sum(run["status"] == Status.FAIL for run in mine), self._last, self._case.incident
        counts = f"{failed} of {len(mine)} runs failed as captured"
        follow = f"see how often it does: reprokit replay {where}"
        if failed:
            return f"{where}: fails too seldom to be reduced ({counts}): {name(self._captured)}; {follow}"
        if seen and seen.status in (Status.OTHER, Status.INVALID):
            now = name(seen.signature) if seen.signature else f"{seen.status}: {last_line(seen.detail)}"
            return f"{where}: fails for another reason ({counts}): captured {name(self._captured)}, now {now}; {follow}"
        return f"{where}: does not fail here ({counts}): {name(self._captured)}; {follow}"


def name(signature: Signature | None) -> str:
    """On one line: "nonfinite_loss at pred_loss"."""
    if signature is None:
        return "nothing"
    place = f"{signature.kind} at {signature.where}"
    if not signature.exception:
        return place
    return f"{place} ({signature.exception}: {' '.join(signature.message.split())[:_DETAIL]})"


def last_line(text: str) -> str:
    """Of a traceback or an explanation, which says what happened."""
    return (text.strip().splitlines() or ["no reason given"])[-1][:_DETAIL]
