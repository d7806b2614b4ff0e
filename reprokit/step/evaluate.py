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
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from pprint import pformat
from time import perf_counter
from types import TracebackType
from typing import Any, Literal

import torch

from reprokit import failure, tree
from reprokit._scratch import Scratch
from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.harness import Harness, State, put_state, replaying, take_state
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.step import between, detectors, flags, group, precision, rewind, rng, rows, smooth, values, variants
from reprokit.step.case import Case, Variant
from reprokit.step.deadline import patience
from reprokit.step.evidence import Evidence
from reprokit.step.follow import Follower
from reprokit.step.load import build_harness, load_entrypoint
from reprokit.step.operations import Operations
from reprokit.step.outcome import Outcome, Status
from reprokit.step.probe import Probe
from reprokit.step.refit import refit, told
from reprokit.step.run import run
from reprokit.step.trace import Trace
from reprokit.step.unused import unused

_STUCK = 0.8  # of the time that a step may take, after which one that is looked into says where it is
Isolation = Literal["restore", "rebuild", "process"]
Look = Trace | rows.Watch | Operations | Evidence

_SEEN_AT = {  # by kind, the look that shows it
    Kind.NONFINITE_LOSS: Kind.NONFINITE_LOSS,
    Kind.LOSS_SPIKE: Kind.NONFINITE_LOSS,
    Kind.COLLAPSE: Kind.NONFINITE_LOSS,  # its look is before the step
    Kind.NONFINITE_GRAD: Kind.NONFINITE_GRAD,
    Kind.GRAD_SPIKE: Kind.NONFINITE_GRAD,
}


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
        self._temporary = Scratch("session")
        self._scratch = Path(self._temporary.name)
        self._root = self._scratch / "source"
        self._packages = self._scratch / "packages"  # of no root: at capture, too, they were outside
        self._built: _Built | None = None
        self._original: State | None = None  # of a harness just built from the captured config
        self.arguments: Mapping[str, Any] | None = None  # of the operation that the last traced case was led to
        self._batch = tree.pack(incident.batch())
        donor = incident.donor()
        self._donor = None if donor is None else tree.pack(donor)
        self._generated: tree.Packed | None = None  # in place of a donor
        self._state, self._rng, self._flags = incident.state(), incident.rng(), incident.flags()
        self._config = incident.config()
        self._history = rewind.History(incident, self._failing(), self._donor, self._state)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._temporary.cleanup()

    @property
    def harness(self) -> Harness | None:
        """The one built for the last evaluation."""
        return self._built.harness if self._built else None

    def evaluate(
        self, case: Case, isolation: Isolation = "restore", *, on_step: Callable[[], object] = lambda: None
    ) -> Outcome:
        """What this case comes to. Never raises for what the user's code does. on_step: called before the steps."""
        started = perf_counter()
        if missing := self._missing_device():
            return Outcome(status=Status.INFRA, detail=missing, host=platform.node())
        try:
            steps = self._steps_of(case)
            harness, misfits = self._ready(case, isolation)
            steps = self._decoded(harness, steps) if case.content == "decoded" else steps
        except Exception as error:
            return Outcome(status=Status.INVALID, detail=_why(error), host=platform.node())
        on_step()
        try:
            outcome = self._step(harness, steps, case, started)
        except BadInput as error:  # a variant that this harness cannot run as
            return Outcome(status=Status.INVALID, detail=_why(error), host=platform.node())
        return replace(outcome, detail=outcome.detail or misfits)

    def describe(self, variant: Variant) -> dict[str, Any]:
        """What variants can name of the harness of this one's config. Raises what the user's code does."""
        return variants.describe(self._ready(Case(incident=self.incident.path, variant=variant), "restore")[0])

    def _step(self, harness: Harness, steps: list[rewind.Step], case: Case, started: float) -> Outcome:
        """The steps one after the other. The failing one, or an earlier one that fails, is what is told of."""
        switches = {**self._flags, **case.variant.flags}
        flags.put(switches)
        batch = steps[-1].batch
        random, begun = False, perf_counter()
        watch = rows.Watch(self.layout, batch, everywhere=bool(case.stack)) if case.watch else None
        with ExitStack() as stack:
            stack.enter_context(flags.entered(switches))
            harness = stack.enter_context(variants.applied(harness, case.variant))
            idle = stack.enter_context(unused(harness, case.variant.modules))
            follower = Follower(harness, self.layout) if case.trace else None
            operations = Operations(harness, self._root) if case.operations else None
            evidence = Evidence(harness, stuck_after=self._stuck_after(case)) if case.evidence else None
            watching = detectors.of_replay(self.incident.manifest.symptoms, steps[0].moment.skips)
            for step in steps:
                failing = step is steps[-1]
                if not step.dropped:
                    until = self._until() if failing and not case.thorough else None
                    looks: list[Look | None] = [follower.begin(step) if follower else None]
                    looks += [watch, operations, evidence] if failing else [operations]
                    seen = watching if failing else watching.before()
                    probe, detail, drew = self._run(harness, step, case.rng, looks, until, seen)
                    random |= drew
                    if probe.symptoms:
                        detail = detail or ("" if failing else f"step {step.moment.number} of the history failed")
                        break
                between.put(harness, variants.unaffected(case.variant, step.moment.after))
            seconds = perf_counter() - begun
            fingerprint = probe.fingerprint()  # of what the variant made, before it is taken back
            located = self._located(follower, probe) if follower else None
        signature = probe.signature or failure.first(probe.symptoms)
        return Outcome(
            status=self._status(signature),
            signature=signature,
            symptoms=tuple(probe.symptoms),
            losses=probe.losses,
            fingerprint=fingerprint,
            seconds=seconds,
            total_seconds=perf_counter() - started,
            peak_memory=_peak_memory(),
            host=platform.node(),
            device=torch.cuda.get_device_name() if harness.device.type == "cuda" else harness.device.type,
            versions=_versions(harness.device.type),
            detail=detail,
            bad_rows=watch.bad if watch else None,
            random=random,
            located=located,
            unused=tuple(sorted(idle)),
            operations=tuple(operations.seen) if operations else (),
            evidence=evidence.collected() if evidence else None,
            compiled=_compiled(),
        )

    def _run(
        self,
        harness: Harness,
        step: rewind.Step,
        seed: Literal["captured"] | int,
        looks: list[Look | None],
        until: Kind | None,
        watching: detectors.Watching,
    ) -> tuple[Probe, str, bool]:
        """One step under a probe: with what it raised, and whether it drew from a generator."""
        step.begin(seed)
        start, detail = rng.take(), ""
        with suppress(_Caught), Probe(harness, watching, step.batch) as probe, ExitStack() as stack:
            for look in looks:
                if look:
                    stack.enter_context(look)
            try:
                run(harness, step.batch, probe, micro=step.moment.micro % harness.accumulate, until=until)
            except variants.Inapplicable:
                raise
            except (Exception, SystemExit) as error:  # a step that exits must not end a worker that answers for others
                probe.fail(error, [self._root, *self._installed_roots()])
                detail = _why(error)
                raise _Caught from error
        return probe, detail, rng.moved(start)

    def _located(self, follower: Follower, probe: Probe) -> dict[str, Any] | None:
        """Where the first symptom has its bad values from; the operation's arguments are kept in `arguments`."""
        found, self.arguments = follower.located(probe)
        if found and isinstance(stack := found.get("stack"), list):
            found["stack"] = [str(frame).replace(f"{self._root}/", "") for frame in stack]
        return found

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
        if captured.kind in _SEEN_AT:
            return _SEEN_AT[captured.kind]
        return Kind.NONFINITE_LOSS if captured.kind is Kind.EXCEPTION and captured.where == "forward" else None

    def _stuck_after(self, case: Case) -> float | None:
        """Shortly before a deadline that the incident sets."""
        allowed = patience(self.incident.manifest, case.rewind + 1)
        return None if allowed is None else _STUCK * allowed

    def _failing(self) -> rewind.Moment:
        loop = self.incident.loop() if self._state is None else self._state["loop"]
        return rewind.Moment(
            number=self.incident.manifest.step,
            batch=self._batch,
            rng=self._rng,
            micro=loop["micro"],
            skips=loop.get("skips", 0),
        )

    def _steps_of(self, case: Case) -> list[rewind.Step]:
        moments, donor = self._history.moments(case.rewind), self._history.donor(case.rewind)

        def prepare(part: Case, batch: Any) -> Any:
            batch, dtype = self._batch_of(part, batch, donor), case.variant.dtype
            return precision.cast(batch, dtype) if dtype else batch

        return rewind.steps(case, self.layout, moments, prepare)

    def _state_before(self, case: Case, isolation: Isolation) -> State:
        def build() -> Harness:
            harness = self._harness_of(Case(incident=case.incident), isolation)
            flags.put(self._flags)
            return harness

        with flags.entered(self._flags):
            return self._history.state(case.rewind, build)

    def _batch_of(self, case: Case, batch: Any, packed: tree.Packed | None) -> Any:
        """Fresh tensors each time: a step may write into its batch."""
        donor = None
        if case.content == "donor" or case.heal or case.stack:
            donor = tree.unpack(packed or self._stand_in())
            if case.content == "donor":
                return donor
        if case.heal:
            batch = self.layout.heal(batch, donor, case.heal)
        if case.values:
            batch = values.simplified(batch, self.layout, case.values)
        if case.dtypes:
            batch = values.cast(batch, self.layout, case.dtypes)
        if case.stack:
            return rows.stacked(self.layout, batch, donor, case.keep, case.stack)
        return self.layout.select(batch, case.keep) if case.keep else batch

    def _ready(self, case: Case, isolation: Isolation) -> tuple[Harness, str]:
        """A harness in the state that the case starts from, and a line on what of that has no place in it."""
        if case.state == "built":
            return self._harness_of(case, "rebuild"), ""
        state = self._state_before(case, isolation)
        if pformat(variants.config_of(self._config, case.variant)) == pformat(self._config):
            put_state(harness := self._harness_of(case, isolation), state)
            return harness, ""
        if self._original is None:
            self._original = take_state(self._harness_of(Case(incident=case.incident), "rebuild"))
        harness = self._harness_of(case, isolation)
        assert self._built is not None
        fitted, left = refit(self._built.made, state, self._original)
        put_state(harness, fitted)
        return harness, told(left)

    def _decoded(self, harness: Harness, steps: list[rewind.Step]) -> list[rewind.Step]:
        """With what the harness reads again in place of the failing step's batch. Raises what the user's code does."""
        if harness.fetch is None:
            raise BadInput("decoded: this harness cannot read its samples again; give it Harness(fetch=...)")
        return [*steps[:-1], replace(steps[-1], batch=harness.fetch(steps[-1].batch))]

    def _stand_in(self) -> tree.Packed:
        """A donor for a case that has none: its first step was the first of all, so there was no batch before it."""
        if self._generated is None:
            self._generated = tree.pack(smooth.generated(tree.unpack(self._batch), self.layout))
        return self._generated

    def _harness_of(self, case: Case, isolation: Isolation) -> Harness:
        config, dtype = variants.config_of(self._config, case.variant), case.variant.dtype
        wanted = (pformat(config), dtype)  # 1 and 1.0 are two configs; what nobody lists may keep a dtype
        if self._built and self._built.of == wanted and isolation == "restore":
            return self._built.harness
        manifest, command = self.incident.manifest, self.incident.command()
        if not self._root.exists():
            self._unpack()
            if self._own_process and (folder := self._root / command.get("cwd", ".")).is_dir():
                os.chdir(folder)
        flags.put(self._flags)
        rng.seed(self._rng["initial_seeds"]["torch"])
        with replaying(), group.entered(self.incident.group()):
            build = load_entrypoint(manifest.entrypoint, self._root, command.get("path"), self._packages)
            harness = build_harness(build, manifest.entrypoint, copy.deepcopy(config))
        self._built = _Built(of=wanted, harness=harness, made={} if config == self._config else take_state(harness))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class _Built:
    of: tuple[str, str | None]  # config and dtype
    harness: Harness
    made: State  # as build left it; of another config than the captured one


class _Caught(Exception):
    """Leaves the probe's context after an exception of the step was written down."""


def _why(error: BaseException) -> str:
    return str(error) if isinstance(error, BadInput) else "".join(traceback.format_exception(error))


def _compiled() -> bool:
    """Whether torch.compile has compiled anything here; what only imports it has not."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils and utils.counters["frames"]["total"])


def _versions(device: str) -> dict[str, str]:
    """What numbers may depend on beside the code: another one is other inputs."""
    found = {"torch": str(torch.__version__), "python": platform.python_version()}
    if device != "cuda":
        return found | {"cpu": torch.backends.cpu.get_cpu_capability()}
    with suppress(OSError):  # also in containers, where nvidia-smi may be missing
        found["driver"] = Path("/sys/module/nvidia/version").read_text().strip()
    return found


def _peak_memory() -> int:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
