"""Text from an incident, made harmless where people read it.

An incident comes from elsewhere: a message, a path or a branch name in it may hold escape sequences for a terminal,
Markdown that draws a false heading, HTML, a mention that calls a stranger into the issue, or characters that reverse
what is read. So nothing of it is ever prose: in Markdown it stands in code, where nothing is interpreted, and what
cannot be seen is shown by its number. Pure.
"""

from __future__ import annotations

import re
from shlex import quote
from unicodedata import category

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})  # controls, bidi marks, surrogates
LONGEST = 20_000  # characters of one value in a page: GitHub takes 65,536 in an issue


def plain(text: str, *, keep: str = "\n\t") -> str:
    """Everything visible: hidden characters by their number, but for those in `keep`."""
    return "".join(c if c in keep or category(c) not in HIDDEN else _number(c) for c in text)


def line(text: object) -> str:
    """One visible line."""
    return plain(re.sub(r"\s+", " ", str(text)).strip(), keep="")


def code(text: object) -> str:
    """Inline Markdown code with this text in it, whatever it holds."""
    shown = line(text)[:LONGEST]
    if not shown:
        return "(empty)"
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: object) -> str:
    """The same in a table, where a bar would end the cell even inside code."""
    return code(text).replace("|", "\\|")


def block(text: object, language: str = "") -> str:
    """A fenced Markdown block; of a long text its end, since a traceback says what failed in its last line."""
    shown = plain(str(text).replace("\r\n", "\n")).strip("\n")
    if len(shown) > LONGEST:
        shown = f"[{len(shown) - LONGEST} characters left out]\n{shown[-LONGEST:]}"
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def sh(text: object) -> str:
    """One word of a shell, whatever is in it."""
    return quote(line(text))


def _number(character: str) -> str:
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)
