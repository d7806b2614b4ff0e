"""What the answers of statistical tests have in common.

A test that fails with probability alpha although nothing is wrong passes easily on few samples. Each message therefore
says what difference would have been seen with a power of 80%; `detect` makes a sample that cannot see as much as that
UNANSWERED, and so is one of which no outcome could fail.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from reprokit.checks.asked import number
from reprokit.checks.data import NotFinite, shown
from reprokit.checks.result import Answer, Result

POWER = 0.8  # chance to see what is there, by convention (Cohen 1988)
HISTOGRAMS = "draw both as histograms; then compare preprocessing, seed and dataset version with those of the reference"


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked of a sample."""

    name: str
    alpha: float | None
    detect: float | None = None
    bound: str = ""  # in place of alpha, where there is no p-value

    @property
    def expected(self) -> str:
        return self.bound if self.alpha is None else f"p >= {self.alpha:g}"

    def judged(
        self,
        condition: str,
        n: int,
        p_value: float,
        *,
        statistic: tuple[str, float],
        seen: tuple[str, float],
        least_p: float = 0.0,
        more: dict[str, float] | None = None,
    ) -> Result:
        assert self.alpha is not None
        what, least = seen
        problem = ""
        if not isfinite(p_value):
            problem = NotFinite(f"the test gave {p_value}")
        elif least_p >= self.alpha:
            problem = f"no outcome of so few could fail: the least p is {shown(least_p)}"
        elif self.detect is not None and least > self.detect:
            problem = f"a sample of this size sees {what} of {shown(least)}, not of {shown(self.detect)}"
        observed = f"{statistic[0]} {shown(statistic[1])}, p = {shown(p_value)}"
        failed = p_value < self.alpha
        return Result(
            name=self.name,
            condition=condition,
            expected=self.expected,
            observed=f"{observed}; {problem}" if problem else observed,
            n=n,
            answer=Answer.UNANSWERED if problem else Answer.FAILED if failed else Answer.PASSED,
            next_step=advice(problem, HISTOGRAMS),
            limits=f"{what} below about {least:.3g} is seen with less than {POWER:.0%} power; samples are taken as "
            "independent",
            measured={statistic[0].replace("-", "_"): statistic[1], "detectable": least, **(more or {})},
            p_value=None if problem else p_value,
            least_p=least_p,
            alpha=self.alpha,
        )

    def unanswered(self, condition: str, n: int, problem: str) -> Result:
        return self._plain(condition, n, Answer.UNANSWERED, problem)

    def impossible(self, condition: str, n: int, category: int) -> Result:
        said = f"category {category} was counted and is not expected at all"
        return self._plain(condition, n, Answer.FAILED, said)

    def _plain(self, condition: str, n: int, answer: Answer, said: str) -> Result:
        return Result(
            name=self.name,
            condition=condition,
            expected=self.expected,
            observed=said,
            n=n,
            answer=answer,
            next_step=advice(said if answer is Answer.UNANSWERED else "", HISTOGRAMS),
            alpha=self.alpha,
        )


def advice(problem: str, failed: str) -> str:
    """The next step: of what the data could not tell, or else of a failure."""
    if isinstance(problem, NotFinite):
        return "find what makes the first value that is not finite; more samples would not answer it"
    if problem:
        return "mend what makes the sample, or take more of it; a sample that cannot fail proves nothing"
    return failed


def checked_detect(name: str, detect: float | None) -> float | None:
    if detect is None:
        return None
    rule = "it is a difference above 0 that must be seen"
    return number(name, "detect", detect, rule, allowed=lambda one: one > 0)
