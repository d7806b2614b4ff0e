"""A command in place of a harness: words with places in them that each attempt fills. Pure.

The text is split as a shell would split it, and never seen by one: a word stays one word, whatever the path that is put
into it. A place is a name in braces; other braces are text, and `{{name}}` is the text `{name}`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reprokit.errors import BadInput

PLACES = {
    "config": "the config, a file",
    "batch": "the batch, a safetensors file",
    "incident": "the incident's folder",
    "out": "a folder for what the attempt writes",
    "seed": "a number",
    "attempt": "its number, from 0",
}
_PLACE = re.compile(r"\{\{(\w+)\}\}|\{([A-Za-z_]\w*)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What an attempt runs."""

    words: tuple[str, ...]

    @property
    def places(self) -> set[str]:
        """Those that it has."""
        return {found[2] for word in self.words for found in _PLACE.finditer(word) if found[2]}

    def filled(self, values: Mapping[str, str]) -> list[str]:
        """For one attempt. What is put in is not looked at again."""
        put = lambda found: values[found[2]] if found[2] else f"{{{found[1]}}}"
        return [_PLACE.sub(put, word) for word in self.words]


def parse(text: str) -> Command:
    """Raises BadInput for what is no command, and for places that nobody fills."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"--script: {str(error).lower()} in {text!r}; close it, or escape it") from None
    if not words or not words[0]:
        raise BadInput('--script: no command; such as --script "python train.py --config {config}"')
    if any("\0" in word for word in words):
        raise BadInput("--script: has a NUL character, which no command can")
    command = Command(words=tuple(words))
    if unknown := sorted(command.places - PLACES.keys()):
        known = ", ".join(f"{{{name}}}" for name in PLACES)
        raise BadInput(
            f"--script: nothing fills {{{unknown[0]}}}; places are {known}; {{{{{unknown[0]}}}}} is that text itself"
        )
    return command


def shown(words: Sequence[str]) -> str:
    """As one could type it."""
    return shlex.join(words)
