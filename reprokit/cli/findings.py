"""What the gates found, for people: failures first, each with what to do, then what passed, then what was not asked.

A row has five cells. On a screen of eighty columns they would be slivers, so there each row is a paragraph; where
nobody looks at a screen, as in a log, the table has the width that it needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reprokit.report import escape
from reprokit.smoke.gate import Finding, Verdict
from reprokit.smoke.smoke import Report

LEAST = 100  # columns of a screen that a table is drawn on: below it cells of five words break up
LOG = 160  # of a table in a log

_STYLE = {Verdict.PASSED: "green", Verdict.FAILED: "bold red", Verdict.NOT_APPLICABLE: "dim"}
_SHOWN = {Verdict.PASSED: "passed", Verdict.FAILED: "FAILED", Verdict.NOT_APPLICABLE: "n/a"}  # as wide as it must be
_COUNTED = {Verdict.FAILED: "failed", Verdict.PASSED: "passed", Verdict.NOT_APPLICABLE: "not applicable"}


def answer(report: Report) -> Text:
    """The first line. A pass names the gates that were not asked: it says nothing of them."""
    said = ", ".join(f"{count} {word}" for verdict, word in _COUNTED.items() if (count := report.count(verdict)))
    unasked = "; ".join(f"{', '.join(gates)} ({escape.line(why)})" for why, gates in report.not_asked.items())
    said += f"; not asked: {unasked}" if unasked else ""
    if report.passed:
        return Text.assemble(("PASSED", "bold green"), f"  {said}")
    if report.failed_gates:
        return Text.assemble(("FAILED", "bold red"), f"  {', '.join(report.failed_gates)}; {said}")
    return Text.assemble(("NOTHING ASKED", "bold red"), f"  {said or 'no gate'}: this is no pass")


def show(report: Report, console: Console) -> None:
    """All rows."""
    asked = [one for one in report.findings if one.verdict is not Verdict.NOT_APPLICABLE]
    asked.sort(key=lambda one: one.verdict is not Verdict.FAILED)
    if not console.is_terminal:
        console.width = LOG
    if asked:
        rows = ((_verdict(one), _said(one)) for one in asked)
        console.print(_table(asked) if console.width >= LEAST else _paragraphs(rows), soft_wrap=False)
    label = Text(_SHOWN[Verdict.NOT_APPLICABLE])
    unasked = _paragraphs((label, line) for line in _reasons(report))
    if unasked.rows:
        console.print(unasked, soft_wrap=False, style="dim")


def _table(asked: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 1))
    for title in ("gate", "check", "expected", "observed", "verdict"):
        table.add_column(title, overflow="fold", no_wrap=title in ("gate", "verdict"))
    last: tuple[str, Verdict] | None = None
    for one in asked:
        gate = one.gate if (one.gate, one.verdict) != last else ""
        observed = f"{escape.line(one.observed)}\n{_next(one)}".rstrip()
        cells = (gate, escape.line(one.check), escape.line(one.expected), observed)
        table.add_row(*map(Text, cells), _verdict(one))
        last = one.gate, one.verdict
    return table


def _paragraphs(rows: Iterable[tuple[Text, str]]) -> Table:
    """The same without columns for cells: a verdict, and lines beside it."""
    grid = Table.grid(padding=(0, 1))
    for verdict, said in rows:
        grid.add_row(verdict, Text(said, overflow="fold"))
    return grid


def _said(one: Finding) -> str:
    line = escape.line(f"{one.gate}, {one.check}: {one.observed} (expected: {one.expected})")
    return f"{line}\n{_next(one)}".rstrip()


def _reasons(report: Report) -> Iterator[str]:
    """A line for each reason why something was not asked, whichever gates met it."""
    nothing = {gate for gates in report.not_asked.values() for gate in gates}
    reasons: dict[str, dict[str, list[str]]] = {}
    for one in report.findings:
        if one.verdict is Verdict.NOT_APPLICABLE:
            reasons.setdefault(one.because, {}).setdefault(one.gate, []).append(one.check)
    for because, gates in reasons.items():
        said = (f"{gate} ({'all of it' if gate in nothing else ', '.join(checks)})" for gate, checks in gates.items())
        yield escape.line(f"{because}: {'; '.join(said)}")


def _next(one: Finding) -> str:
    return f"next: {escape.line(one.advice)}" if one.advice else ""


def _verdict(one: Finding) -> Text:
    return Text(_SHOWN[one.verdict], style=_STYLE[one.verdict])
