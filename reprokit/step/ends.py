"""What it means that a process ended without an outcome, for engines that start processes of this machine.

Past its deadline in its step it hangs; ended in its step by a fault or an exit it crashed. Ended before its step
(imports, build) it did not run the case. A SIGKILL is sent from outside: by the kernel for want of memory, or by
somebody. Neither says anything about the case, unless that is how the captured process ended.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from reprokit.failure import Kind, Signature
from reprokit.incident import Manifest
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status

_SIGKILL = 128 + signal.SIGKILL


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """How it ended."""

    code: int  # exit status; 128 + n for signal n
    begun: bool  # in its step; otherwise it had not come that far
    overdue: str = ""  # killed by us at its deadline: at which
    starved: bool = False  # the kernel killed something for memory meanwhile
    limited: bool = False  # to memory that we set: want of it is no finding
    log: str = ""  # the last that it printed


def shell_code(code: int) -> int:
    """Of Python's exit code, which is negative for a signal."""
    return code if code >= 0 else 128 - code


def conclude(death: Death, captured: Manifest, case: Case) -> Outcome:
    """The outcome of a process that wrote none. case: a build may not survive what its variant changes."""
    if death.overdue:
        if death.begun:
            return _died(Kind.HANG, death.overdue, death, captured)
        return _nothing(Status.INFRA, f"{death.overdue}; give it longer (--timeout)", death)
    how = _how(death.code)
    if not death.begun:
        status = Status.INFRA if case.variant == Variant() else Status.INVALID
        return _nothing(status, f"{how}, before the step", death)
    if death.code != _SIGKILL:
        return _died(Kind.CRASH, f"{how} in the step", death, captured)
    if death.starved:
        return _starved(death, captured, case)
    if _captured_kill(captured):
        return _died(Kind.CRASH, f"{how} in the step", death, captured)
    return _nothing(Status.INFRA, "killed from outside, in the step", death)


def _starved(death: Death, captured: Manifest, case: Case) -> Outcome:
    """A case that is no longer the captured one may need more memory than that: it is answered, and not tried again."""
    kind = captured.signature.kind if captured.signature else None
    if not death.limited and (kind is Kind.OOM or _changed(case)):
        return _died(Kind.OOM, "killed by the kernel, which was out of memory, in the step", death, captured)
    why = "killed by the kernel, which was out of memory, in the step; run fewer jobs at once (--jobs)"
    return _nothing(Status.INFRA, why, death)


def _changed(case: Case) -> bool:
    cut = case.keep or case.heal or case.values or case.stack or case.content != "batch"
    return bool(cut) or case.variant != Variant()


def _captured_kill(captured: Manifest) -> bool:
    """Whether the captured process died of a SIGKILL, or nobody knows how."""
    if captured.signature is None or captured.signature.kind is not Kind.CRASH:
        return False
    known = [one.evidence for one in captured.symptoms if one.kind is Kind.CRASH]
    return all(one.get("signal", "SIGKILL") == "SIGKILL" and "exit_code" not in one for one in known)


def _how(code: int) -> str:
    if code <= 128:
        return f"exited with {code} and no outcome"
    try:
        return f"killed by {signal.Signals(code - 128).name}"
    except ValueError:
        return f"exited with {code} and no outcome"


def _died(kind: Kind, why: str, death: Death, captured: Manifest) -> Outcome:
    fails = captured.signature is not None and captured.signature.kind is kind
    return Outcome(
        status=Status.FAIL if fails else Status.OTHER,
        signature=Signature(kind=kind, where="step"),
        detail=f"{why}\n{death.log}".strip(),
    )


def _nothing(status: Status, why: str, death: Death) -> Outcome:
    return Outcome(status=status, detail=f"{why}\n{death.log}".strip())
