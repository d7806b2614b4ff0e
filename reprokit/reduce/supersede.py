"""A result in the place of the unfinished one that it goes on from: whoever looks into the folder finds one answer.

The unfinished one is ours, and known by name and id, so it may go; one that somebody changed, or moved, stays as it is.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace

from reprokit import _files
from reprokit.errors import BadInput
from reprokit.incident import DRAFT_PREFIX, Incident


def place(incident: Incident) -> dict[str, str]:
    """By which `supersede` knows it again."""
    return {"name": incident.path.name, "id": incident.manifest.id}


def supersede(new: Incident, unfinished: Mapping[str, str]) -> Incident:
    """The new one under the name of the unfinished one beside it, which is removed; where that is no longer what was
    written, the new one as it is. Killed in between, it leaves the new one under either name."""
    old = new.path.parent / unfinished["name"]
    try:
        if old.parent != new.path.parent or Incident.open(old).manifest.id != unfinished["id"]:
            return new
    except BadInput:
        return new
    aside = old.with_name(f"{DRAFT_PREFIX}{secrets.token_hex(8)}")
    old.rename(aside)
    new.path.rename(old)
    _files.sync(old.parent)
    shutil.rmtree(aside, ignore_errors=True)
    return replace(new, path=old)
