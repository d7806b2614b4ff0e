"""The dress rehearsal: at the first healthy step, show that an incident of this run would replay.

What would not is named at step 1, when it costs a minute to mend, and not when the one failure that matters is
captured.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from reprokit.errors import ReprokitError
from reprokit.incident import Incident
from reprokit.step.worker import child_environment

DEADLINE = 600.0  # seconds: starting a process, building, three steps; past that the step is too slow to rehearse


def rehearse(write: Callable[[Path], Path]) -> list[str]:
    """Write a snapshot of the step below the folder that `write` is given, replay it in a fresh process, and return
    what
    does not replay, a line each. Never raises for what goes wrong in it."""
    with tempfile.TemporaryDirectory(prefix="reprokit-rehearsal-") as scratch:
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
