"""An incident on one screen: what failed first, what is known about it beside, what to do next last.

Text of the incident is shown through `Text`, where rich reads no markup, after hidden characters were made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from reprokit.incident import Incident
from reprokit.report import escape, texts

LINES = 8  # of a traceback: the frame that raised and its callers, and the rest still fits on the screen
ITEMS = 3  # of a list, before "and 12 more"
LONGEST = 200  # characters of one value


def incident_panel(incident: Incident, *, path: Path | None = None) -> RenderableType:
    """What `reprokit show` prints. path: what the user called it, where that is not its folder."""
    manifest = incident.manifest
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, value in _facts(incident):
        rows.add_row(label, Text(_short(value)))
    parts: list[RenderableType] = [rows]
    if tail := texts.traceback(incident).splitlines()[-LINES:]:
        parts += [Text(), Text(escape.plain("\n".join(tail)), style="dim", overflow="ellipsis", no_wrap=True)]
    title = Text(escape.line(texts.headline(manifest)), style="bold red" if manifest.signature else "bold green")
    panel = Panel(Group(*parts), title=title, title_align="left", padding=(1, 2))
    return Group(panel, Text(f"next: {_next(incident, escape.line(escape.sh(path or incident.path)))}"))


def _facts(incident: Incident) -> Iterable[tuple[str, str]]:
    manifest = incident.manifest
    lengths = texts.sizes(incident)
    yield "incident", f"{incident.path.name}  {manifest.id[:12]}"
    if manifest.signature and manifest.signature.message:
        yield "message", manifest.signature.message
    yield "symptoms", _some([f"{one.kind} at {one.where}" for one in manifest.symptoms]) or "none"
    yield "batch", texts.shape(lengths)
    yield "donor", "the last healthy batch" if incident.donor() is not None else "none: no healthy step came before"
    yield "entrypoint", manifest.entrypoint + (f", {manifest.world_size} ranks" if manifest.world_size > 1 else "")
    yield "code", f"commit {manifest.commit[:12]}" if manifest.commit else "no commit: outside a git repository"
    yield "host", texts.host(incident.environment(), incident.flags())
    yield "captured", manifest.created
    yield "size", f"{texts.size(incident.size)} in {len(manifest.files)} files"
    if manifest.parent:
        yield "reduced from", manifest.parent[:12]
    if manifest.left_out:
        yield "left out", _some(manifest.left_out)
    if manifest.redacted:
        yield "redacted", _some(manifest.redacted)


def _next(incident: Incident, path: str) -> str:
    return f"reprokit replay {path}" if incident.manifest.parent else f"reprokit reduce {path} -o reduced"


def _some(items: Sequence[str]) -> str:
    more = f" and {len(items) - ITEMS} more" if len(items) > ITEMS else ""
    return ", ".join(items[:ITEMS]) + more


def _short(value: str) -> str:
    shown = escape.line(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
