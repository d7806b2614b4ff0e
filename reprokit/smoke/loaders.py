"""Where a loader stands that raises, or gives nothing, and what to do about it.

Of a worker nothing is known here but that it is waited for: where it stands is in another process.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from traceback import walk_tb

from reprokit.failure import place
from reprokit.smoke.clock import Overdue

_WITHOUT = "num_workers=0 shows where (this changes the experiment: workers have generators of their own)"
_SLOW = "if it is only slow, --hang-after allows more"
_WORKERS = "_MultiProcessingDataLoaderIter."  # of torch, whose methods wait for workers, and raise what those did
_WAITING = ("_get_data", "_try_get_data", "_process_data")


def where(error: BaseException, roots: Sequence[Path]) -> str:
    """In brackets, to follow what is said of it; empty where nobody knows."""
    if _of_workers(error):
        return " (its workers are waited for)" if isinstance(error, Overdue) else ""  # what was raised there tells
    found = place(error, phase="forward", roots=roots)
    return f" ({found})" if found else ""


def advice(error: BaseException) -> str:
    """What to do next. Overdue: of a loader that gives nothing."""
    late = isinstance(error, Overdue)
    if _of_workers(error):
        return f"{_WITHOUT}; {_SLOW}" if late else _WITHOUT
    return f"it waits there; {_SLOW}" if late else "mend it there: it is the loader's own"


def _of_workers(error: BaseException) -> bool:
    """Whether it came of them, or is a wait for them; a sampler or a wrapper of the loader runs in this process."""
    names = (frame.f_code.co_qualname for frame, _ in walk_tb(error.__traceback__))
    return any(name.startswith(_WORKERS) and name.endswith(_WAITING) for name in names)
