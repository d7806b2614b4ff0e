"""How rows of the table say what was counted."""

from __future__ import annotations


def counted(count: int, what: str) -> str:
    """As in 1 step, 2 steps."""
    return f"{count:,} {what}{'s' * (count != 1)}"
