"""The libraries of the extra `checks`, imported where a statistic is asked for."""

from __future__ import annotations

from typing import Any

from reprokit.errors import BadInput


def scipy_stats(name: str) -> Any:
    """scipy.stats. Raises BadInput where it is not installed."""
    try:
        from scipy import stats
    except ImportError:
        raise BadInput(f"{name}: this statistic needs scipy; pip install 'reprokit[checks]'") from None
    return stats
