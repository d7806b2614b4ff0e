"""What counts as the failure of a command, and what became of one that ended.

A harness has detectors; of a command one sees how it ended, what it printed and what it measured. Whoever replays it
says which of these is the failure (`--fails-on`); several may be named, and one that holds is enough. A failure that
nobody named is another one. Killed at its deadline is a hang. A SIGKILL is sent from outside, so it says nothing about
the command, unless it was named. Pure: nothing here runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from operator import ge, gt, le, lt

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, normalise
from reprokit.step.outcome import Outcome, Status

NONZERO = "nonzero"
WHERE = "script"  # of signatures
_HOW = "give exit=nonzero, exit=1,134, output=REGEX, metric=NAME>10, metric=NAME (not finite), or hang"
_SIGKILL = 128 + 9
_HIGHEST = 255  # exit code
_COMPARED: Mapping[str, Callable[[float, float], bool]] = {">=": ge, "<=": le, ">": gt, "<": lt}
_METRIC = re.compile(r"(?P<name>[^<>=]+?)\s*(?:(?P<how>>=|<=|>|<)\s*(?P<bound>\S+))?")
_RAISED = re.compile(r"(?m)^(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exit:
    """Of these codes; none: of any but 0."""

    codes: tuple[int, ...] = ()

    def holds(self, code: int | None) -> bool:
        if code is None:
            return False
        return code in self.codes if self.codes else code not in (0, _SIGKILL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """A line of the output has a match."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """The last value of a metric is past a bound, or is no finite number."""

    name: str
    how: str = ""  # ">", ">=", "<", "<="; empty: not finite
    bound: float = 0.0

    def holds(self, value: float | None) -> bool:
        """NaN is past no bound."""
        if value is None:
            return False
        return _COMPARED[self.how](value, self.bound) if self.how else not isfinite(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class Hang:
    """It is killed at its deadline."""


Criterion = Exit | Output | Metric | Hang


def parse(text: str) -> Criterion:
    """Of one `--fails-on`. Raises BadInput."""
    kind, _, rest = text.partition("=")
    if text == "hang":
        return Hang()
    if text == NONZERO or (kind == "exit" and rest == NONZERO):
        return Exit()
    if kind == "exit":
        return Exit(codes=_codes(text, rest))
    if kind == "output" and rest:
        try:
            return Output(pattern=re.compile(rest))
        except re.error as error:
            raise BadInput(f"--fails-on {text}: no regular expression ({error}); escape it or mend it") from None
    if kind == "metric" and rest:
        return _metric(text, rest)
    raise BadInput(f"--fails-on {text}: not known; {_HOW}")


def _codes(text: str, rest: str) -> tuple[int, ...]:
    words = [word.strip() for word in rest.split(",")]
    if not all(word.isdecimal() and int(word) <= _HIGHEST for word in words):
        raise BadInput(f"--fails-on {text}: exit codes are numbers from 0 to {_HIGHEST}, with commas; or {NONZERO}")
    return tuple(int(word) for word in words)


def _metric(text: str, rest: str) -> Metric:
    found = _METRIC.fullmatch(rest.strip())
    try:
        bound = float(found["bound"]) if found and found["how"] else 0.0
    except ValueError:
        found = None
    if not found or bound != bound:  # nothing is past NaN
        raise BadInput(f"--fails-on {text}: no comparison with a number; such as metric=loss>10, or metric=loss")
    return Metric(name=found["name"], how=found["how"] or "", bound=bound)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a command ended, and what was seen of it."""

    code: int | None  # exit status, 128 + n for signal n; None: killed by us
    overdue: str = ""  # at its deadline: at which
    spoiled: str = ""  # by the machinery: why
    starved: bool = False  # the kernel killed something for memory meanwhile
    matched: Mapping[str, str] | None = None  # pattern -> the first line that matched
    metrics: Mapping[str, float] | None = None  # the last value of each
    log: str = ""  # the last that it printed


def conclude(ending: Ending, fails_on: Sequence[Criterion]) -> Outcome:
    """What this came to. Raises BadInput where a metric that was asked for is told nowhere."""
    metrics = dict(ending.metrics or {})

    def outcome(status: Status, signature: Signature | None = None, detail: str = "") -> Outcome:
        code, log = ending.code, ending.log
        return Outcome(status=status, signature=signature, losses=metrics, detail=detail, exit_code=code, log=log)

    if ending.spoiled:
        return outcome(Status.INFRA, detail=ending.spoiled)
    for criterion in fails_on:
        if found := _held(criterion, ending):
            return outcome(Status.FAIL, *found)
    if ending.overdue:
        return outcome(Status.OTHER, Signature(kind=Kind.HANG, where=WHERE), ending.overdue)
    if ending.code == _SIGKILL:
        memory = "killed by the kernel, which was out of memory; run fewer jobs at once (--jobs)"
        return outcome(Status.INFRA, detail=memory if ending.starved else "killed from outside")
    if ending.code:
        return outcome(Status.OTHER, _died(ending), f"{_how(ending.code)}\n{ending.log}".strip())
    for criterion in fails_on:
        if isinstance(criterion, Metric) and criterion.name not in metrics:
            raise BadInput(
                f"--fails-on metric={criterion.name}: the command ended well and told no {criterion.name}; print "
                f"`{criterion.name}: VALUE`, or write it to a .jsonl file in {{out}}"
            )
    return outcome(Status.PASS)


def _held(criterion: Criterion, ending: Ending) -> tuple[Signature, str] | None:
    """The signature and what is said, where it does."""
    if isinstance(criterion, Hang):
        return (Signature(kind=Kind.HANG, where=WHERE), ending.overdue) if ending.overdue else None
    if isinstance(criterion, Exit):
        if not criterion.holds(ending.code):
            return None
        return _died(ending), f"{_how(ending.code or 0)}\n{ending.log}".strip()
    if isinstance(criterion, Output):
        line = (ending.matched or {}).get(criterion.pattern.pattern)
        if line is None:
            return None
        return Signature(kind=Kind.EXCEPTION, where="output", message=normalise(line)), f"it printed: {line}"
    value = (ending.metrics or {}).get(criterion.name)
    if value is None or not criterion.holds(value):
        return None
    kind = Kind.LOSS_SPIKE if criterion.how else Kind.NONFINITE_LOSS
    return Signature(kind=kind, where=criterion.name), f"{criterion.name} is {value:g}"


def _died(ending: Ending) -> Signature:
    """An exception of Python's, where the output ends with one; else a crash."""
    _, found, rest = ending.log.rpartition(_TRACEBACK)
    raised = list(_RAISED.finditer(rest)) if found and ending.code == 1 else []
    if not raised:
        return Signature(kind=Kind.CRASH, where=WHERE)
    last = raised[-1]
    message = normalise(last["message"] or "")
    return Signature(kind=Kind.EXCEPTION, where=WHERE, exception=last["type"], message=message)


def _how(code: int) -> str:
    return f"died of signal {code - 128}" if code > 128 else f"ended with exit code {code}"
