"""Watch training, and write an incident when a step fails.

At the start of each step the recorder takes what a replay needs: state, generators, the batch. If the step is healthy
its batch becomes the donor of the next one; if not, all of that is written. Nothing that goes wrong while an incident
is written may reach training: it goes on, or stops with its own error, never with ours.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import yaml

from reprokit import failure, tree
from reprokit.capture.entrypoint import name_of
from reprokit.capture.logs import Tee
from reprokit.capture.rehearsal import rehearse
from reprokit.capture.snapshot import Snapshot, write
from reprokit.capture.source import find_root
from reprokit.errors import BadInput, ReprokitError
from reprokit.failure import Signature
from reprokit.harness import Harness, parameters, take_state
from reprokit.layout import Layout
from reprokit.step import flags, rng
from reprokit.step.load import stop_if_loading
from reprokit.step.probe import Probe
from reprokit.step.run import run

REHEARSE_BELOW = 1 << 30  # bytes of state: the rehearsal writes and reads it once, a second or two
REHEARSED = 2  # healthy steps: the first shows what cannot replay at all, the second what has moved since `build`
METRICS_KEPT = 256  # steps of loss terms in an incident: enough to see a drift, small enough to forget about

log = logging.getLogger("reprokit")


class IncidentCaptured(ReprokitError):
    """A step failed without raising, and was captured. `path` is the incident, `signature` what failed."""

    def __init__(self, path: Path, signature: Signature, step: int) -> None:
        super().__init__(
            f"step {step}: {signature.kind} at {signature.where}; captured in {path}; next: reprokit show {path}"
        )
        self.path = path
        self.signature = signature


class Recorder:
    """The flight recorder around a training loop: `recorder.step(batch)`, or `with recorder.watch(batch)`.

    harness, build, config: what `build(config)` returned, and both of its sides. out: the folder of the incidents.
    entrypoint: "package.module:build" where it cannot be told from `build` itself. on_failure: "raise"
    IncidentCaptured. rehearse: replay the first two healthy steps in a fresh process; "auto" does while the state is
    under 1 GB. Raises BadInput where a replay could not find `build` again, or the config is no plain data.
    """

    def __init__(
        self,
        harness: Harness,
        *,
        build: Callable[[Any], Harness],
        config: Any,
        out: str | Path = "incidents",
        entrypoint: str | None = None,
        on_failure: Literal["raise"] = "raise",
        rehearse: bool | Literal["auto"] = "auto",
    ) -> None:
        stop_if_loading()
        if not isinstance(harness, Harness):
            raise BadInput(
                f"Recorder: the first argument is a {type(harness).__name__}; hand over what build(config) returns"
            )
        if on_failure != "raise":
            raise BadInput(f"Recorder: on_failure={on_failure!r}; expected 'raise'")
        self.incidents: list[Path] = []
        self.findings: list[str] = []  # of the rehearsal: what will not replay, a line each
        self.steps = 0  # that were begun
        self._watching = False
        self._harness = harness
        self._layout = Layout.parse(harness.layout)
        self._config = _plain(config)
        self._entrypoint, self._file = name_of(build, entrypoint)
        self._root = find_root(self._file)
        self._out = Path(out).absolute()  # training may change its directory
        self._rehearsals = REHEARSED if self._wanted(rehearse) else 0
        self._donor: tree.Packed | None = None
        self._micro = 0
        self._metrics: deque[dict[str, Any]] = deque(maxlen=METRICS_KEPT)
        self._tee = Tee()
        self._writes = True  # until a write failed: one line about a full disk is enough

    def __enter__(self) -> Recorder:
        self._tee.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._tee.__exit__(kind, error, trace)

    def step(self, batch: Any) -> Any:
        """Run `harness.step` on a batch and all that belongs to the step; returns what it returned.

        Raises IncidentCaptured where the step failed quietly, and what the step itself raises.
        """
        with self._watched(batch) as probe:
            result = run(self._harness, batch, probe, micro=self._micro)
        return result

    @contextmanager
    def watch(self, batch: Any) -> Iterator[Watch]:
        """Around one step of a loop of one's own, which must do the same as `harness.step`.

        Raises IncidentCaptured at its end where the step failed quietly, and what the loop itself raises.
        """
        with self._watched(batch) as probe:
            yield Watch(probe)

    @contextmanager
    def _watched(self, batch: Any) -> Iterator[Probe]:
        if self._watching:
            raise BadInput(
                "Recorder: a step was begun inside another one; end the first, or give it a recorder of its own"
            )
        start = self._begin(batch)
        self._watching = True
        try:
            with Probe(self._harness) as probe:
                yield probe
        except (IncidentCaptured, BadInput):
            raise  # of a step inside this one; of a harness that is not what it must be: no failure of training
        except Exception as error:
            probe.fail(error, [self._root])
            self._note(error, self._capture(start, probe, error))
            raise
        finally:
            self._watching = False
        self._end(start, probe)

    def _begin(self, batch: Any) -> Snapshot | None:
        """What the step starts from; None where that cannot be taken, which is said once and stops nothing."""
        self.steps += 1
        if self.steps == 1:
            self._layout.sizes(batch)  # one that does not fit is said now, not at the failure
        try:
            return self._take(batch)
        except Exception as trouble:
            self._finding(f"what the step starts from cannot be taken: {_one_line(trouble)}")
            return None

    def _take(self, batch: Any) -> Snapshot:
        left_out: list[str] = []
        packed = tree.pack(
            batch, name="batch", on_unstorable=lambda entry, value: left_out.append(self._lacks(entry, value))
        )
        return Snapshot(
            step=self.steps,
            state={**take_state(self._harness), "loop": {"micro": self._micro}},
            rng=rng.take(),
            flags={**flags.take(), "device": str(self._harness.device)},
            batch=packed,
            donor=self._donor,
            left_out=left_out,
        )

    def _lacks(self, entry: str, value: object) -> str:
        self._finding(
            f"{entry} ({type(value).__name__}) cannot be stored, so a replay lacks it; use tensors, arrays, "
            "numbers, strings, and lists, tuples or dicts of them"
        )
        return f"{entry}: a {type(value).__name__} cannot be stored"

    def _end(self, start: Snapshot | None, probe: Probe) -> None:
        self._metrics.append({"step": self.steps, **{name: str(value) for name, value in probe.losses.items()}})
        self._micro = (self._micro + 1) % self._harness.accumulate
        for stranger in dict.fromkeys(probe.strangers):
            self._finding(
                f"an optimizer that the harness does not list took a step: {stranger}; hand it over in "
                "Harness(optimizer={'name': optimizer, ...})"
            )
        signature = failure.first(probe.symptoms)
        if signature is None:
            self._healthy(start, probe)
        elif path := self._capture(start, probe, None):
            raise IncidentCaptured(path, signature, self.steps)

    def _healthy(self, start: Snapshot | None, probe: Probe) -> None:
        if start is None:
            return
        self._donor = start.batch
        if self._rehearsals:
            self._rehearsals -= 1
            try:
                findings = rehearse(lambda out: self._write(out, start, probe, None))
            except Exception as trouble:
                findings = [f"the rehearsal broke: {_one_line(trouble)}"]
            for line in findings:
                self._finding(line)
                self._rehearsals = 0  # what is known to be wrong need not be shown twice

    def _wanted(self, rehearse: bool | Literal["auto"]) -> bool:
        size = _state_bytes(self._harness)
        if rehearse == "auto" and size >= REHEARSE_BELOW:
            log.warning("no rehearsal: the state has %.1f GB; Recorder(rehearse=True) does it all the same", size / 1e9)
            return False
        return bool(rehearse)

    def _finding(self, line: str) -> None:
        if line not in self.findings:
            self.findings.append(line)
            log.warning("step %d would not replay: %s", self.steps, line)

    def _capture(self, start: Snapshot | None, probe: Probe, error: BaseException | None) -> Path | None:
        if start is None or not self._writes:
            return None
        try:
            incident = self._write(self._out, start, probe, error)
        except Exception as trouble:
            self._writes = False
            log.error("no incident could be written to %s, training is left alone: %s", self._out, _one_line(trouble))
            return None
        self.incidents.append(incident)
        return incident

    def _write(self, out: Path, start: Snapshot, probe: Probe, error: BaseException | None) -> Path:
        return write(
            out,
            start,
            probe,
            error,
            config=self._config,
            entrypoint=self._entrypoint,
            layout=self._layout.spec,
            root=self._root,
            exclude=[self._out],
            metrics=list(self._metrics),
            logs={"stdout": self._tee.stdout(), "stderr": self._tee.stderr()},
        )

    @staticmethod
    def _note(error: BaseException, path: Path | None) -> None:
        if path:
            error.add_note(f"reprokit captured this step in {path}; next: reprokit show {path}")


class Watch:
    """What a loop of one's own tells the recorder about its step."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    def losses(self, losses: Any) -> None:
        """The loss, or a mapping of loss terms with the key "loss"; tensors of one element, or numbers."""
        self._probe.look_at_losses(losses)


def _plain(config: Any) -> Any:
    """A copy of a config that a YAML file can hold. Raises BadInput where it cannot."""
    try:
        return yaml.safe_load(yaml.safe_dump(config))
    except yaml.YAMLError as error:
        raise BadInput(
            f"Recorder: config holds what YAML cannot ({_one_line(error)}); a config is plain data: dicts, "
            "lists, numbers, strings, booleans and None"
        ) from error


def _state_bytes(harness: Harness) -> int:
    """Of parameters and, for an optimizer with two moments, what it will keep."""
    return 3 * sum(p.numel() * p.element_size() for p in parameters(harness).values())


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
