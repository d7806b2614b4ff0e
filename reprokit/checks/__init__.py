"""Assertions for tests of models, whose messages hold what a person needs to go on.

    about = About(dataset="three clips", seed=0)
    check(at_least("accuracy", hits, 0.9, margin=Bootstrap()), about)

A check gives a `Result`, which `all_of`, `any_of` and `not_` combine. `check` raises an AssertionError unless it
passed, and logs what was observed in any case. Importing this costs nothing: NumPy and scipy (extra `checks`) are
imported where they are used.
"""

from reprokit.checks.calibration import calibration
from reprokit.checks.categorical import chi_square, kl_divergence
from reprokit.checks.combined import all_of, any_of, not_
from reprokit.checks.distributional import kolmogorov_smirnov
from reprokit.checks.equal import close, exact
from reprokit.checks.result import About, Answer, CheckFailed, Result, check
from reprokit.checks.threshold import Bootstrap, History, at_least, at_most

__all__ = [
    "About",
    "Answer",
    "Bootstrap",
    "CheckFailed",
    "History",
    "Result",
    "all_of",
    "any_of",
    "at_least",
    "at_most",
    "calibration",
    "check",
    "chi_square",
    "close",
    "exact",
    "kl_divergence",
    "kolmogorov_smirnov",
    "not_",
]
