"""A failure that comes and goes: is the bug kept, and nothing else?

256 items, two culprits. A subset with both fails at rate p, any other at rate q; neither is given. Ours measures them
and then tests sequentially (`reduce.noise`); beside it "any of k trials", which is what most flaky reductions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median
from typing import Any

from reprokit.reduce.noise import Indistinct, decide, measure
from reprokit.reduce.search import drive, minimal
from reprokit.replay.verdict import interval

N = 256
RATES = [(p, q) for p in (0.9, 0.7, 0.3) for q in (0.0, 0.05)]
ANY = 3

Trial = Callable[[int], bool]
Decides = Callable[[Trial], bool]


class Flaky:
    """Trials of subsets, counted."""

    def __init__(self, p: float, q: float, random: Random) -> None:
        self._p, self._q, self._random = p, q, random
        self.culprits = frozenset(random.sample(range(N), 2))
        self.trials = 0

    def trial(self, whole: bool) -> bool:
        self.trials += 1
        return self._random.random() < (self._p if whole else self._q)

    def reduced(self, decides: Decides) -> frozenset[int]:
        def fails(kept: tuple[int, ...]) -> bool:
            whole = self.culprits.issubset(kept)
            return decides(lambda _: self.trial(whole))

        return frozenset(drive(minimal(range(N)), fails))


@dataclass(frozen=True, kw_only=True, slots=True)
class Noisy:
    """Reductions at one pair of rates."""

    p: float
    q: float
    how: str
    lost: int  # did not keep both culprits
    oversize: int  # kept both, and more
    trials: list[int]

    def rows(self) -> Iterator[dict[str, Any]]:
        name, n = f"noisy, p = {self.p}, q = {self.q}, {self.how}", len(self.trials)
        for what, count in ("lost bugs", self.lost), ("oversize", self.oversize):
            low, high = interval(count, n)
            yield {"name": f"{name}: {what}", "value": count, "low": low * n, "high": high * n, "unit": f"of {n}"}
        least, most = min(self.trials), max(self.trials)
        yield {"name": f"{name}: trials", "value": median(self.trials), "low": least, "high": most, "unit": "trials"}


def noise(placements: int) -> Iterator[Noisy]:
    for p, q in RATES:
        for how, reduce in ("measured", _ours), (f"any of {ANY}", _any_of):
            runs = [reduce(Flaky(p, q, Random(f"{p} {q} {place}"))) for place in range(placements)]
            yield Noisy(
                p=p,
                q=q,
                how=how,
                lost=sum(not run.culprits <= found for run, found in runs),
                oversize=sum(found > run.culprits for run, found in runs),
                trials=[run.trials for run, _ in runs],
            )


def _ours(run: Flaky) -> tuple[Flaky, frozenset[int]]:
    rates = measure(lambda trial: run.trial(trial[0] == "case"))
    assert not isinstance(rates, Indistinct), str(rates)
    return run, run.reduced(lambda trial: decide(trial, rates))


def _any_of(run: Flaky) -> tuple[Flaky, frozenset[int]]:
    return run, run.reduced(lambda trial: any(map(trial, range(ANY))))


def table(results: Sequence[Noisy]) -> Iterator[str]:
    yield f"| {N} items, two culprits | decided by | lost bugs | oversize | trials, median (most) |"
    yield "|---|---|---|---|---|"
    for one in results:
        n, most = len(one.trials), max(one.trials)
        shares = f"{one.lost} of {n} | {one.oversize} of {n}"
        yield f"| p = {one.p}, q = {one.q} | {one.how} | {shares} | {median(one.trials):g} ({most}) |"
