"""Evaluate one case: restore everything, run the step, say what happened.

The only place where a case becomes an outcome. A session holds an incident in memory and the harness that was built for
it; each evaluation starts from the captured state, flags and generators, so that nothing of the one before is left as
far as the harness knows its state. Whether that is far enough is for the caller to check (`isolation="rebuild"`, or a
fresh process).
"""

from __future__ import annotations

import copy
import os
import platform
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Literal

import torch

from reprokit import failure, tree
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.harness import Harness, buffers, parameters, put_state, replaying
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.step import flags, rng
from reprokit.step.case import Case
from reprokit.step.load import build_harness, load_entrypoint
from reprokit.step.outcome import Outcome, Status
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.step.trace import Trace

Isolation = Literal["restore", "rebuild", "process"]


class Session:
    """An incident in memory, its source in a scratch folder, its harness built once. Use as a context manager.

    The user's code is imported into this process and finds its files in the scratch copy: an incident is never written
    to. own_process: this process exists for the session alone, so its working directory may become the captured one.
    """

    def __init__(self, incident: Incident, *, match: str | None = None, own_process: bool = False) -> None:
        self.incident = incident
        self._own_process = own_process
        self.layout = Layout.parse(incident.manifest.layout)
        self._match = match
        self._scratch = Path(tempfile.mkdtemp(prefix="reprokit-"))
        self._root = self._scratch / "source"
        self._packages = self._scratch / "packages"  # of no root: at capture, too, they were outside
        self._built: tuple[Any, Harness] | None = None  # for which config
        self.arguments: Mapping[str, Any] | None = None  # of the operation that the last traced case was led to
        self._batch = tree.pack(incident.batch())
        donor = incident.donor()
        self._donor = None if donor is None else tree.pack(donor)
        self._state, self._rng, self._flags = incident.state(), incident.rng(), incident.flags()
        self._config = incident.config()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    @property
    def harness(self) -> Harness | None:
        """The one built for the last evaluation."""
        return self._built[1] if self._built else None

    def evaluate(self, case: Case, isolation: Isolation = "restore") -> Outcome:
        """What this case comes to. Never raises for what the user's code does."""
        started = perf_counter()
        if missing := self._missing_device():
            return Outcome(status=Status.INFRA, detail=missing, host=platform.node())
        try:
            batch = self._batch_of(case)
            harness = self._harness_of(case, isolation)
            put_state(harness, self._state)
        except Exception as error:
            return Outcome(status=Status.INVALID, detail=_why(error), host=platform.node())
        return self._step(harness, batch, case, started)

    def _step(self, harness: Harness, batch: Any, case: Case, started: float) -> Outcome:
        switches = {**self._flags, **case.variant.flags}
        flags.put(switches)
        rng.put(self._rng) if case.rng == "captured" else rng.seed(case.rng)
        detail, begun = "", perf_counter()
        trace = Trace(harness, self._named(harness, batch)) if case.trace else None
        with flags.entered(switches), suppress(_Caught), Probe(harness) as probe, trace or nullcontext():
            try:
                run(
                    harness,
                    batch,
                    probe,
                    micro=self._state["loop"]["micro"],
                    until=None if case.thorough else self._until(),
                )
            except (Exception, SystemExit) as error:  # a step that exits must not end a worker that answers for others
                probe.fail(error, [self._root, *self._installed_roots()])
                detail = _why(error)
                raise _Caught from error
        seconds = perf_counter() - begun
        signature = probe.signature or failure.first(probe.symptoms)
        return Outcome(
            status=self._status(signature),
            signature=signature,
            symptoms=tuple(probe.symptoms),
            losses=probe.losses,
            fingerprint=probe.fingerprint(),
            seconds=seconds,
            total_seconds=perf_counter() - started,
            peak_memory=_peak_memory(),
            host=platform.node(),
            device=torch.cuda.get_device_name() if harness.device.type == "cuda" else harness.device.type,
            detail=detail,
            located=self._located(trace, probe) if trace else None,
        )

    def _named(self, harness: Harness, batch: Any) -> dict[str, torch.Tensor]:
        """What a step starts from, by the names that people know."""
        entries = {f"batch entry {name}": value for name, value in self.layout.leaves(batch).items()}
        entries |= {f"parameter {name}": value for name, value in parameters(harness).items()}
        entries |= {f"buffer {name}": value for name, value in buffers(harness).items()}
        return {name: value for name, value in entries.items() if isinstance(value, torch.Tensor)}

    def _located(self, trace: Trace, probe: Probe) -> dict[str, Any] | None:
        """Where the first symptom has its bad values from; the operation's arguments are kept in `arguments`."""
        suspect = probe.suspect()
        origin = trace.raised if suspect is None else trace.origin(suspect)
        self.arguments = origin.arguments if origin else None
        return origin.to_json() if origin else None

    def _status(self, signature: Signature | None) -> Status:
        if signature is None:
            return Status.PASS
        captured = self.incident.manifest.signature
        return Status.FAIL if captured and failure.same(signature, captured, self._match) else Status.OTHER

    def _until(self) -> Kind | None:
        """The last look that the captured signature needs."""
        captured = self.incident.manifest.signature
        if captured is None:
            return None
        if captured.kind in (Kind.NONFINITE_LOSS, Kind.NONFINITE_GRAD):
            return captured.kind
        return Kind.NONFINITE_LOSS if captured.kind is Kind.EXCEPTION and captured.where == "forward" else None

    def _batch_of(self, case: Case) -> Any:
        """Fresh tensors each time: a step may write into its batch."""
        if case.content == "donor" or case.heal:
            if self._donor is None:
                raise BadInput(
                    "the incident has no donor: the first step failed, so there was no healthy batch before it"
                )
            donor = tree.unpack(self._donor)
            if case.content == "donor":
                return donor
        batch = tree.unpack(self._batch)
        if case.heal:
            batch = self.layout.heal(batch, donor, case.heal)
        return self.layout.select(batch, case.keep) if case.keep else batch

    def _harness_of(self, case: Case, isolation: Isolation) -> Harness:
        config = _with(self._config, case.variant.config)
        if self._built and self._built[0] == config and isolation == "restore":
            return self._built[1]
        manifest, command = self.incident.manifest, self.incident.command()
        if not self._root.exists():
            self._unpack()
            if self._own_process and (folder := self._root / command.get("cwd", ".")).is_dir():
                os.chdir(folder)
        flags.put(self._flags)
        rng.seed(self._rng["initial_seeds"]["torch"])
        with replaying():
            build = load_entrypoint(manifest.entrypoint, self._root, command.get("path"), self._packages)
            harness = build_harness(build, manifest.entrypoint, copy.deepcopy(config))
        self._built = (config, harness)
        return harness

    def _unpack(self) -> None:
        shutil.copytree(self.incident.source, self._root) if self.incident.source.is_dir() else self._root.mkdir()
        if self.incident.packages.is_dir():
            shutil.copytree(self.incident.packages, self._packages)

    def _installed_roots(self) -> list[Path]:
        """An entrypoint inside an installed package has its source there."""
        package = sys.modules.get(self.incident.manifest.entrypoint.partition(":")[0].partition(".")[0])
        file = getattr(package, "__file__", None)
        return [Path(file).parent.parent] if file else []

    def _missing_device(self) -> str:
        wanted = str(self._flags.get("device", "cpu"))
        if wanted.startswith("cuda") and not torch.cuda.is_available():
            return f"captured on {wanted}, and this machine has no CUDA device: a CPU would run another step"
        return ""


def evaluate(case: Case, incident: Incident | None = None) -> Outcome:
    """One case in a session of its own."""
    with Session(incident or Incident.open(case.incident)) as session:
        return session.evaluate(case)


class _Caught(Exception):
    """Leaves the probe's context after an exception of the step was written down."""


def _with(config: Any, changes: Any) -> Any:
    """The config with dotted keys replaced. Raises BadInput where a key leads nowhere."""
    config = copy.deepcopy(config)
    for dotted, value in changes.items():
        *parents, last = dotted.split(".")
        place = config
        for key in parents:
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise BadInput(f"config has no key {dotted!r}; a variant can change what is there, not add to it")
        place[last] = value
    return config


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, BadInput) else "".join(traceback.format_exception(error))


def _peak_memory() -> int:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
