"""Does a captured healthy step replay? Asked in a fresh process, by a child of the recorder.

The step is evaluated twice in one process. The first shows that a fresh process computes what training computed. The
second, after everything that the harness knows was restored, shows that nothing else carries state from step to step: a
generator, a teacher or a counter of the user's own has moved on by then. A third, watched run names generators. Where
the incident holds a step before this one, both are run from the state before it: what the loop does in between shows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reprokit.incident import Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Outcome, Status

REWINDING = "going back in history gives another step"


def rehearse(incident: Incident) -> list[str]:
    """What does not replay, a line each; empty if the step replays bit for bit."""
    case = Case(incident=incident.path)
    with Session(incident, own_process=True) as session:
        first = session.evaluate(case)
        if first.status is not Status.PASS:
            return [_refusal(first)]
        second = session.evaluate(case)
        with _Generators(session) as generators:
            session.evaluate(case)
        earlier = session.evaluate(replace(case, rewind=incident.rewindable()))
    if generators.private:
        return [
            f"the step draws from {generators.private} private torch.Generator that the harness does not list; "
            "hand it over in extra_state={'generator': generator}"
        ]
    if differs := _difference(incident.manifest.fingerprint, first.fingerprint):
        return [
            f"a fresh process computes another step: {differs} differ first; does the step read state that the harness "
            "does not list?"
        ]
    if differs := _difference(first.fingerprint, second.fingerprint):
        return [
            f"state outside the harness changes from step to step: {differs} differ first on a second run; list the "
            "module, optimizer, teacher or generator that keeps it"
        ]
    if earlier.status is not Status.PASS:
        return [f"{REWINDING}: {_refusal(earlier)}"]
    if differs := _difference(incident.manifest.fingerprint, earlier.fingerprint):
        return [
            f"{REWINDING}: {differs} differ first when it is run after the step before it; does the loop change "
            "something between steps (a teacher, a clamp of weights)? Do it inside the step"
        ]
    return []


class _Generators(TorchFunctionMode):
    """Counts generators handed to torch functions that are neither torch's own nor in the harness."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        known = [torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else [])]
        if session.harness:
            known += [holder for holder in session.harness.extra_state.values() if isinstance(holder, torch.Generator)]
        self._known = known
        self._private: list[torch.Generator] = []

    @property
    def private(self) -> int:
        return len(self._private)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Generator) and all(value is not one for one in (*self._known, *self._private)):
                self._private.append(value)
        return func(*args, **kwargs)


def _refusal(outcome: Outcome) -> str:
    last = outcome.detail.strip().splitlines()[-1] if outcome.detail.strip() else ""
    what = outcome.signature.kind if outcome.signature else outcome.status
    return f"a fresh process cannot run the step that was healthy here: {what} {last}".strip()


def _difference(expected: Mapping[str, str], found: Mapping[str, str]) -> str:
    """The first part that differs, in the order in which a step computes them."""
    order = [part for what in ("losses", "gradients", "parameters") for part in expected if part.startswith(what)]
    return next((part for part in order if found.get(part) != expected[part]), "")


def main() -> None:
    """`python -m reprokit.step.rehearse INCIDENT OUT`: writes the findings as a JSON list."""
    incident, out = Path(sys.argv[1]), Path(sys.argv[2])
    findings = rehearse(Incident.open(incident))
    out.write_text(json.dumps(findings))


if __name__ == "__main__":
    main()
