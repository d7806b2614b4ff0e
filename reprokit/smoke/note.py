"""What the incident of a failed gate says of it, in lines that a person reads, and `reprokit show` again.

An incident may come from anywhere: of its command nothing is taken but a call of the gates, with options that write
nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reprokit.smoke.gate import Finding  # whoever only reads needs no gate

_GATE, _ADVICE, _AGAIN, _EXPECTED = "smoke gate ", "advice: ", "again: ", ": expected "
_HARMLESS = ("--config", "--seed", "--hang-after", "--only")


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What was read."""

    gate: str
    said: tuple[str, ...]  # a line for each check, and one for what to do
    again: tuple[str, ...]  # the words of the command that asks this gate alone; empty where there is none

    @property
    def checks(self) -> tuple[str, ...]:
        """Those that failed."""
        return tuple(line.partition(_EXPECTED)[0] for line in self.said if _EXPECTED in line)


def text(findings: Sequence[Finding], again: Sequence[str]) -> str:
    """Of the failed checks of one gate. again: the words that ask it."""
    lines = [f"{_GATE}{findings[0].gate}"]
    for one in findings:
        lines.append(f"{one.check}{_EXPECTED}{one.expected}; observed {one.observed}")
        lines += [f"{_ADVICE}{one.advice}"] if one.advice else []
    lines += [f"{_AGAIN}{shlex.join(again)}"] if again else []
    return "\n".join(" ".join(line.split()) for line in lines)


def read(reason: str) -> Note | None:
    """None of an incident that no gate asked for."""
    first, *lines = reason.splitlines() or [""]
    if not first.startswith(_GATE):
        return None
    again = next((line.removeprefix(_AGAIN) for line in lines if line.startswith(_AGAIN)), "")
    said = tuple(line for line in lines if not line.startswith(_AGAIN))
    return Note(gate=first.removeprefix(_GATE), said=said, again=_harmless(again))


def _harmless(command: str) -> tuple[str, ...]:
    try:
        words = shlex.split(command)
    except ValueError:
        return ()
    options = words[3::2]
    asks = words[:2] == ["reprokit", "smoke"] and len(words) % 2 and not words[2].startswith("-")
    return tuple(words) if asks and all(one in _HARMLESS for one in options) else ()
