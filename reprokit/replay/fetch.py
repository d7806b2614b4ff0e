"""An incident by its id, out of the store and into the user's cache: fetched once, and verified each time."""

from __future__ import annotations

import re

from reprokit import _files
from reprokit.errors import BadInput
from reprokit.incident import Incident

_ID = re.compile("[0-9a-f]{64}")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def fetched(id: str, store: str | None) -> Incident:
    """store: a URL or a folder; None: REPROKIT_STORE. Raises BadInput where none is named, or it has none."""
    from reprokit.replay.remote import INCIDENTS, shared
    from reprokit.store.objects import Store

    named = shared(store)
    if not named:
        raise BadInput(f"{id}: an incident's id, and no store to look in; give --store URL, or set REPROKIT_STORE")
    return Store(named).get(id, _files.user_cache() / INCIDENTS)
