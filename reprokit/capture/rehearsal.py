"""The dress rehearsal: at the first healthy step, show that an incident of this run would replay.

What would not is named at step 1, when it costs a minute to mend, and not when the one failure that matters is
captured.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from torch.nn.parameter import is_lazy

from reprokit._scratch import Scratch
from reprokit.capture.again import in_company
from reprokit.capture.logs import one_line
from reprokit.errors import ReprokitError
from reprokit.harness import Harness, parameters
from reprokit.incident import Incident
from reprokit.step.worker import child_environment

DEADLINE = 600.0  # seconds: starting a process, building, three steps; past that the step is too slow to rehearse
BELOW = 1 << 30  # bytes of state: the rehearsal writes and reads it once, a second or two
STEPS = 2  # healthy ones: the first shows what cannot replay at all, the second what has moved since `build`

log = logging.getLogger("reprokit")


class Rehearsals:
    """Of the first healthy steps of a run. wanted: "auto" does while the state is small. out: of the incidents."""

    def __init__(self, harness: Harness, wanted: bool | Literal["auto"], out: Path) -> None:
        size = _state_bytes(harness)
        if wanted == "auto" and size >= BELOW:
            log.warning("no rehearsal: the state has %.1f GB; Recorder(rehearse=True) does it all the same", size / 1e9)
            wanted = False
        self._left = STEPS if wanted else 0
        self._out = out
        self.shown: list[int] = []  # steps that replayed

    def after(self, step: int, write: Callable[[Path], Path]) -> list[str]:
        """A healthy step has ended: what of it does not replay, a line each. Never raises."""
        if self._left and in_company():
            log.info("no rehearsal: a step of several ranks is not run beside them")
            self._left = 0
        if not self._left:
            return []
        try:
            findings = rehearse(write)
        except Exception as trouble:
            findings = [f"the rehearsal broke: {one_line(trouble)}"]
        self._left = 0 if findings else self._left - 1  # what is known to be wrong need not be shown twice
        if not findings:
            self.shown.append(step)
        if len(self.shown) == STEPS:  # the one sign of life of a recorder that finds nothing
            steps = " and ".join(map(str, self.shown))
            log.info("steps %s replay bit for bit in a fresh process; incidents go to %s", steps, self._out)
        return findings


def rehearse(write: Callable[[Path], Path]) -> list[str]:
    """Write a snapshot of the step below the folder that `write` is given, replay it in a fresh process, and return
    what
    does not replay, a line each. Never raises for what goes wrong in it."""
    with Scratch("rehearsal") as scratch:
        try:
            incident = Incident.open(write(Path(scratch)))
        except (ReprokitError, OSError) as error:
            return [f"a snapshot of this step cannot be written: {error}"]
        out, log = Path(scratch) / "findings.json", Path(scratch) / "log.txt"
        command = [sys.executable, "-m", "reprokit.step.rehearse", str(incident.path), str(out)]
        with log.open("wb") as stream:
            try:
                subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env=child_environment(incident) | {"TMPDIR": scratch},
                    timeout=DEADLINE,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return [f"a fresh process did not replay this step within {DEADLINE:g} s"]
        if out.exists():
            return [str(line) for line in json.loads(out.read_text())]
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
        return [f"a fresh process that should replay this step died: {' '.join(tail)}"]


def _state_bytes(harness: Harness) -> int:
    """Of parameters and, for an optimizer with two moments, what it will keep."""
    return 3 * sum(p.numel() * p.element_size() for p in parameters(harness).values() if not is_lazy(p))
