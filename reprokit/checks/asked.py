"""What a caller asks with: names, probabilities, bounds, how many. What is none is refused in one line, whatever the
data are, so that no check stops in the arithmetic behind it."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from numbers import Integral
from typing import Any

from reprokit.checks.data import read, text
from reprokit.errors import BadInput

MOST_DRAWS = 10**6  # a hundred thousandth of them is then ten: nobody needs more, and a slip of the hand never ends


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise BadInput(f"a check is named {text(name)}; name what is looked at, with a text such as 'accuracy'")
    return name


def number(who: str, what: str, value: Any, rule: str, *, allowed: Callable[[float], bool] = isfinite) -> float:
    """A finite number, as a float: Python's, NumPy's, or a tensor of no dimensions. Raises BadInput for all others."""
    found = read(who, value)
    if found is None or not isfinite(found) or not allowed(found):
        raise BadInput(f"{who}: {what} is {text(value)}; {rule}")
    return found


def whole(who: str, what: str, value: Any, rule: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    """A whole number from least to most. Raises BadInput."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not least <= int(value) <= most:
        raise BadInput(f"{who}: {what} is {text(value)}; {rule}")
    return int(value)


def checked_alpha(who: str, alpha: Any) -> float:
    return number(who, "alpha", alpha, "it is a probability, such as 0.05", allowed=lambda one: 0 < one < 1)


def checked_seed(who: str, seed: Any) -> int:
    return whole(who, "seed", seed, "of draws it is a whole number, not below 0")


def checked_resamples(who: str, resamples: Any, alpha: float) -> int:
    """The least p-value of so many is about one in them: fewer than 1 / alpha can show nothing."""
    found = whole(who, "resamples", resamples, "it is how often to draw, such as 2000", most=MOST_DRAWS)
    if found < 1 / alpha:
        raise BadInput(
            f"{who}: {found} resamples cannot show anything at alpha {alpha:g}; take {1 / alpha:.0f} or more"
        )
    return found
