"""Answers questions about parts of a batch, and keeps the books.

It evaluates nothing itself. What it owns: the level of isolation, the cache of what is certain, what was spent, and the
rules that come from the donor. A drop that still fails means something only if healthy content in the same shape passes
(the shape twin); an exception that the twin raises as well is the architecture refusing the shape (INVALID), and one
that it does not raise is another failure of this batch (OTHER), a finding.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from reprokit.errors import Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.reduce.isolation import Isolation, name, settle
from reprokit.reduce.moves import Part
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

FORWARD = 1 / 3  # of a step: a backward pass costs about twice its forward pass (two matrix products for each one)
_TAIL = 300  # characters of a detail that are passed on: the last lines of a traceback
_TRIES = 2  # of an evaluation that the machinery spoils: one accident is chance, two are a fault

Evaluate = Callable[[Case, str], Outcome]


class Spent(Exception):  # no error: the best so far is the answer
    """The budget is used up."""


class Oracle:
    """Outcomes by case. `calls` counts evaluations, `cost` what they came to in whole steps of the whole batch."""

    def __init__(
        self,
        evaluate: Evaluate,
        captured: Signature,
        *,
        weigh: Callable[[Case], float],  # a case's share of the whole batch's elements
        budget: int | None = None,  # calls
        on_answer: Callable[[Case, Outcome], None] | None = None,
    ) -> None:
        self._evaluate, self._captured, self._weigh = evaluate, captured, weigh
        self._budget, self._on_answer = budget, on_answer
        self._known: dict[str, Outcome] = {}
        self._asked: dict[str, Case] = {}
        self.isolation = "restore"
        self.twins = False  # True once a donor is admitted: its content passes in the whole batch's shape
        self.phase = "isolation"
        self.spent: dict[str, dict[str, float]] = {}  # phase -> calls, elements, steps

    @property
    def calls(self) -> int:
        return int(sum(phase["calls"] for phase in self.spent.values()))

    @property
    def cost(self) -> float:
        return sum(phase["steps"] for phase in self.spent.values())

    def settle(self, whole: Part, *, donor: bool) -> Isolation:
        """Find the isolation that this incident needs; every later question is asked at it."""
        case = whole.case()
        found = settle(case, replace(case, content="donor") if donor else None, self.run, self._captured)
        self.isolation = found.level
        self.know(case, found.case)
        return found

    def know(self, case: Case, outcome: Outcome) -> None:
        """An answer that needs no evaluation."""
        self._known[_key(case)], self._asked[_key(case)] = outcome, case

    def ask(self, case: Case) -> Outcome:
        """From the cache, or evaluated. Raises Spent."""
        if _key(case) not in self._known:
            if self._budget is not None and self.calls >= self._budget:
                raise Spent
            self.know(case, self.run(case))
        return self._known[_key(case)]

    def fails(self, part: Part) -> bool:
        """The captured failure, and nothing else."""
        return self.ask(part.case()).status is Status.FAIL

    def passes(self, part: Part) -> bool:
        return self.ask(part.case()).status is Status.PASS

    def shape_is_sound(self, part: Part) -> bool:
        """Healthy content passes in this shape. Without an admitted donor nobody can say, and the rule is void."""
        return not self.twins or self.ask(part.twin()).status is Status.PASS

    def verdict(self, part: Part) -> Status:
        """With the donor's rules: FAIL only in a sound shape, and INVALID for what the twin does as well."""
        outcome = self.ask(part.case())
        if outcome.status is Status.FAIL:
            return Status.FAIL if self.shape_is_sound(part) else Status.INVALID
        if outcome.status is Status.OTHER and self._refused_as_well(part.twin(), outcome):
            return Status.INVALID
        return outcome.status

    def findings(self) -> list[dict[str, Any]]:
        """Other failures met on the way, one case each, that healthy content in the same shape does not have."""
        smallest: dict[Signature | None, Case] = {}
        for key, outcome in self._known.items():
            case = self._asked[key]
            if outcome.status is Status.OTHER and case.content == "batch" and case.heal != ({},):
                best = smallest.get(outcome.signature)
                if best is None or self._weigh(case) < self._weigh(best):
                    smallest[outcome.signature] = case
        return [
            {"failure": name(signature), **{part: case.to_json()[part] for part in ("keep", "heal")}}
            for signature, case in smallest.items()
            if not self._refused_as_well(replace(case, heal=({},)), self.ask(case))
        ]

    def _refused_as_well(self, twin: Case, outcome: Outcome) -> bool:
        """The twin has the same shape, so its message has the same numbers: signatures compare as they are."""
        if not self.twins or not outcome.signature or outcome.signature.kind is not Kind.EXCEPTION:
            return False
        answer = self.ask(twin)
        return answer.status is Status.INVALID or answer.signature == outcome.signature

    def run(self, case: Case, isolation: str | None = None) -> Outcome:
        """Evaluated now, whatever the cache and the budget say. Raises Infrastructure."""
        for _ in range(_TRIES):
            outcome = self._evaluate(case, isolation or self.isolation)
            self._book(case, outcome)
            if outcome.status is not Status.INFRA:
                break
        else:
            detail = " ".join(outcome.detail.split())[-_TAIL:]
            raise Infrastructure(f"{case.incident}: an evaluation broke {_TRIES} times: {detail}")
        if self._on_answer:
            self._on_answer(case, outcome)
        return outcome

    def _book(self, case: Case, outcome: Outcome) -> None:
        phase = self.spent.setdefault(self.phase, {"calls": 0, "elements": 0.0, "steps": 0.0})
        elements = self._weigh(case)
        phase["calls"] += 1
        phase["elements"] += elements
        phase["steps"] += elements * self._reach(case, outcome)

    def _reach(self, case: Case, outcome: Outcome) -> float:
        """How far an evaluation ran: a loss term, or an exception before it, needs no backward pass."""
        early = self._captured.kind in (Kind.NONFINITE_LOSS, Kind.LOSS_SPIKE) or self._captured.where == "forward"
        further = any(part.startswith(("gradients", "parameters")) for part in outcome.fingerprint)
        return FORWARD if early and not case.thorough and not further else 1.0


def _key(case: Case) -> str:
    return json.dumps(case.to_json(), sort_keys=True)
