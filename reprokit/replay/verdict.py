"""Reproducible or flaky, from attempts that failed or did not.

Attempts at one case are Bernoulli trials with an unknown rate p of the captured failure. Two facts need no statistics:
one FAIL proves that the failure is real, and a FAIL next to a PASS on identical inputs proves that it is flaky. What is
left is how much N equal answers say. If all N fail, every p below alpha ** (1 / N) would have produced this with
probability under alpha, so p is at least that (Clopper and Pearson 1934, their bound at k = N). People look at the
interval after every attempt, hence it must hold at all times at once: it is the set of p that a mixture martingale does
not reject (Robbins 1970; Ville's inequality).

Where attempts have unlike inputs (another seed, another host), a FAIL and a PASS may have them to thank. That inputs
decide is shown by repeating them: if they decided nothing, an attempt would agree with an earlier one of the same
inputs with probability p where that one failed and 1 - p where it did not, so all of a and b such repeats agree with
probability p^a (1 - p)^b, at most that of the worst p. One over it is again at most a martingale, so one may look after
every attempt, and choose what to repeat by what was seen. Pure arithmetic: no clock, no I/O.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil, lgamma, log

ALPHA = 0.05  # one wrong claim in twenty: what a reviewer accepts, and 14 attempts then support a rate of 0.8

_DIGITS = 8  # of a rate in percent: the interval's edges are no finer

PRESETS = {"quick": 5, "default": 14, "strict": 59}  # attempts that, all failing, support rates of 0.55, 0.80 and 0.95


class Verdict(StrEnum):
    REPRODUCIBLE = "REPRODUCIBLE"
    FLAKY = "FLAKY"
    NOT_REPRODUCED = "NOT_REPRODUCED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Tally:
    """Attempts so far, without those that the machinery spoiled."""

    fail: int  # same signature as the incident
    other: int  # passed, or failed in another way
    asked: int  # attempts asked for
    min_rate: float = 0.0  # rate of failure that must be supported before it is called reproducible
    alpha: float = ALPHA  # chance that what is said is wrong

    @property
    def n(self) -> int:
        return self.fail + self.other


def judge(tally: Tally) -> Verdict:
    """What this tally supports; call it after every attempt."""
    if tally.fail and tally.other:
        return Verdict.FLAKY
    if tally.n < tally.asked or not tally.n:
        return Verdict.INCONCLUSIVE
    if not tally.fail:
        return Verdict.NOT_REPRODUCED
    return Verdict.REPRODUCIBLE if rate_at_least(tally.n, tally.alpha) >= tally.min_rate else Verdict.INCONCLUSIVE


def rate_at_least(n: int, alpha: float = ALPHA) -> float:
    """Lower bound on the failure rate after n failures in n attempts, at confidence 1 - alpha."""
    return float(alpha ** (1 / n)) if n else 0.0


def rate_below(n: int, alpha: float = ALPHA) -> float:
    """Upper bound on the failure rate after no failure in n attempts, at confidence 1 - alpha."""
    return 1 - rate_at_least(n, alpha)


def attempts_for(rate: float, alpha: float = ALPHA) -> int:
    """How many attempts, all failing, it takes to support a rate below one."""
    n = ceil(log(alpha) / log(rate)) if rate > 0 else 1
    return n if rate_at_least(n, alpha) >= rate else n + 1  # the logarithms may round across an integer


def agree_by_chance(fail: int, other: int) -> float:
    """The largest chance that so many repeats, of inputs that failed and of inputs that did not, all agree with the
    attempt that they repeat, if inputs decide nothing: at the rate where that is likeliest."""
    n = fail + other
    return float((fail / n) ** fail * (other / n) ** other) if n else 1.0


def log_martingale(p: float, fail: int, n: int) -> float:
    """Log of the evidence against rate p: a Beta(1/2, 1/2) mixture over the likelihood at p."""
    mixture = _log_beta(fail + 0.5, n - fail + 0.5) - _log_beta(0.5, 0.5)
    return mixture - fail * log(p) - (n - fail) * log(1 - p)


def interval(fail: int, n: int, alpha: float = ALPHA) -> tuple[float, float]:
    """Rates not rejected at any time so far; covers the true one with probability 1 - alpha however often one looks."""
    peak = min(max(fail / n, 1e-9), 1 - 1e-9) if n else 0.5
    rejected = lambda p: log_martingale(p, fail, n) >= log(1 / alpha)
    return _edge(rejected, 1e-9, peak), _edge(rejected, 1 - 1e-9, peak)


def percent(rate: float) -> str:
    """A rate, or a lower bound of one: rounded, but never to 0% what has been seen, nor to 100% what no number of
    attempts supports."""
    return _rounded(rate, never=(0.0, 1.0))


def at_most(rate: float) -> str:
    """An upper bound, never rounded to 0%."""
    return _rounded(rate, never=(0.0,))


def _rounded(rate: float, never: Sequence[float]) -> str:
    digits = 0
    while rate not in never and digits < _DIGITS and float(f"{100 * rate:.{digits}f}") / 100 in never:
        digits += 1
    return f"{rate:.{digits}%}"


def _edge(rejected: Callable[[float], bool], outside: float, inside: float) -> float:
    """Where rejection begins between a rate that may be rejected and one that is not (the evidence is convex in p)."""
    if not rejected(outside):
        return round(outside, 6)
    for _ in range(60):
        middle = (outside + inside) / 2
        outside, inside = (middle, inside) if rejected(middle) else (outside, middle)
    return outside


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)
