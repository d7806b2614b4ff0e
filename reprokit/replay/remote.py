"""What a machine of a cluster does: fetch an incident by its id, and evaluate cases of it in an engine there.

Cases come and outcomes go as JSON, and incidents through the store. A machine keeps what it fetched, so that all
attempts there, of this run and of later ones, cost one transfer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from reprokit import _files
from reprokit.errors import BadInput
from reprokit.replay.choose import open_engine
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.step.case import Case
from reprokit.store.objects import Store

INCIDENTS = "incidents"  # below the cache of the user there


def request(store: str, there: EngineOptions, foreign: bool) -> dict[str, Any]:
    """What a host is made of, as plain data. there: of the engine on the node."""
    return {"store": store, "there": there.to_json(), "foreign": foreign}


def shared(store: str | None) -> str | None:
    """The store that was named, by an option or REPROKIT_STORE; a folder by its whole path."""
    named = store or os.environ.get("REPROKIT_STORE")
    return named if not named or "://" in named else str(Path(named).resolve())


def own_store() -> str:
    """A store in this user's cache, for clusters that see it."""
    return str(_files.user_cache() / "store")


class Host:
    """One engine, for the cases of one replay. Errors are reprokit's own."""

    def __init__(self, made: Mapping[str, Any], jobs: int | None) -> None:
        """made: see `request`. jobs: attempts at once here."""
        self._url, self._foreign = made["store"], made["foreign"]
        self._options = replace(EngineOptions.from_json(made["there"]), jobs=jobs)
        self._paths: dict[str, Path] = {}
        self._engine: Engine | None = None

    def open(self, id: str) -> None:
        """Fetch the incident, and open the engine for it; what fails here fails for every attempt."""
        incident = self._store().get(id, self._folder())
        self._paths[id] = incident.path
        self._engine = open_engine(incident, self._options, foreign=self._foreign)
        self._engine.__enter__()

    def evaluate(self, id: str, case: str) -> str:
        """The outcome's JSON. Called from as many threads as there are jobs."""
        assert self._engine is not None
        if id not in self._paths:
            self._paths[id] = self._store().get(id, self._folder()).path
        data = json.loads(case)
        outcome = self._engine.submit(replace(Case.from_json(data), incident=self._paths[id])).result()
        return json.dumps(outcome.to_json(), allow_nan=False)

    def close(self) -> None:
        """End what runs."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.__exit__(None, None, None)

    def _store(self) -> Store:
        return Store(self._url)

    def _folder(self) -> Path:
        return _files.user_cache() / INCIDENTS


def evaluate(asked: Mapping[str, Any], out: Path) -> None:
    """One case with a host of its own, in a job of a batch system. The outcome is written whole or not at all; what the
    user can mend is a line beside it, with the suffix `.bad`."""
    host = Host(asked["host"], 1)
    try:
        host.open(asked["id"])
        _files.write_whole(out, host.evaluate(asked["id"], json.dumps(asked["case"])).encode())
    except BadInput as error:
        _files.write_whole(out.with_suffix(".bad"), str(error).encode())
    finally:
        host.close()
