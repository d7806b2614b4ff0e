"""How often the checks are wrong, and how often they see what they say they would. Prints Markdown, or with --json one
object.

    python benchmarks/checks.py

Each row draws data of which the truth is known, again and again, and is the share of runs in which something happened,
with the interval that covers the true share with probability 95% (Clopper and Pearson 1934). Draws are seeded: the same
runs give the same numbers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import numpy as np
from scipy import stats
from tables import rows_table

from reprokit.checks import (
    Answer,
    Bootstrap,
    History,
    Result,
    all_of,
    at_least,
    calibration,
    chi_square,
    kolmogorov_smirnov,
)
from reprokit.checks.bootstrap import spread

Draw = np.random.Generator
Trial = Callable[[Draw], bool]

DRAWN: dict[str, tuple[Callable[[Draw, int], Any], float]] = {  # samples, and their true mean
    "normal": (lambda draw, n: draw.normal(size=n), 0.0),
    "an accuracy of 0.9": (lambda draw, n: (draw.random(n) < 0.9).astype(float), 0.9),
    "exponential": (lambda draw, n: draw.exponential(size=n), 1.0),
    "lognormal": (lambda draw, n: draw.lognormal(size=n), np.exp(0.5)),
}
SIZES = 20, 30, 50  # what a check takes at least is the second
RESAMPLES = 400  # the edges of an interval of 95% are then its tenth and its 390th draw, near enough
SHARES = np.array([0.25, 0.25, 0.5])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one object in place of a table")
    parser.add_argument("--runs", type=int, default=1000, help="of each row")
    options = parser.parse_args()
    rows = [row(name, trial, options.runs) for name, trial in trials()]
    print(json.dumps({"rows": rows}) if options.json else "\n".join(rows_table(rows)))


def row(name: str, trial: Trial, runs: int) -> dict[str, Any]:
    draw = np.random.default_rng(crc32(name.encode()))
    happened = sum(trial(draw) for _ in range(runs))
    low, high = stats.binomtest(happened, runs).proportion_ci()
    return {"name": name, "value": happened / runs, "low": low, "high": high, "unit": f"of {runs} runs"}


def trials() -> Iterator[tuple[str, Trial]]:
    for what, (sampled, truth) in DRAWN.items():
        for n in SIZES:
            yield f"bootstrap, 95% interval of the mean, {what}, n = {n}: covers", covers(sampled, truth, n)
    yield from {
        "bootstrap, accuracy at its bound, n = 200: fails": failed(lambda draw: hits(draw, strict=False)),
        "strict bootstrap, accuracy at its bound, n = 200: passes": lambda draw: (
            hits(draw, strict=True).answer is Answer.PASSED
        ),
        "history of 5 healthy runs: one more fails": failed(one_more),
        "Kolmogorov-Smirnov, two equal samples of 100: fails": failed(lambda draw: distance(draw, 0.0)),
        "Kolmogorov-Smirnov, the distance it says to see: fails": failed(lambda draw: distance(draw, None)),
        "chi-square, 200 counts as expected: fails": failed(lambda draw: counts(draw, 0.0)),
        "chi-square, the effect it says to see: fails": failed(lambda draw: counts(draw, None)),
        "calibration, a calibrated model, n = 200: fails": failed(calibrated),
        "eight tests, each for itself: some fails": some_fail,
        "eight tests in all_of: fails": failed(lambda draw: all_of(*eight(draw))),
    }.items()


def failed(ask: Callable[[Draw], Result]) -> Trial:
    return lambda draw: ask(draw).answer is Answer.FAILED


def covers(sampled: Callable[[Draw, int], Any], truth: float, n: int) -> Trial:
    def trial(draw: Draw) -> bool:
        seed = int(draw.integers(2**31))
        found = spread(sampled(draw, n), lambda values: float(values.mean()), resamples=RESAMPLES, seed=seed)
        return found.quantile(0.025) <= truth <= found.quantile(0.975)

    return trial


def hits(draw: Draw, *, strict: bool) -> Result:
    margin = Bootstrap(strict=strict, resamples=RESAMPLES, seed=int(draw.integers(2**31)))
    return at_least("accuracy", draw.random(200) < 0.9, 0.9, margin=margin)


def one_more(draw: Draw) -> Result:
    return at_least("accuracy", float(draw.normal()), margin=History(values=draw.normal(size=5).tolist()), n=100)


def distance(draw: Draw, size: float | None) -> Result:
    """Samples that differ most at their middle, by so much; None: by what the check says to see."""
    if size is None:
        size = kolmogorov_smirnov("x", draw.random(100), draw.random(100)).measured["detectable"]
    halves = lambda share: draw.random(100) / 2 + (draw.random(100) < share) / 2
    return kolmogorov_smirnov("x", halves(0.5 - size / 2), halves(0.5 + size / 2))


def counts(draw: Draw, size: float | None) -> Result:
    """Of shares that differ by such an effect (Cohen's w); None: by what the check says to see."""
    if size is None:
        size = chi_square("x", SHARES * 200, expected=SHARES).measured["detectable"]
    shifted = SHARES + size * np.array([1, -1, 0]) * 0.125**0.5
    return chi_square("x", draw.multinomial(200, shifted), expected=SHARES)


def calibrated(draw: Draw) -> Result:
    sure = draw.random(200)
    return calibration("x", sure, draw.random(200) < sure, resamples=RESAMPLES, seed=int(draw.integers(2**31)))


def eight(draw: Draw) -> list[Result]:
    return [kolmogorov_smirnov("x", draw.normal(size=100), stats.norm.cdf) for _ in range(8)]


def some_fail(draw: Draw) -> bool:
    return any(one.answer is Answer.FAILED for one in eight(draw))


if __name__ == "__main__":
    main()
