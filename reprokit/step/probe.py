"""Look at one training step from inside: loss terms, gradients at the optimizer's door, parameters after it.

Everything hangs on a hook before each optimizer's step, so the same code watches reprokit's own loop, a Lightning
module and a loop that nobody foresaw. What goes beyond non-finite values is left to detectors, which see the step's
numbers at its end. The probe keeps references, never copies: the gradients that an optimizer
consumed stay alive until the step is over, so that a fingerprint can be taken of them once it is known that one is
wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from hashlib import sha256
from math import isfinite, isinf, isnan
from pathlib import Path
from traceback import walk_tb
from types import CodeType, TracebackType
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom, exception_signature, said
from reprokit.harness import Harness, buffers, parameters
from reprokit.step import between
from reprokit.step.detectors import Watching, scaler
from reprokit.step.detectors.activations import Activations
from reprokit.step.detectors.collapse import look_at_features
from reprokit.step.detectors.view import Scaling, Spectrum, StepView
from reprokit.step.finite import all_finite, bad_numbers, count_bad, norm
from reprokit.tree import digest

_LONGEST = 2000  # characters of a message that are kept as evidence
_EVIDENCE = 5  # names listed in a symptom: enough to see a pattern, short enough for one line

_active: ContextVar[Probe | None] = ContextVar("active", default=None)  # around the step that runs

AtDoor = Callable[[torch.optim.Optimizer], None]
Trouble = Callable[[Exception], object]


class Clipped(NamedTuple):
    """What clipping is about to be done by."""

    parameters: list[torch.Tensor]
    norm: torch.Tensor  # of their gradients together


class Probe:
    """A context around one step. After it: `symptoms`, `losses`, `fingerprint()`, `strangers`.

    watching: the detectors that look at this step too; of its batch only where they want to see features. at_door: is
    called before each optimizer's step, when gradients have been looked at and nothing was updated from them. trouble:
    is told what went wrong in a look, after which there is none any more (`blind`), and the step goes on; by default
    it is raised.
    """

    def __init__(
        self,
        harness: Harness,
        watching: Watching | None = None,
        batch: Any = None,
        at_door: AtDoor = lambda _optimizer: None,
        trouble: Trouble | None = None,
    ) -> None:
        self.losses: dict[str, float] = {}
        self.blind = False  # its symptoms are not all that there may be
        self.scaling: Scaling | None = None  # what the scaler did
        self._symptoms: list[Symptom] = []
        self.error: BaseException | None = None  # that left the step
        self.signature: Signature | None = None  # of an exception; the other kinds are named by `failure.first`
        self.strangers: list[str] = []  # optimizers that stepped and that the harness does not list
        self._harness = harness
        self._parameters = parameters(harness)
        self._terms: dict[str, torch.Tensor] = {}
        self._gradients: dict[str, tuple[torch.Tensor, int]] = {}  # with the version at which the optimizer saw it
        self._worst: dict[Kind, torch.Tensor] = {}  # the first bad tensor of a kind
        self._looked = False  # at the gradients, before clipping
        self._stepped = False
        self._entered = False  # an optimizer's step, from what was looked at last
        self._hook: Any = None
        self._watching, self._batch = watching or Watching(), batch
        self._at_door, self._asked = at_door, False  # detectors that need no more than what the door shows
        self._trouble = trouble
        self._activations = Activations(harness) if self._watching.activations else None
        self._grad_norm: float | None = None
        self._fingerprint: dict[str, str] | None = None
        self._spectrum: Spectrum | None = None

    def __enter__(self) -> Probe:
        self._open()
        self._look(self._begin)
        self._hook = register_optimizer_step_pre_hook(self._door)
        if self._activations:
            self._activations.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._hook.remove()
        self._close()
        if self._activations:
            self._activations.__exit__(kind, error, None)
        if error is None:
            self._look(self._end)

    def _door(self, optimizer: torch.optim.Optimizer, *given: Any) -> None:
        self._look(lambda: self._before_optimizer(optimizer, *given))

    def _look(self, at: Callable[[], object]) -> None:
        if self.blind:
            return
        try:
            at()
        except Exception as trouble:
            if self._trouble is None:
                raise
            self.blind = True
            self._trouble(trouble)

    def _begin(self) -> None:
        if self._watching.wants_features:
            seen = look_at_features(self._harness, self._batch)
            self._spectrum = seen.spectrum() if seen else None
        self._scale = scaler.Scale.read(self._harness.scaler)
        self._written = {name: (id(b), between.version(b)) for name, b in buffers(self._harness).items()}

    def _end(self) -> None:
        if self._stepped:
            self._judge(Kind.NONFINITE_PARAM, "optimizer", self._parameters)
        self._look_at_buffers()
        self._ask_detectors()

    def _open(self) -> None:
        self._around = _active.get()
        _active.set(self)

    def _close(self) -> None:
        _active.set(self._around)

    @property
    def ready(self) -> bool:
        """Whether `settle` would not wait."""
        return True

    def settle(self) -> None:
        """After it, its symptoms are known."""

    @property
    def stepped(self) -> bool:
        """Whether an optimizer did."""
        return self._stepped

    @property
    def grad_norm(self) -> float | None:
        """Of all gradients, unscaled and before clipping; None where nobody looked."""
        return self._grad_norm

    @property
    def symptoms(self) -> list[Symptom]:
        """What held, in causal order, whichever was seen first."""
        return sorted(self._symptoms, key=lambda symptom: list(Kind).index(symptom.kind))

    def look_at_losses(self, losses: Any) -> dict[str, torch.Tensor]:
        """The loss terms of a step, by name, "loss" among them. Reads each from the device."""
        self._terms = named_terms(losses)
        self.losses = {name: float(term.detach()) for name, term in self._terms.items()}
        self._judge_losses()
        return self._terms

    def _judge_losses(self) -> None:
        """Once they were read."""
        order = sorted(self.losses, key=lambda name: name == "loss")  # the sum last: its terms say more
        if bad := [name for name in order if not isfinite(self.losses[name])]:
            values = {name: str(self.losses[name]) for name in bad}
            self._symptoms.append(Symptom(kind=Kind.NONFINITE_LOSS, where=bad[0], evidence={"values": values}))

    def look_at_gradients(self, *, judge: bool = True, scale: float = 1.0, clipped: Clipped | None = None) -> None:
        """Called before clipping by who can; otherwise the optimizer's hook is the last chance. judge: non-finite ones
        are a failure. scale: that they still carry. clipped: saves taking the norm once more."""
        self._look(lambda: self._look_at(self._parameters, judge, scale, clipped))

    def _look_at(
        self,
        parameters: Mapping[str, torch.Tensor],
        judge: bool,
        scale: float | torch.Tensor,
        clipped: Clipped | None = None,
    ) -> None:
        """At the gradients of these."""
        gradients = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        self._looked, self._entered = True, False
        known = self._norm_of_all(clipped)
        total = float("inf") if known is None else float(known)
        found = (norm(gradients.values()) if isinf(total) else total) / float(scale)
        if self._grad_norm is None or isnan(found) or found > self._grad_norm:
            self._grad_norm = found
        if judge and not isfinite(found):
            self._judge(Kind.NONFINITE_GRAD, "backward", gradients)

    def _norm_of_all(self, clipped: Clipped | None) -> torch.Tensor | None:
        """The one that clipping has, where it is of the same gradients, and in a type that does not overflow early."""
        if clipped is None:
            return None
        ours = {id(p) for p in self._parameters.values() if p.grad is not None}
        theirs = [p for p in clipped.parameters if p.grad is not None]
        wide = all(p.grad is not None and p.grad.itemsize >= 4 for p in theirs)
        return clipped.norm if wide and ours == set(map(id, theirs)) else None

    def fail(self, error: BaseException, roots: Iterable[Path]) -> None:
        """An exception that left the step: the first of all kinds."""
        self.error = error
        self.signature = exception_signature(error, phase=phase_of(error), roots=list(roots))
        evidence = {"type": type(error).__name__, "message": said(error)[:_LONGEST]}
        self._symptoms.append(Symptom(kind=self.signature.kind, where=self.signature.where, evidence=evidence))

    def add(self, evidence: Mapping[str, Any]) -> None:
        """To what an exception left."""
        last = self._symptoms[-1]
        self._symptoms[-1] = replace(last, evidence={**last.evidence, **evidence})

    def suspect(self) -> torch.Tensor | None:
        """The tensor that shows the first symptom: a loss term, a gradient or a parameter with a bad value."""
        for symptom in self.symptoms:
            if symptom.kind is Kind.NONFINITE_LOSS:
                return self._terms[symptom.where]
            if symptom.kind in (Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM):
                return self._worst[symptom.kind]
        return None

    def fingerprint(self) -> dict[str, str]:
        """Hashes of what the step computed, per module: equal on two runs exactly if these were equal bit for bit.

        Taken once: later calls give the first."""
        if self._fingerprint is None:
            self._fingerprint = self._hashes()
        return self._fingerprint

    def _hashes(self) -> dict[str, str]:
        found = {"losses": _hash(self._terms)} if self._terms else {}
        intact = {name: g for name, (g, count) in self._gradients.items() if between.version(g) == count >= 0}
        if intact and len(intact) == len(self._gradients):
            found |= _by_module("gradients", intact)
        if self._stepped:
            found |= _by_module("parameters", self._parameters)
        return found

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._is_stranger(optimizer):
            return
        self._look_from_door(optimizer)
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._gradients[name] = (parameter.grad, between.version(parameter.grad))
        self._stepped = True
        if self.losses:  # a step that optimizes by itself tells them at its end
            self._ask()
        self._at_door(optimizer)

    def _look_from_door(self, optimizer: torch.optim.Optimizer) -> None:
        """At the gradients, where nobody has yet. A step of the user's own may go backward again between two steps of
        optimizers, so that each of them may find other gradients than the one before."""
        first, again = not self._looked, self._entered and not self._harness.automatic_optimization
        if first or again:
            looked_at = self._parameters if first else _of(optimizer, self._parameters)
            scale, skips = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
            self._look_at(looked_at, skips is None, 1.0 if scale is None else scale)
        self._entered = True

    def _is_stranger(self, optimizer: torch.optim.Optimizer) -> bool:
        known = any(optimizer is one for one in self._harness.optimizers.values())
        if not known:
            self.strangers.append(_describe(optimizer, self._parameters))
        return not known

    def _look_at_buffers(self) -> None:
        """Those that this step wrote: what was in them before is not its doing."""
        now = buffers(self._harness)
        written = {name: b for name, b in now.items() if self._written.get(name) != (id(b), between.version(b))}
        if not all_finite(written.values()):
            self._judge(Kind.NONFINITE_PARAM, "buffers", {name: b for name, b in written.items() if bad_numbers(b)})

    def _ask(self) -> None:
        """The detectors, about what is known before the optimizer's step, once."""
        if not self._asked:
            self._asked = True
            view = StepView(losses=self.losses, grad_norm=self._grad_norm, spectrum=self._spectrum)
            self._symptoms += self._watching.at_door(view)

    def _ask_detectors(self) -> None:
        self._ask()
        after = scaler.Scale.read(self._harness.scaler)
        if self._scale and after:
            self.scaling = scaler.between(self._scale, after)
        if self._activations and self._symptoms:
            first = self.symptoms[0]
            evidence = {**first.evidence, **self._activations.evidence}
            self._symptoms[self._symptoms.index(first)] = replace(first, evidence=evidence)
        self._symptoms += self._watching.after(StepView(scaling=self.scaling))

    def _judge(self, kind: Kind, where: str, tensors: Mapping[str, torch.Tensor]) -> None:
        if any(symptom.kind is kind for symptom in self._symptoms) or all_finite(tensors.values()):
            return
        bad = {name: count_bad(tensor) for name, tensor in tensors.items() if not all_finite([tensor])}
        first = dict(list(bad.items())[:_EVIDENCE])
        self._worst[kind] = tensors[next(iter(first))]
        self._symptoms.append(Symptom(kind=kind, where=where, evidence={"tensors": len(bad), "first": first}))


