"""The seam between what is evaluated and where: a case goes in, the future of an outcome comes out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from reprokit.errors import BadInput, Infrastructure
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status


class Engine(ABC):
    """A place where cases are evaluated. A context manager: what it started ends with it, whatever happened inside;
    after that it takes no more (RuntimeError)."""

    name: str  # as `--engine` and the JSON of `replay` spell it
    capacity: int = 1  # cases that it evaluates at once

    @abstractmethod
    def submit(self, case: Case) -> Future[Outcome]:
        """Evaluate a case soon. What breaks on the way is an INFRA outcome or the future's exception, never a hang."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Engines that hold processes, containers or threads end them here."""
        return None


def submitted(engine: Engine, case: Case) -> Future[Outcome]:
    """The future of an attempt, also where the engine breaks before it has one."""
    try:
        return engine.submit(case)
    except Exception as error:
        broken: Future[Outcome] = Future()
        broken.set_exception(error)
        return broken


def outcome_of(future: Future[Outcome]) -> Outcome:
    """Once it ended; what broke on the way is INFRA. Raises BadInput: the user can mend it, and the next attempt would
    meet it too."""
    try:
        return future.result()
    except BadInput:
        raise
    except Infrastructure as error:
        return Outcome(status=Status.INFRA, detail=str(error))
    except Exception as error:
        return Outcome(status=Status.INFRA, detail=f"{type(error).__name__}: {error}")
