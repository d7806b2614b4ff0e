"""Assertions for tests of models, whose messages hold what a person needs to go on.

    about = About(dataset="three clips", seed=0)
    check(at_least("accuracy", hits, 0.9, margin=Bootstrap()), about)

A check gives a `Result`, which `all_of`, `any_of` and `not_` combine. `check` raises an AssertionError unless it
passed, and logs what was observed in any case. Importing this costs nothing: names are resolved when they are first
used, and NumPy and scipy (extra `checks`) are imported where a check needs them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reprokit.checks.categorical import chi_square, kl_divergence
    from reprokit.checks.combined import all_of, any_of, not_
    from reprokit.checks.confidences import calibration
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

_HOMES = {
    "About": "result",
    "Answer": "result",
    "Bootstrap": "threshold",
    "CheckFailed": "result",
    "History": "threshold",
    "Result": "result",
    "all_of": "combined",
    "any_of": "combined",
    "at_least": "threshold",
    "at_most": "threshold",
    "calibration": "confidences",
    "check": "result",
    "chi_square": "categorical",
    "close": "equal",
    "exact": "equal",
    "kl_divergence": "categorical",
    "kolmogorov_smirnov": "distributional",
    "not_": "combined",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reprokit.checks' has no attribute {name!r}")
    return getattr(import_module(f"reprokit.checks.{_HOMES[name]}"), name)
