"""An incident on one screen: what failed first, what is known about it beside, what to do next last.

Text of the incident is shown through `Text`, where rich reads no markup, after hidden characters were made visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from reprokit.capture import counts
from reprokit.errors import some
from reprokit.incident import Incident
from reprokit.report import escape, reductions, texts
from reprokit.works import works

LINES = 8  # of a traceback: the frame that raised and its callers, and the rest still fits on the screen
ITEMS = 3  # of a list, before "and 12 more"
LONGEST = 200  # characters of one value


def incident_panel(incident: Incident) -> RenderableType:
    """What `reprokit show` prints, but for the next step: a command must not be wrapped as all else may be."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for label, value in _facts(incident):
        rows.add_row(label, Text("\n".join(map(_short, value.splitlines()))))
    parts: list[RenderableType] = [rows]
    if tail := (texts.traceback(incident) or texts.stuck(incident)).splitlines()[-LINES:]:
        parts += [Text(), Text(escape.plain("\n".join(tail)), style="dim", overflow="ellipsis", no_wrap=True)]
    title = Text(escape.line(texts.headline(incident)), style="bold red" if _failed(incident) else "bold green")
    return Panel(Group(*parts), title=title, title_align="left", padding=(1, 2))


def next_step(incident: Incident, path: Path | str) -> tuple[str, ...]:
    """The words of the command that comes after looking at it. path: what the user called it."""
    if incident.manifest.signature is None and (told := texts.smoked(incident)) and told.again:
        return told.again
    if works(incident)["replay"]:
        return ("reprokit", "bundle", str(path))
    failing = incident.manifest.signature is not None and not incident.manifest.certificate
    return reduce_it(path) if failing else ("reprokit", "replay", str(path))


def reduce_it(path: Path | str) -> tuple[str, ...]:
    return ("reprokit", "reduce", str(path), "-o", "reduced")


def _failed(incident: Incident) -> bool:
    """The step, or a gate that was asked of it."""
    return incident.manifest.signature is not None or texts.smoked(incident) is not None


def _facts(incident: Incident) -> Iterable[tuple[str, str]]:
    manifest = incident.manifest
    lengths = texts.sizes(incident)
    yield "incident", f"{incident.name}  {manifest.id[:12]}"
    if manifest.signature and manifest.signature.message:
        yield "message", manifest.signature.message
    if note := texts.smoked(incident):
        yield f"smoke {note.gate}", "\n".join(note.said)
    elif asked := texts.log(incident, "reason.txt"):
        yield "asked for", asked
    yield "symptoms", some([f"{one.kind} at {one.where}" for one in manifest.symptoms], ITEMS) or "none"
    yield "batch", texts.shape(lengths)
    if incident.rolls_forward:
        yield "state", f"made by running the {incident.rewindable()} steps before from one that was held"
    yield "donor", "the last healthy batch" if incident.donor() is not None else "none: no healthy step came before"
    yield "history", texts.history(incident)
    yield "entrypoint", manifest.entrypoint
    if manifest.world_size > 1:
        yield "ranks", "\n".join(texts.ranks(incident))
    yield "code", texts.code(manifest)
    yield "precision", texts.precision(incident)
    yield "host", texts.host(incident.environment(), incident.flags())
    yield "captured", manifest.created
    if counted := counts.seen(incident):
        yield "seen", f"{counted['times']} times, last at step {counted['last']}"
    for told in counts.fallbacks(incident)[-ITEMS:]:
        yield "in training", _fallback(told)
    yield "size", f"{texts.size(incident.size)} in {len(manifest.files)} files"
    if manifest.parent:
        yield ("reduced from" if manifest.certificate else "same as"), manifest.parent[:12]
    if differences := texts.escalation(incident):
        yield "escalated", "\n".join(differences)
    if manifest.certificate:
        yield "reduced to", "\n".join(reductions.certificate(manifest))
        if named := texts.samples(incident):
            yield "samples", "\n".join(named)
    if not_working := [f"{verb}: {reason}" for verb, reason in works(incident).items() if reason]:
        yield "not here", "\n".join(not_working)
    if manifest.left_out:
        yield "left out", "\n".join(dict.fromkeys(manifest.left_out))  # all: who shares an incident must read this
    yield "redacted", some(manifest.redacted, ITEMS) or "nothing"


def _fallback(told: Mapping[str, Any]) -> str:
    """What was tried when the step failed, so that training could go on."""
    failed = [name if outcome == "passed" else f"{name}: {outcome}" for name, outcome in told["tried"]]
    if told["helped"] is None:
        return f"at step {told['step']} nothing helped\n" + "\n".join(failed)
    return f"at step {told['step']} {told['helped']} helped\n" + "\n".join(failed[:-1])


def _short(value: str) -> str:
    shown = escape.line(value)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}..."
