"""Does this candidate still fail, where the failure comes and goes?

Trials of one candidate are Bernoulli. One that has all it takes fails at about the rate p of the whole case, one that
lacks something at the spurious rate q of healthy content. "Any of k trials" is right only where q is zero, and neither
rate is given. So both are measured, and each question is then a sequential probability ratio test (Wald 1945): of all
tests with the same errors it needs the fewest trials (Wald and Wolfowitz 1948).

- It accepts rates of p1 and more, where p1 is the lower confidence bound of p: with p itself, a measurement too high by
  chance would refuse candidates that are as good as the case.
- It refuses rates of p0 and less, where p0 is q's upper bound, or MARGIN times p1 if that is more: a smaller case that
  fails much more seldom is no better. Both rates stay those of the whole case, so a margin is not lost at every step.
- A likelihood ratio reaches 1 / error under the wrong hypothesis with probability error at most (Ville 1939), and the
  more so the further a rate lies outside of [p0, p1]. In between either answer is right.
- It ends: at p1 and above, the ratio's square root shrinks by the overlap of the two hypotheses (Bhattacharyya 1943)
  with every trial, and so says after how many of them a test that is still open is no good candidate's (Chernoff 1952).

The bounds hold at all times at once (see `replay.verdict`), since measuring stops on what it sees: once a question
costs no more than what was measured, for dozens of questions follow. Where a bound misses, it misses by little, and the
error grows by a power only that is little below one: there is no cliff (Wald's operating characteristic).

One trial decides where all of the case failed so far, none of the donor did, and that means something. Three out of
three does not by itself: a rate of 0.9 shows it in 73% of all cases. Three equal fingerprints do. Hence it is for the
caller to say how many equal answers are enough. Pure arithmetic: no clock, no I/O, and no dice.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil, inf, log, sqrt
from typing import Any, Literal

from reprokit.reduce.search import drive
from reprokit.replay import verdict

ERROR = 1e-4  # of a question, at the bounds; at the true rates, which lie beyond them, it then is 1e-5 at most
MARGIN = 0.5  # a case that fails half as often costs twice the attempts to see: more than that no drop is worth
CLEAN = 3  # equal answers after which one trial decides, where their fingerprints are equal as well
LIMIT = 500  # trials of case and donor each, and on average of a question: enough for a rate of 0.1
_LOOK = 5  # trials of each between two looks at the bounds

Content = Literal["case", "donor"]
Trial = tuple[Content, int]  # the int counts trials of this content from 0: also the RNG state that it is run with

_interval = lru_cache(2**14)(verdict.interval)


@dataclass(frozen=True, kw_only=True, slots=True)
class Count:
    """Trials of one content."""

    fail: int = 0
    n: int = 0

    @property
    def rate(self) -> float:
        return self.fail / self.n if self.n else 0.0

    @property
    def low(self) -> float:
        return _interval(self.fail, self.n)[0]

    @property
    def high(self) -> float:
        return _interval(self.fail, self.n)[1]

    def then(self, failed: bool) -> Count:
        return Count(fail=self.fail + failed, n=self.n + 1)

    def to_json(self) -> dict[str, Any]:
        return {"fail": self.fail, "n": self.n, "rate": self.rate, "low": self.low, "high": self.high}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """What was measured."""

    case: Count = field(default_factory=Count)  # the whole case
    donor: Count | None = field(default_factory=Count)  # None: no healthy content to measure; the margin alone counts
    clean: bool = False  # one trial decides

    @property
    def p1(self) -> float:
        """A candidate that fails at least so often is accepted."""
        return self.case.low

    @property
    def p0(self) -> float:
        """A candidate that fails at most so often is refused."""
        return max(self.donor.high if self.donor else 0.0, MARGIN * self.p1)

    @property
    def uncontradicted(self) -> bool:
        """Every trial of the case failed, none of the donor did."""
        return self.case.fail == self.case.n and not self.count("donor").fail

    @property
    def least(self) -> int:
        """Trials of each."""
        return min(self.case.n, self.donor.n) if self.donor else self.case.n

    @property
    def cost(self) -> float:
        """Trials that a question takes on average, for whichever answer takes longer; infinite where none can be."""
        if self.clean:
            return 1.0
        if not self.p0 < self.p1:
            return inf
        test = self.test()
        return max(test.expected(self.case.rate), test.expected(self.count("donor").rate))

    def test(self) -> Sprt:
        return Sprt(self.p0, self.p1)

    def then(self, content: Content, failed: bool) -> Rates:
        """With one trial more, which no longer is known to be clean."""
        if content == "case":
            return Rates(case=self.case.then(failed), donor=self.donor)
        return Rates(case=self.case, donor=self.count(content).then(failed))

    def count(self, content: Content) -> Count:
        return self.case if content == "case" else self.donor or Count()

    def to_json(self) -> dict[str, Any]:
        return {"case": self.case.to_json(), "donor": self.donor.to_json() if self.donor else None}


@dataclass(frozen=True, kw_only=True, slots=True)
class Indistinct:
    """The case does not fail clearly more often than healthy content, so no question about it can be answered."""

    rates: Rates

    def __str__(self) -> str:
        """For one line; begins in the middle of it."""
        case, donor = self.rates.case, self.rates.donor
        seen = f"fails in {case.fail} of {case.n} trials"
        if donor and donor.fail:
            return f"{seen}, and healthy content in {donor.fail} of {donor.n}: too close to tell them apart"
        return f"{seen}: too seldom to tell apart what does and what does not"


class Sprt:
    """Is a rate at least p1, or at most p0? Same answer whatever is told after it."""

    def __init__(self, p0: float, p1: float, error: float = ERROR) -> None:
        if not 0 < p0 < p1 < 1:
            raise ValueError(f"nothing to tell apart: {p0} and {p1}")
        self._up, self._down = log(p1 / p0), log((1 - p1) / (1 - p0))
        self._accept, self._refuse = -log(error), log(error / 2)  # half of it is for being still open at the end
        overlap = sqrt(p0 * p1) + sqrt((1 - p0) * (1 - p1))
        self.longest = ceil((self._accept / 2 - self._refuse) / -log(overlap))
        self.fail = self.n = 0
        self.answer: bool | None = None

    def tell(self, failed: bool) -> bool | None:
        """True: it fails often enough. False: it does not, or has not shown it in `longest` trials. None: go on."""
        if self.answer is None:
            self.fail, self.n = self.fail + failed, self.n + 1
            self.answer = self.at(self.fail, self.n)
        return self.answer

    def at(self, fail: int, n: int) -> bool | None:
        """The answer of a test that was still open before its n-th trial."""
        evidence = fail * self._up + (n - fail) * self._down
        if evidence >= self._accept:
            return True
        return False if evidence <= self._refuse or n >= self.longest else None

    def expected(self, rate: float) -> float:
        """Trials to the answer that this rate should get, but for what the last one overshoots (Wald's equation)."""
        drift = rate * self._up + (1 - rate) * self._down
        return (self._accept if drift > 0 else self._refuse) / drift if drift else inf


def deciding(rates: Rates) -> Generator[int, bool, bool]:
    """Whether a candidate fails often enough. Yields the number of its next trial, and is sent if that failed."""
    if rates.clean:
        return (yield 0)
    test, number = rates.test(), 0
    while test.tell((yield number)) is None:
        number += 1
    return bool(test.answer)


def measuring(
    start: Rates | None = None, *, clean_after: int | None = None
) -> Generator[Trial, bool, Rates | Indistinct]:
    """Both rates, as well as questions need them. Yields what to run next, and is sent if that failed as captured.

    start: trials made before, none of them made or left out because of an answer.
    clean_after: so many of each, all as they should be, show that one trial decides. None: no number does.
    """
    rates = start or Rates()
    while True:
        hoped = clean_after is not None and rates.uncontradicted
        content: Content = "donor" if rates.donor and rates.donor.n < rates.case.n else "case"
        if hoped and rates.least >= (clean_after or 0):
            return Rates(case=rates.case, donor=rates.donor, clean=True)
        if not hoped and content == "case" and rates.case.n % _LOOK == 0:
            if rates.cost <= rates.case.n:
                return rates
            if rates.case.n >= LIMIT or _hopeless(rates):
                return Indistinct(rates=rates)
        rates = rates.then(content, (yield content, rates.count(content).n))


def _hopeless(rates: Rates) -> bool:
    """Even at the best rates that these trials allow, a question would cost too much in the end."""
    best = Rates(case=_in_the_end(rates.case.high), donor=rates.donor and _in_the_end(rates.donor.low))
    return best.cost > LIMIT


def _in_the_end(rate: float) -> Count:
    return Count(fail=round(rate * LIMIT), n=LIMIT)


def decide(trial: Callable[[int], bool], rates: Rates) -> bool:
    """`deciding`, against whatever runs a candidate's trials one after the other."""
    return drive(deciding(rates), trial)


def measure(
    trial: Callable[[Trial], bool], start: Rates | None = None, *, clean_after: int | None = None
) -> Rates | Indistinct:
    """`measuring`, likewise."""
    return drive(measuring(start, clean_after=clean_after), trial)
