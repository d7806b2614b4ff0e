"""Where templates are, and how they are filled.

In a checkout `templates/` lies beside the package; a wheel carries it inside. Templates are ours, what is filled in is
not: the environment is sandboxed, refuses a name that it was not given, escapes in HTML, and has a filter for each
place where text from an incident may stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, select_autoescape
from jinja2.sandbox import SandboxedEnvironment

from reprokit.errors import Infrastructure
from reprokit.report import escape


@cache
def folder() -> Path:
    """The folder with the templates."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "templates", package.parent / "templates"):
        if (candidate / "bundle").is_dir():
            return candidate
    raise Infrastructure(f"{package}: no templates beside or inside the package; install reprokit again")


def render(name: str, values: Mapping[str, Any]) -> str:
    """A template filled in: `bundle/README.md.j2`."""
    return _environment().get_template(name).render(values)


def static(name: str) -> bytes:
    """A file that goes out as it is: `bundle/reproduce.py`."""
    return (folder() / name).read_bytes()


@cache
def _environment() -> SandboxedEnvironment:
    environment = SandboxedEnvironment(
        loader=FileSystemLoader(folder()),
        undefined=StrictUndefined,
        autoescape=select_autoescape(enabled_extensions=("html", "html.j2")),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: getattr(escape, name) for name in ("line", "code", "cell", "block", "sh")}
    return environment
