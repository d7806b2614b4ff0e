"""The first batches of a loader, and what keeps it from giving them.

A loader that raises, hangs or gives nothing has failed, whichever gates are asked; that is told once, before them, and
what did come is asked for all that. Nothing is kept of the loader but copies, made with all generators seeded.
"""

from __future__ import annotations

import copy
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from torch.utils._pytree import tree_leaves

from reprokit.capture.logs import one_line
from reprokit.errors import BadInput, ReprokitError
from reprokit.smoke import loaders
from reprokit.smoke.clock import Overdue, standing
from reprokit.smoke.gate import LAPS, OPENING, Finding, Subject, Verdict
from reprokit.smoke.laps import copied
from reprokit.step import rng

_LONGEST = 60  # characters of a batch that are shown
_Pair = tuple[Any, Mapping[str, Any] | None]  # a batch, and what is told of its frames


def taken(subject: Subject, loader: Any) -> Subject:
    """The subject with its batches, and with why there are none. Raises BadInput where the loader does."""
    if loader is None:
        return replace(subject, no_batches="the harness has no loader")
    rng.seed(subject.seed)
    pairs, trouble = _first(loader, subject)
    return replace(
        subject,
        batches=tuple(batch for batch, _ in pairs),
        times=tuple(told for _, told in pairs if told is not None),
        no_batches="" if pairs else trouble.observed if trouble else "",
        opening=(trouble,) if trouble else (),
    )


def _first(loader: Any, subject: Subject) -> tuple[list[_Pair], Finding | None]:
    """What came, and what kept the rest from coming; an end after the first batch does not."""
    pairs: list[_Pair] = []
    seconds = subject.clock.patience
    ended = _in_time(lambda: _fetched(loader, pairs), seconds)
    came = list(pairs)  # a thread that hangs may add to them later
    if (error := ended.error) is not None:
        which = f"batch {len(came) + 1}"
        late = isinstance(error, Overdue)
        observed = f"the loader gave no {which} in {seconds:g} s" if late else f"the loader raised {one_line(error)}"
        observed += loaders.where(error, subject.roots) + ("" if late else f", for {which}")
        trace = "".join(traceback.format_exception(error))
        return came, replace(_failed(observed, loaders.advice(error)), trace=trace)
    if not came and not ended.trouble:
        return came, _failed("the loader gives no batch", "check what it reads from, its batch size and drop_last")
    return came, ended.trouble


def _fetched(loader: Any, pairs: list[_Pair]) -> Finding | None:
    """Adds what comes; what is wrong with a batch, where no gate could ask of it."""
    for number, (batch, told) in enumerate(islice(_timed(loader), LAPS), start=1):
        which = f"batch {number} of the loader"
        try:
            empty = all(leaf is None for leaf in tree_leaves(batch))
            pair = copied(batch), copy.deepcopy(told)
        except Exception as error:
            kinds = "tensors, arrays, numbers, strings, and lists, tuples or dicts of them"
            return _failed(f"{which} cannot be copied: {one_line(error)}", f"let it hold {kinds}")
        if empty:
            observed = f"{which} has no tensors: it is {repr(batch)[:_LONGEST]}"
            return _failed(observed, "look at what its dataset and collate_fn return")
        pairs.append(pair)
    return None


def _failed(observed: str, advice: str) -> Finding:
    return Finding(
        gate=OPENING,
        check="the loader gives batches",
        expected=f"{LAPS} batches, or one and an end",
        observed=observed,
        verdict=Verdict.FAILED,
        advice=advice,
    )


@dataclass(slots=True)
class _Ended:
    trouble: Finding | None = None
    error: BaseException | None = None


def _in_time(fetch: Callable[[], Finding | None], seconds: float) -> _Ended:
    """Overdue where it takes too long: a worker that is stuck never says so. Such a thread ends with the process.
    Raises what is no word about batches."""
    ended = list[_Ended]()

    def work() -> None:
        try:
            ended.append(_Ended(fetch()))
        except BaseException as error:
            ended.append(_Ended(error=error))

    thread = threading.Thread(target=work, name="reprokit loader", daemon=True)
    thread.start()
    thread.join(seconds)
    if ended and isinstance(ended[0].error, ReprokitError | KeyboardInterrupt):
        raise ended[0].error
    assert thread.ident is not None
    return ended[0] if ended else _Ended(error=standing(thread.ident, seconds))


def _timed(loader: Any) -> Iterator[_Pair]:
    timed = getattr(loader, "timed", None)
    if not callable(timed):
        yield from ((batch, None) for batch in loader)
        return
    for pair in timed():
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Mapping)):
            raise BadInput(
                f"the loader's timed() yields a {type(pair).__name__}; expected a batch and a mapping of indices"
            )
        yield pair
