"""Look at one training step from inside: loss terms, gradients at the optimizer's door, parameters after it.

Everything hangs on a hook before each optimizer's step, so the same code watches reprokit's own loop, a Lightning
module and a loop that nobody foresaw. The probe keeps references, never copies: the gradients that an optimizer
consumed stay alive until the step is over, so that a fingerprint can be taken of them once it is known that one is
wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature, Symptom, exception_signature
from reprokit.harness import Harness, parameters
from reprokit.step.finite import all_finite, count_bad
from reprokit.tree import digest

_LONGEST = 2000  # characters of a message that are kept as evidence
_EVIDENCE = 5  # names listed in a symptom: enough to see a pattern, short enough for one line


class Probe:
    """A context around one step. After it: `symptoms`, `losses`, `fingerprint()`, `strangers`."""

    def __init__(self, harness: Harness) -> None:
        self.losses: dict[str, float] = {}
        self._symptoms: list[Symptom] = []
        self.signature: Signature | None = None  # of an exception; the other kinds are named by `failure.first`
        self.strangers: list[str] = []  # optimizers that stepped and that the harness does not list
        self._harness = harness
        self._parameters = parameters(harness)
        self._terms: dict[str, torch.Tensor] = {}
        self._gradients: dict[str, tuple[torch.Tensor, int]] = {}  # with the version at which the optimizer saw it
        self._worst: dict[Kind, torch.Tensor] = {}  # the first bad tensor of a kind
        self._looked = False  # at the gradients, before clipping
        self._stepped = False
        self._hook: Any = None

    def __enter__(self) -> Probe:
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._hook.remove()
        if error is None and self._stepped:
            self._look_at_parameters()

    @property
    def symptoms(self) -> list[Symptom]:
        """What held, in causal order, whichever was seen first."""
        return sorted(self._symptoms, key=lambda symptom: list(Kind).index(symptom.kind))

    def look_at_losses(self, losses: Any) -> dict[str, torch.Tensor]:
        """The loss terms of a step, by name, "loss" among them. Reads each from the device."""
        self._terms = _named_terms(losses)
        self.losses = {name: float(term.detach()) for name, term in self._terms.items()}
        order = sorted(self._terms, key=lambda name: name == "loss")  # the sum last: its terms say more
        bad = [name for name in order if not all_finite([self._terms[name]])]
        if bad:
            values = {name: str(self.losses[name]) for name in bad}
            self._symptoms.append(Symptom(kind=Kind.NONFINITE_LOSS, where=bad[0], evidence={"values": values}))
        return self._terms

    def look_at_gradients(self) -> None:
        """Called before clipping by who can; otherwise the optimizer's hook is the last chance."""
        gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}
        self._looked = True
        self._judge(Kind.NONFINITE_GRAD, "backward", gradients)

    def fail(self, error: BaseException, roots: Iterable[Path]) -> None:
        """An exception that left the step: the first of all kinds."""
        self.signature = exception_signature(error, phase=phase_of(error), roots=list(roots))
        evidence = {"type": type(error).__name__, "message": _text(error)}
        self._symptoms.append(Symptom(kind=self.signature.kind, where=self.signature.where, evidence=evidence))

    def suspect(self) -> torch.Tensor | None:
        """The tensor that shows the first symptom: a loss term, a gradient or a parameter with a bad value."""
        for symptom in self.symptoms:
            if symptom.kind is Kind.NONFINITE_LOSS:
                return self._terms[symptom.where]
            if symptom.kind in (Kind.NONFINITE_GRAD, Kind.NONFINITE_PARAM):
                return self._worst[symptom.kind]
        return None

    def fingerprint(self) -> dict[str, str]:
        """Hashes of what the step computed, per module: equal on two runs exactly if these were equal bit for bit."""
        found = {"losses": _hash(self._terms)} if self._terms else {}
        intact = {name: g for name, (g, version) in self._gradients.items() if g._version == version}
        if intact and len(intact) == len(self._gradients):
            found |= _by_module("gradients", intact)
        if self._stepped:
            found |= _by_module("parameters", self._parameters)
        return found

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if all(optimizer is not one for one in self._harness.optimizers.values()):
            self.strangers.append(_describe(optimizer, self._parameters))
            return
        if not self._looked:
            self.look_at_gradients()
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                self._gradients[name] = (parameter.grad, parameter.grad._version)
        self._stepped = True

    def _look_at_parameters(self) -> None:
        self._judge(Kind.NONFINITE_PARAM, "optimizer", self._parameters)

    def _judge(self, kind: Kind, where: str, tensors: Mapping[str, torch.Tensor]) -> None:
        if any(symptom.kind is kind for symptom in self._symptoms) or all_finite(tensors.values()):
            return
        bad = {name: count_bad(tensor) for name, tensor in tensors.items() if not all_finite([tensor])}
        first = dict(list(bad.items())[:_EVIDENCE])
        self._worst[kind] = tensors[next(iter(first))]
        self._symptoms.append(Symptom(kind=kind, where=where, evidence={"tensors": len(bad), "first": first}))


def _text(error: BaseException) -> str:
    try:
        return str(error)[:_LONGEST]
    except Exception:  # a __str__ that fails must not hide the failure that it was to describe
        return ""


def phase_of(error: BaseException) -> str:
    """forward, backward or optimizer: by the torch frames that the exception went through."""
    trace, phase = error.__traceback__, "forward"
    while trace is not None:
        code = trace.tb_frame.f_code
        file = code.co_filename.replace("\\", "/")
        if file.endswith(("torch/autograd/__init__.py", "torch/autograd/graph.py")) or code.co_name == "backward":
            phase = "backward"
        elif "/torch/optim/" in file:
            phase = "optimizer"
        trace = trace.tb_next
    return phase


def _named_terms(losses: Any) -> dict[str, torch.Tensor]:
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


def _describe(optimizer: torch.optim.Optimizer, known: Mapping[str, torch.Tensor]) -> str:
    names = {id(p): name for name, p in known.items()}
    params = [p for group in optimizer.param_groups for p in group["params"]]
    ours = [names[id(p)] for p in params if id(p) in names]
    of = f"of {ours[0]} and others" if len(ours) > 1 else f"of {ours[0]}" if ours else "of no registered module"
    return f"{type(optimizer).__name__} over {len(params)} parameters ({of})"
