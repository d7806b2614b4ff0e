"""The rules that come from the donor, as questions.

A drop that still fails means something only if healthy content in the same shape passes (the shape twin). An exception
that the twin raises as well is the architecture refusing the shape (INVALID), and one that it does not raise is another
failure of this batch (OTHER), a finding. Without an admitted donor nobody can say, and the rules are void.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from reprokit.failure import Kind, Signature
from reprokit.reduce.asking import Asking, Indices
from reprokit.reduce.batched import ask_many
from reprokit.reduce.isolation import name
from reprokit.reduce.moves import Part
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status


class Rules:
    """What a case means. `twins`: a donor is admitted, for its content passes in the whole batch's shape."""

    def __init__(self, kind: Kind, room: Callable[[Mapping[str, Indices]], int]) -> None:
        self.twins = False
        self._kind, self._room = kind, room  # room: how often a part fits into a batch of the whole one's elements
        self._others: dict[Signature | None, tuple[int, Case, Outcome]] = {}  # another failure -> its smallest case

    def ask(self, case: Case) -> Asking[Outcome]:
        outcome = yield case
        if outcome.status is Status.OTHER and case.content == "batch" and case.heal != ({},):
            size = sum(map(len, case.keep.values())) if case.keep else 1 << 30
            if outcome.signature not in self._others or size < self._others[outcome.signature][0]:
                self._others[outcome.signature] = (size, case, outcome)
        return outcome

    def fails(self, part: Part) -> Asking[bool]:
        """The captured failure, and nothing else."""
        return (yield from self.ask(part.case())).status is Status.FAIL

    def passes(self, case: Case) -> Asking[bool]:
        return (yield from self.ask(case)).status is Status.PASS

    def heals_each(self, part: Part, axis: str, indices: Indices) -> Asking[dict[Any, bool]]:
        """For each of these, whether the part passes with it alone healed: many in one forward pass, where samples do
        not interact, and one by one elsewhere."""
        samples = part.essential("b") if "b" in part.keep else ()
        answers: list[bool] | None = None
        if len(samples) == len(part.keep.get("b", ())) == 1:
            cells = [{axis: (index,)} for index in indices]
            room = self._room(part.keep)
            answers = yield from ask_many(part.case(), cells, kind=self._kind, samples=samples, room=room)
        if answers is not None:
            return {index: not fails for index, fails in zip(indices, answers)}
        found = {}
        for index in indices:
            found[index] = yield from self.passes(part.heal(axis, (index,)).case())
        return found

    def shape_is_sound(self, part: Part) -> Asking[bool]:
        """Healthy content passes in this shape."""
        return not self.twins or (yield from self.passes(part.twin()))

    def verdict(self, part: Part) -> Asking[Status]:
        """FAIL only in a sound shape, and INVALID for what the twin does as well."""
        outcome = yield from self.ask(part.case())
        if outcome.status is Status.FAIL:
            return Status.FAIL if (yield from self.shape_is_sound(part)) else Status.INVALID
        if outcome.status is Status.OTHER and (yield from self._refused_as_well(part.twin(), outcome)):
            return Status.INVALID
        return outcome.status

    def fails_soundly(self, part: Part) -> Asking[bool]:
        return (yield from self.verdict(part)) is Status.FAIL

    def findings(self) -> Asking[list[dict[str, Any]]]:
        """Other failures met on the way, one case each, that healthy content in the same shape does not have."""
        found = []
        for signature, (_, case, outcome) in list(self._others.items()):
            if not (yield from self._refused_as_well(replace(case, heal=({},)), outcome)):
                data = case.to_json()
                found.append({"failure": name(signature), "keep": data["keep"], "heal": data["heal"]})
        return found

    def _refused_as_well(self, twin: Case, outcome: Outcome) -> Asking[bool]:
        """The twin has the same shape, so its message has the same numbers: signatures compare as they are."""
        if not self.twins or not outcome.signature or outcome.signature.kind is not Kind.EXCEPTION:
            return False
        answer = yield from self.ask(twin)
        return answer.status is Status.INVALID or answer.signature == outcome.signature
