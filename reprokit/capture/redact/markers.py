"""What stands in a secret's place: as long, on as many lines, and of the same form.

So a patch counts the same lines, a quoted string stays one, and what takes a value apart (a hexadecimal number, digits)
still can. Letters and digits only: `[redacted]` would be a list in YAML and a pattern in a shell.
"""

from __future__ import annotations

import re

WORD = "REDACTED"
MARKED = re.compile(r"REDACTEDx*|f{16,}|0{16,}")  # in running text
STARTS = (WORD, "f" * 16, "0" * 16)  # a text without these has no markers
_HEX = re.compile(r"[0-9a-fA-F]{16,}")  # shorter ones are words and numbers as well


def marker(secret: str) -> str:
    """In place of one line of text."""
    if secret.isascii() and secret.isdigit():
        return "0" * len(secret)
    if _HEX.fullmatch(secret):
        return "f" * len(secret)  # and not zeros, which YAML would read as a number
    return (WORD + "x" * (len(secret) - len(WORD)))[: len(secret)]


def is_marker(text: str) -> bool:
    return text == marker(text)


def value_marker(secret: str | int | float) -> str | int | float:
    """In place of a plain value, of its type: what is built from a configuration must still build."""
    return marker(secret) if isinstance(secret, str) else type(secret)(0)