def gradients_complete(*, judge: bool = True) -> None:
    """For a step that optimizes by itself, before it clips: gradients are complete and carry no scale. Without it they
    are looked at in the hook before the optimizer's step. judge: non-finite ones are a failure, and not a scaler's."""
    if probe := _active.get():
        probe.look_at_gradients(judge=judge)


def phase_of(error: BaseException) -> str:
    """forward, backward or optimizer: by the torch frames that the exception went through."""
    return phase_in(frame.f_code for frame, _ in walk_tb(error.__traceback__))


def phase_in(codes: Iterable[CodeType]) -> str:
    """The same of functions that called each other, outermost first."""
    phase = "forward"
    for code in codes:
        file = code.co_filename.replace("\\", "/")
        if file.endswith(("torch/autograd/__init__.py", "torch/autograd/graph.py")) or code.co_name == "backward":
            phase = "backward"
        elif "/torch/optim/" in file:
            phase = "optimizer"
    return phase


def named_terms(losses: Any) -> dict[str, torch.Tensor]:
    terms = losses if isinstance(losses, Mapping) else {"loss": losses}
    if "loss" not in terms:
        raise BadInput(f"the step returned {sorted(map(str, terms))}: a mapping of loss terms needs the key 'loss'")
    named = {}
    for name, term in terms.items():
        if not isinstance(term, torch.Tensor | float | int):
            given = type(term).__name__
            raise BadInput(
                f"the step's loss term {name!r} is a {given}; expected a tensor with one element, or a number"
            )
        tensor = torch.as_tensor(term)
        if tensor.numel() != 1:
            raise BadInput(f"the step's loss term {name!r} has shape {list(tensor.shape)}; expected one element")
        named[str(name)] = tensor
    return named


def _by_module(what: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    modules: dict[str, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        modules.setdefault(name.partition(".")[0], {})[name] = tensor
    return {f"{what}/{module}": _hash(members) for module, members in modules.items()}


def _hash(tensors: Mapping[str, torch.Tensor]) -> str:
    total = sha256()
    for name in sorted(tensors):
        total.update(f"{name}={digest(tensors[name])}\n".encode())
    return total.hexdigest()


def _of(optimizer: torch.optim.Optimizer, known: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    theirs = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return {name: p for name, p in known.items() if id(p) in theirs}


def _describe(optimizer: torch.optim.Optimizer, known: Mapping[str, torch.Tensor]) -> str:
    names = {id(p): name for name, p in known.items()}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    ours = [names[id(p)] for p in params if id(p) in names]
    of = f"of {ours[0]} and others" if len(ours) > 1 else f"of {ours[0]}" if ours else "of no registered module"
    return f"{type(optimizer).__name__} over {len(params)} parameters ({of})"
