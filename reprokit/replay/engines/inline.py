"""In this very process: for debugging, and for tests that want no process."""

from __future__ import annotations

from concurrent.futures import Future
from types import TracebackType

from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Outcome


class Inline(Engine):
    """Evaluates at once, in one session: the user's code runs in this process, and its crash is ours."""

    name = "inline"
    capacity = 1

    def __init__(self, incident: Incident, *, match: str | None = None) -> None:
        self._session = Session(incident, match=match)
        self._closed = False

    def submit(self, case: Case) -> Future[Outcome]:
        """Evaluated by the time it returns."""
        if self._closed:
            raise RuntimeError("this engine was closed")
        future: Future[Outcome] = Future()
        future.set_result(self._session.evaluate(case))
        return future

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._session.__exit__(kind, error, trace)
