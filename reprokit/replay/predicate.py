"""A user's own word on whether an attempt is the failure: a function of the outcome's JSON that returns True or False.

It runs here, in the process that judges, and never where the incident's code runs: it is asked about what came out. An
attempt that the machinery spoiled says nothing, so it is not asked about that.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import ModuleType
from typing import Any

from reprokit.errors import BadInput
from reprokit.replay.strata import SPOILED
from reprokit.step.outcome import Outcome, Status

_HOW = "give module:function or file.py:function"


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicate:
    """name: as it was given. digest: of the file that it is in, so that attempts of another one are not mixed in."""

    name: str
    digest: str
    function: Callable[[dict[str, Any]], object]

    def judged(self, outcome: Outcome) -> Outcome:
        """FAIL where it says so; else what the outcome is without being that failure."""
        if outcome.status in SPOILED:
            return outcome
        try:
            fails = self.function(outcome.to_json())
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit too, whose code would be taken for a verdict
            raise BadInput(f"--predicate {self.name}: raised {type(error).__name__}: {error}; mend it") from error
        if type(fails) is not bool:
            raise BadInput(f"--predicate {self.name}: returned {type(fails).__name__}; return True or False")
        if fails:
            return replace(outcome, status=Status.FAIL)
        return replace(outcome, status=Status.OTHER) if outcome.status is Status.FAIL else outcome


def load(name: str) -> Predicate:
    """Raises BadInput where there is no such function."""
    where, _, function = name.rpartition(":")
    if not where or not function:
        raise BadInput(f"--predicate {name}: not a function's place; {_HOW}")
    try:
        module = _file(Path(where)) if where.endswith(".py") else _module(where)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise BadInput(f"--predicate {name}: cannot be imported ({type(error).__name__}: {error}); {_HOW}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise BadInput(f"--predicate {name}: {where} has no function {function}; {_HOW}")
    file = getattr(module, "__file__", None)
    digest = sha256(Path(file).read_bytes()).hexdigest() if file else ""
    return Predicate(name=name, digest=digest, function=found)


def _file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("reprokit_predicate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> ModuleType:
    """One that is installed, or beside where the user stands."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(here)
