"""`MANIFEST.sha256`: what a bundle holds, in the form that `sha256sum -c` reads.

Three lines of comment say which schema this is, whose incident is inside and how many bytes there are; then one line a
file. A name with a newline or a backslash is escaped as sha256sum does it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = 1
MANIFEST = "MANIFEST.sha256"


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """What `MANIFEST.sha256` says."""

    schema: int
    incident: str  # id
    bytes: int  # of all files together, without this one
    files: Mapping[str, str]  # path below the top folder -> sha256


class Newer(ValueError):
    """Not damaged: written after our time."""


def format_index(index: Index) -> bytes:
    head = [f"# reprokit bundle {index.schema}", f"# incident {index.incident}", f"# bytes {index.bytes}"]
    lines = [_format_line(path, digest) for path, digest in index.files.items()]
    return "\n".join([*head, *lines, ""]).encode("utf-8", "surrogateescape")


def parse_index(data: bytes) -> Index:
    """Strict: what `format_index` writes, and nothing else. ValueError names the line."""
    schema, incident, size, *lines = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    files: dict[str, str] = {}
    version = int(_after("# reprokit bundle ", schema))
    if version > SCHEMA:
        raise Newer(f"written by a newer reprokit (schema {version}, this one reads {SCHEMA}); upgrade reprokit")
    for line in lines:
        path, digest = _parse_line(line)
        if path in files:
            raise ValueError(f"{MANIFEST} lists {path!r} twice")
        files[inside(path)] = digest
    total = int(_after("# bytes ", size))
    return Index(schema=version, incident=_after("# incident ", incident), bytes=total, files=files)


def inside(path: str) -> str:
    """The path, if it names something below the folder that it is taken from."""
    if "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise ValueError(f"{path!r} is a path outside its folder")
    return path


def _after(prefix: str, line: str) -> str:
    if not line.startswith(prefix):
        raise ValueError(f"{MANIFEST} says {line[:80]!r} where {prefix!r} was expected")
    return line.removeprefix(prefix)


def _format_line(path: str, digest: str) -> str:
    """As sha256sum writes it: a name with a newline or a backslash is escaped, and the line begins with a backslash."""
    escaped = path.replace("\\", "\\\\").replace("\n", "\\n")
    mark = "\\" if escaped != path else ""
    return f"{mark}{digest}  {escaped}"


def _parse_line(line: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\\?)([0-9a-f]{64})  (.*)", line)
    if not match:
        raise ValueError(f"{MANIFEST} has the line {line[:80]!r}")
    escaped, digest, path = match.groups()
    if escaped:
        path = re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], path)
    return path, digest
