"""The journal that a reduction goes on with: where it is, what it belongs to, which answers are good, what stays of it.

It stays where there is something to go on from: a budget that ended, an interruption, a machine that broke. Where the
incident does not fail here, or an option was refused before anything was known, nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from platform import machine, node, python_version
from typing import Any

import torch

import reprokit
from reprokit.errors import BadInput, Interrupted
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.pipeline import Options, Subject
from reprokit.reduce.isolation import NotReproduced, Unfinished
from reprokit.reduce.journal import Journal
from reprokit.reduce.supersede import place, supersede
from reprokit.step.outcome import Outcome

AGAIN = "the same command, with a larger --budget or none"
_FORMAT = 3  # of the journal: another one would ask in other words


@contextmanager
def journal(subject: Subject, out: Path, options: Options, asked: Mapping[str, Any]) -> Iterator[Journal]:
    """Open while the reduction goes on. asked: what else is searched for, as plain data.

    What ends it without a result says so in one line, with where it goes on.
    """
    out.mkdir(parents=True, exist_ok=True)
    with _opened(subject, out, options, asked) as held:
        new = not held.answers
        try:
            yield held
        except NotReproduced:
            _forget(held, out)
            raise
        except BadInput:
            if new:  # one that goes on was asked for in words that were good
                _forget(held, out)
            raise
        except Unfinished as error:
            raise Unfinished(f"{error}{_kept(held, out, AGAIN)}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"interrupted{_kept(held, out, 'the same command')}") from None


def placed(held: Journal, what: str, incident: Incident, *, complete: bool) -> Incident:
    """A result in the place of the unfinished one of an earlier run; noted where this one is unfinished as well."""
    if before := held.unfinished.get(what):
        incident = supersede(incident, before)
    if not complete:
        held.published(what, place(incident))
    return incident


def path_of(subject: Subject, out: Path) -> Path:
    """Where the evaluations of a reduction are written while it goes on."""
    return out / f"{subject.incident.name}.journal.jsonl"


def header(subject: Subject, options: Options, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for answers to be good again: what is asked, and what numbers depend on."""
    contained = subject.foreign and not options.trust
    made_by = {"reprokit": reprokit.__version__, "torch": None if contained else str(torch.__version__)}
    what = {"incident": subject.incident.manifest.id, "match": options.match, **asked}
    return {"journal": _FORMAT, **made_by, "contained": contained, **what}


def good_again(outcome: Outcome, was: Any, timeout: float) -> bool:
    """Of all circumstances a deadline alone may change an answer: a hang is one that was given no longer."""
    if outcome.signature and outcome.signature.kind is Kind.HANG:
        return isinstance(was, int | float) and was >= timeout
    return outcome.total_seconds < timeout


def _opened(subject: Subject, out: Path, options: Options, asked: Mapping[str, Any]) -> Journal:
    about = {"timeout": options.timeout, "host": node(), "machine": machine(), "python": python_version()}
    return Journal.open(
        path_of(subject, out),
        header(subject, options, asked),
        about=about,
        read=lambda answer, about: good_again(Outcome.from_json(answer), about.get("timeout"), options.timeout),
    )


def _kept(held: Journal, out: Path, again: str) -> str:
    """For the end of a line."""
    if not held.answers:
        _forget(held, out)
        return "; nothing was answered yet, so nothing is kept"
    count = sum(map(len, held.answers.values()))
    return f"; {count} answer{'s' * (count != 1)} kept in {held.path}: to go on from there, {again}"


def _forget(held: Journal, out: Path) -> None:
    held.remove()
    with suppress(OSError):
        out.rmdir()  # if this made it
