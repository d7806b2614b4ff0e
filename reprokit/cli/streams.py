"""stdout and stderr, whoever reads them.

With `--json` stdout is for the one object that is the verb's answer. What a predicate of the user's prints, or a step
in this process, or a library in C, would stand before it: so all of that goes to stderr. And whoever reads may leave:
`| head -1` has what it wants, and the rest is said to nobody. That is no failure, and the exit code is still an answer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

_answers: IO[str] | None = None  # stdout, while it is kept for the answer


def whole() -> None:
    """Where a stream was closed before we came, nothing else may take its number: a journal would, and get its text."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115  # for as long as this process lives


@contextmanager
def kept_for_answer() -> Iterator[None]:
    """Only `answer` comes to stdout meanwhile."""
    global _answers
    before = _answers = sys.stdout
    own = before is sys.__stdout__  # else it is a test's, without a descriptor
    with ExitStack() as stack:
        if own:
            before.flush()
            _answers = stack.enter_context(os.fdopen(os.dup(1), "w", encoding="utf-8"))
            stack.callback(os.dup2, _answers.fileno(), 1)
            os.dup2(2, 1)
        sys.stdout = sys.stderr
        try:
            yield
        finally:
            _answers, sys.stdout = None, before


def answer(text: str) -> None:
    """A line on stdout."""
    with _whoever_reads():
        print(text, file=_answers or sys.stdout, flush=True)


def flush() -> None:
    """Before the end, where what could not be written would be no error that anybody catches."""
    with _whoever_reads():
        sys.stdout.flush()


@contextmanager
def _whoever_reads() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        unread(_answers or sys.stdout)


def unread(stream: IO[Any]) -> None:
    """What is still to be written, at the end of the process at the latest, goes nowhere."""
    with suppress(OSError, ValueError):  # it has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
