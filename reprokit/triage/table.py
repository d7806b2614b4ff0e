"""One table of changed experiments: what was changed, what came of it, what follows.

A row starts with one attempt. Where the step still fails, that is a fact, and one is enough. Where it does not, luck
is the other explanation: the row gets fresh attempts, and what follows is said only if Fisher's test over all such
rows holds it apart from the captured step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.triage.changes import Change
from reprokit.triage.exact import ALPHA, fisher, holm
from reprokit.triage.trials import Setting, Tally, Trials

_LEADS_NOWHERE = "going back over the steps before it does not lead to the failure again"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A changed experiment with what came of it."""

    change: Change
    tally: Tally | None = None  # None: it was not asked
    adjusted: float | None = None  # p-value beside the captured step, for all rows that were tested
    why_not: str = ""

    @property
    def supported(self) -> bool:
        """That it does not fail here is no luck."""
        return self.adjusted is not None and self.adjusted < ALPHA

    @property
    def cured(self) -> bool:
        """It passes each time, and that is no luck."""
        return self.supported and self.tally is not None and self.tally.passed == self.tally.n

    @property
    def outcome(self) -> str:
        """In words, with counts."""
        tally = self.tally
        if tally is None or not tally.n:
            return f"not asked: {self.why_not}"
        others = tally.n - tally.fail - tally.passed
        parts = {"fails": tally.fail, "passes": tally.passed, "fails in another way": others}
        return ", ".join(f"{what} {count}/{tally.n}" for what, count in parts.items() if count)

    @property
    def follows(self) -> str:
        tally = self.tally
        if tally is None or not tally.n:
            return ""
        if tally.fail == tally.n:
            return self.change.fails
        if not self.supported:
            return "nothing: too few attempts (-n) to tell from luck"
        if not tally.passed:
            return f"it takes the captured failure away and brings another: {_another(tally)}"
        return self.change.passes if self.cured else f"it fails less often: {self.change.passes}"

    @property
    def suggestion(self) -> str:
        return self.change.suggests if self.cured else ""

    def to_json(self) -> dict[str, Any]:
        counts = self.tally.to_json() if self.tally else {}
        return {
            "changed": self.change.changed,
            "group": self.change.group,
            "outcome": self.outcome,
            **{name: counts.get(name, 0) for name in ("n", "fail", "pass", "other", "infra")},
            "why_not": self.why_not,
            "adjusted": self.adjusted,
            "follows": self.follows,
            "suggestion": self.suggestion,
        }


def tabulate(
    trials: Trials,
    changes: Sequence[Change],
    n: int,
    base: Tally,
    *,
    on_change: Callable[[str], None] = lambda what: None,
) -> list[Row]:
    """All changes with what came of them. n: attempts at each that does not fail at once. base: those at the captured
    step."""
    earlier: dict[str, Tally] = {}
    rows = []
    for change in changes:
        on_change(change.changed)
        beside = base if change.beside is None else _beside(trials, change.beside, n, earlier)
        rows.append(_row(trials, change, n, beside))
    tested = [i for i, row in enumerate(rows) if row.adjusted is not None]
    for i, p in zip(tested, holm([row.adjusted for row in rows if row.adjusted is not None])):
        rows[i] = replace(rows[i], adjusted=p)
    return rows


def _beside(trials: Trials, case: Case, n: int, known: dict[str, Tally]) -> Tally:
    """Attempts at what a change is compared with, made once."""
    key = str(case.to_json())
    if key not in known:
        [known[key]] = trials.ask([Setting(label="over the steps before it", case=case)], n)
    return known[key]


def _row(trials: Trials, change: Change, n: int, beside: Tally) -> Row:
    """Its p-value is not yet corrected."""
    if change.why_not:
        return Row(change=change, why_not=change.why_not)
    if not beside.fail:
        return Row(change=change, why_not=beside.why_not or _LEADS_NOWHERE)
    [tally] = trials.ask([change.setting], 1)
    if not tally.n:
        return Row(change=change, why_not=tally.why_not or "the machinery broke at each attempt")
    if tally.fail:
        return Row(change=change, tally=tally)
    [fresh] = trials.ask([change.setting], n)
    if not fresh.n:
        return Row(change=change, tally=tally)
    return Row(change=change, tally=fresh, adjusted=fisher(fresh.fail, fresh.n, beside.fail, beside.n))


def _another(tally: Tally) -> str:
    signature = next(one.signature for one in tally.outcomes if one.status is Status.OTHER)
    return f"{signature.exception or signature.kind} at {signature.where}" if signature else "not known"
