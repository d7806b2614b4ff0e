"""What the ranks of a run tell each other beside training: short messages in the store through which they met.

Collectives are no way to say that all must stop: a rank that failed would have to join one, and those that wait for it
already sit in another. A store can be written and looked at by each rank when it likes. It is asked over a connection
of its own, so that nobody in training ever waits for an answer to us.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, Self, TypeVar

from reprokit.step import group

Message = dict[str, Any]
T = TypeVar("T")


class Gone(Exception):
    """The store does not answer: the process that kept it has ended."""


class Board:
    """Messages by key. Each is written once. store: of torch.distributed; place: a prefix, this board's alone."""

    def __init__(self, store: Any, place: str, *, rank: int, size: int, backend: str = "gloo") -> None:
        self.rank, self.size, self.backend = rank, size, backend
        self._store, self._place = store, place

    @classmethod
    def of_run(cls, place: str) -> Self | None:
        """That of the default process group; None where there is none, or it has one rank."""
        found = group.describe()
        if not found or found["size"] < 2:
            return None
        from torch.distributed.distributed_c10d import _get_default_store

        store = _get_default_store()
        with suppress(Exception):  # not every store can: then it is shared with training, whose waits in it are short
            store = store.clone()  # type: ignore[attr-defined]
        return cls(store, place, **found)

    def post(self, key: str, message: Mapping[str, Any]) -> None:
        self._ask(lambda: self._store.set(self._key(key), json.dumps(message)))

    def first(self, key: str, message: Mapping[str, Any]) -> Message:
        """Post it unless somebody was faster; what stands there."""
        return self._read(self._ask(lambda: self._store.compare_set(self._key(key), "", json.dumps(message))))

    def look(self, key: str) -> Message | None:
        """None where nothing is. Never waits for it."""
        if not self._ask(lambda: self._store.check([self._key(key)])):
            return None
        return self._read(self._ask(lambda: self._store.get(self._key(key))))

    def all(self, keys: Collection[str]) -> bool:
        """Whether something stands under each."""
        return not keys or bool(self._ask(lambda: self._store.check([self._key(key) for key in keys])))

    def _key(self, key: str) -> str:
        return f"{self._place}/{key}"

    @staticmethod
    def _read(found: bytes) -> Message:
        message: Message = json.loads(found)
        return message

    @staticmethod
    def _ask(ask: Callable[[], T]) -> T:
        try:
            return ask()
        except Exception as error:
            raise Gone(" ".join(str(error).split())[:200]) from error
