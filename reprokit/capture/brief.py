"""A traceback that ends where training called the recorder: how that found a failure is no part of what failed.

The functions below that line are the recorder's own and the same for each failure, and push the line that names the
incident, and the user's own, off the screen.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

from reprokit.capture.recovery import IncidentCaptured

_OURS = (str(Path(__file__).parents[1]), contextlib.__file__)


class Brief:
    """Around what a loop calls: cuts the recorder's own frames off the end of an IncidentCaptured."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, IncidentCaptured):
            error.__traceback__ = _cut(error.__traceback__)


def _cut(trace: TracebackType | None) -> TracebackType | None:
    """Up to the last frame that is not ours: that of a step which has a recorder of its own, say."""
    kept, here = None, trace
    while here is not None:
        if not here.tb_frame.f_code.co_filename.startswith(_OURS):
            kept = here
        here = here.tb_next
    if kept is None:
        return None
    kept.tb_next = None
    return trace
