"""What a check comes to, and the one message that says it.

A check has three answers, since a bool would lie: where the data cannot tell (NaN, no samples, a constant sample, too
few for any outcome to fail) it is UNANSWERED, which is never a pass, nor is its negation. What the data are to blame
for is an answer, and raises CheckFailed like a failure; what the caller is to blame for (a bound that is NaN, counts of
two lengths) is BadInput, whatever the data are. What was observed is told on success as well: see `told`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reprokit.checks import told
from reprokit.checks.data import text
from reprokit.errors import BadInput


class Answer(StrEnum):
    PASSED = "PASSED"
    FAILED = "FAILED"
    UNANSWERED = "UNANSWERED"


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What one check came to. Hand it to `check`, alone or combined: by itself it stops nothing."""

    name: str  # of what was looked at: "accuracy"
    condition: str  # what must hold, with its numbers: "accuracy >= 0.9 - 0.02 (margin given)"
    expected: str
    observed: str  # of UNANSWERED: and why the data cannot tell
    n: int  # that were looked at
    answer: Answer
    next_step: str  # what to do where it does not pass
    unit: str = "samples"  # what n counts
    limits: str = ""  # what a pass does not show
    measured: Mapping[str, float] = field(default_factory=dict)  # for programs
    p_value: float | None = None  # of a statistical test: FAILED is p_value < alpha
    least_p: float = 0.0  # that a sample of this size can have, whatever is in it
    alpha: float | None = None  # chance that what holds fails, of this check alone
    corrected_p: float | None = None  # for all tests of the combination that it is part of
    parts: tuple[Result, ...] = ()  # of a combination
    kind: str = ""  # of a combination

    def __bool__(self) -> bool:
        raise BadInput(
            f"{self.name}: a result has three answers and is no bool; call check(result, about), or look at .answer"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class About:
    """What was looked at: a number without it cannot be made again. Raises BadInput where it names no data."""

    dataset: str
    seed: int | str | None  # None: nothing was drawn
    version: str = ""  # of code or model; by default the commit of the repository of the working directory

    def __post_init__(self) -> None:
        if not isinstance(self.dataset, str) or not self.dataset.strip():
            raise BadInput(
                f"About: dataset is {text(self.dataset)}; name the data that was looked at, with its version if it has "
                "one, in a text"
            )
        if not isinstance(self.version, str):
            raise BadInput(f"About: version is {text(self.version)}; it is a text, such as a commit")


class CheckFailed(AssertionError):
    """A check that failed, or that its data cannot answer."""

    def __init__(self, result: Result, about: About) -> None:
        super().__init__(message(result, about))
        self.result, self.about = result, about


def check(result: Result, about: About, *, next_step: str = "") -> Result:
    """Tell what was observed, and give the result back if it is a pass. next_step: in place of the check's own.

    Raises CheckFailed unless it is a pass, and BadInput for what is no result of a check.
    """
    __tracebackhide__ = True  # pytest then shows the line that called this
    checked_result("check", result)
    if not isinstance(about, About):
        raise BadInput(f"check: about is {text(about)}; say what was looked at: About(dataset=..., seed=...)")
    if not isinstance(next_step, str):
        raise BadInput(f"check: next_step is {text(next_step)}; it is a text, of what to do where the check fails")
    if next_step:
        result = replace(result, next_step=next_step)
    told.tell(fields(result) | _about(about), passed=result.answer is Answer.PASSED)
    if result.answer is not Answer.PASSED:
        raise CheckFailed(result, about)
    return result


def checked_result(who: str, result: object) -> Result:
    if not isinstance(result, Result):
        raise BadInput(
            f"{who}: a {type(result).__name__} is no result of a check; hand over what exact, at_least or another of "
            "them gives, one by one"
        )
    return result


def message(result: Result, about: About) -> str:
    """All that a person needs to go on, a line each."""
    head, *rest = _lines(result)
    seed = "none: nothing was drawn" if about.seed is None else about.seed
    company = [_line(name, str(value)) for name, value in (_about(about) | {"seed": seed}).items()]
    return "\n".join([head, *rest, *company, _line("next", result.next_step)])


def fields(result: Result) -> dict[str, object]:
    """For programs."""
    plain: dict[str, object] = {
        "check": result.name,
        "answer": str(result.answer),
        "condition": result.condition,
        "expected": result.expected,
        "observed": result.observed,
        "n": result.n,
        "unit": result.unit,
        "measured": dict(result.measured),
    }
    if result.p_value is not None:
        plain |= {"p_value": result.p_value, "alpha": result.alpha}
    if result.corrected_p is not None:
        plain["corrected_p"] = result.corrected_p
    return plain | ({"parts": [fields(part) for part in result.parts]} if result.parts else {})


def _about(about: About) -> dict[str, object]:
    return {"dataset": about.dataset, "seed": about.seed, "version": about.version or told.commit()}


def _lines(result: Result) -> Iterator[str]:
    yield f"{_one_line(result.name)}: {result.answer}"
    yield _line("condition", result.condition)
    yield _line("expected", result.expected)
    corrected = f", corrected for all tests {result.corrected_p:.6g}" if result.corrected_p is not None else ""
    yield _line("observed", f"{result.observed}{corrected}")
    yield _line(result.unit, str(result.n))
    if result.limits:
        yield _line("limits", result.limits)
    for part in result.parts:
        yield from (f"    {line}" for line in _lines(part))


def _line(name: str, value: str) -> str:
    return f"  {name:<10} {_one_line(value)}"


def _one_line(text: str) -> str:
    """Whatever a name or a value holds: it can neither end its line nor write on the terminal."""
    return "".join(one if one.isprintable() else " " for one in text)
