"""How all benchmarks print their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def rows_table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| what | value | low | high | unit |"
    yield "|---|---|---|---|---|"
    for one in rows:
        yield f"| {one['name']} | {one['value']:.4g} | {one['low']:.4g} | {one['high']:.4g} | {one['unit']} |"
