"""A bad step holds all parameters still until somebody has looked, and no healthy one waits for a look.

Reading one number from a GPU makes the host wait for all that was asked of it before. So a step's numbers (its loss
terms, the norm of its gradients) stay on the device, where they are compared: `latch = max(latch, bad)`, in a hook
before the optimizer's step. Fused optimizers skip a step on the device where their `found_inf` is set, and leave
parameters and moments bit for bit as they were; so the latch is OR-ed into it. The numbers are copied to the host
without waiting, and read when they have arrived, steps later perhaps. What the bad step started from is then still
there (`capture.start`), since nothing was updated in it, nor in any step after it.

What a spike is comes from values that were read before; the bounds that the device compared with are kept, so that the
host does not come to another verdict later.

Not for optimizers that refuse `found_inf`: there one waits, once a step, at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite, isinf
from types import TracebackType
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from reprokit.capture.bounded import bounded
from reprokit.failure import Kind, Symptom
from reprokit.harness import Harness, buffers
from reprokit.step import between
from reprokit.step.detectors import Watching, scaler
from reprokit.step.detectors.collapse import look_at_features
from reprokit.step.detectors.view import Bound, StepView
from reprokit.step.finite import all_finite, norms
from reprokit.step.probe import AtDoor, Clipped, Probe, Trouble, named_terms


def possible(harness: Harness) -> bool:
    """Whether every optimizer can be told on its device to skip: a fused one can."""
    fused = [group.get("fused") for one in harness.optimizers.values() for group in one.param_groups]
    able = all(getattr(one, "_step_supports_amp_scaling", False) for one in harness.optimizers.values())
    return able and all(fused)


class Latch:
    """Across steps: one number on the device, 1 from the first bad step on until it is cleared."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._value = torch.zeros((), device=device)

    def clear(self) -> None:
        """What was bad has been seen to: optimizers go on."""
        self._value = torch.zeros((), device=self._device)

    @property
    def value(self) -> torch.Tensor:
        """Not to be written into."""
        return self._value

    def back(self, value: torch.Tensor) -> None:
        """To what it was before a step that did not come to its end, and is judged in another way."""
        self._value = value

    def add(self, bad: torch.Tensor) -> None:
        """OR. bad: a boolean without dimensions."""
        self._value = torch.maximum(self._value, bad.to(self._value.dtype))

    def hold(self, optimizer: Any) -> bool:
        """Let its next step be skipped where the latch is set, and where GradScaler says so. Whether that is to be
        taken back after the step, because nobody else does."""
        theirs = getattr(optimizer, "found_inf", None)
        optimizer.found_inf = self._value if theirs is None else torch.maximum(theirs, self._value.to(theirs.device))
        return theirs is None


class LateProbe(Probe):
    """A probe whose numbers are read late: `ready` says whether that would wait, `settle` does it. Before, it has no
    symptoms. whole: look at all parameters after the step, also those that an optimizer cannot have made infinite."""

    def __init__(
        self,
        harness: Harness,
        watching: Watching,
        batch: Any,
        at_door: AtDoor,
        latch: Latch,
        *,
        whole: bool = True,
        trouble: Trouble | None = None,
    ) -> None:
        super().__init__(harness, watching, batch, at_door, trouble)
        self._latch, self._whole = latch, whole
        self._before = latch.value
        self.bounds: Mapping[Kind, Bound] = watching.bounds()
        self._numbers: dict[str, torch.Tensor] = {}  # without dimensions, on the device
        self._reading: _Reading | None = None
        self.latched = False  # nothing was updated in this step, nor since
        self._judged = True  # that gradients are finite is asked
        self._told: set[str] = set()  # what the latch knows
        self._held: list[Any] = []  # optimizers whose `found_inf` is ours

    def __enter__(self) -> LateProbe:
        super().__enter__()
        self._after = register_optimizer_step_post_hook(self._after_optimizer)
        return self

    def _begin(self) -> None:
        if self._watching.wants_features:
            self._seen = look_at_features(self._harness, self._batch)
        self._before_scaler = _scaler(self._harness)
        self._buffers: dict[str, torch.Tensor] = buffers(self._harness)
        self._versions = between.versions(list(self._buffers.values()))
        self._params = list(self._parameters.values())
        self._param_versions = between.versions(self._params)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        super().__exit__(kind, error, None)
        self._after.remove()
        for optimizer in self._held:
            self._after_optimizer(optimizer)
        self._terms = {name: term.detach() for name, term in self._terms.items()}  # lets go of the graph
        if error is not None or self.blind:
            self._latch.back(self._before)

    def _end(self) -> None:
        self._tell(ends=True)
        self._finish()

    @property
    def ready(self) -> bool:
        """Whether its numbers have arrived."""
        return self._reading is None or self._reading.ready

    def _hashes(self) -> dict[str, str]:
        """Of parameters nothing can be said: they are those of another step by now, or were held."""
        return {name: found for name, found in super()._hashes().items() if name == "losses"}

    def look_at_losses(self, losses: Any) -> dict[str, torch.Tensor]:
        """The loss terms of a step, by name. Reads nothing."""
        self._terms = named_terms(losses)
        return self._terms

    def _look_at(
        self,
        parameters: Mapping[str, torch.Tensor],
        judge: bool,
        scale: float | torch.Tensor,
        clipped: Clipped | None = None,
    ) -> None:
        """As a `Probe` does, without reading."""
        self._judged = judge or (self._looked and self._judged)
        self._looked, self._entered = True, False
        known = self._norm_of_all(clipped)
        found = norms(p.grad for p in parameters.values() if p.grad is not None) if known is None else [known]
        if found:
            now = joined(found, self._harness.device) / scale
            before = self._numbers.get("grad_norm")
            self._numbers["grad_norm"] = now if before is None else torch.maximum(now, before)  # a NaN stays one
            self._told.discard("gradients")

    def settle(self) -> None:
        """Read, and judge. Waits where it is not ready."""
        if self._reading is None:
            return
        numbers, self._reading = self._reading.numbers(), None
        self.latched = numbers["latched"] > 0
        self.losses = {name: numbers[f"loss {name}"] for name in self._terms}
        self._grad_norm = numbers.get("grad_norm")
        self._judge_numbers(numbers)
        if "scale" in numbers:
            before, after = (self._scale_of(numbers, prefix) for prefix in ("", "after "))
            self.scaling = scaler.between(before, after)
        if seen := getattr(self, "_seen", None):
            self._spectrum = seen.spectrum()
        view = StepView(
            losses=self.losses, grad_norm=self._grad_norm, spectrum=self._spectrum, scaling=self.scaling,
            bounds=self.bounds,
        )  # fmt: skip
        self._symptoms += self._watching.look(view)

    def _door(self, optimizer: torch.optim.Optimizer, *given: Any) -> None:
        super()._door(optimizer, *given)
        if self.blind and not self._is_stranger(optimizer):  # an earlier step may have set the latch
            self._latch.back(self._before)
            self._hold(optimizer)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *given: Any) -> None:
        if self._is_stranger(optimizer):
            return
        complete = self._looked and not self._entered  # as somebody said who called for that look
        self._look_from_door(optimizer)
        self._stepped = True
        known = complete or not _has_closure(*given)
        self._whole = self._whole or not (known and bounded(optimizer, self.bounds[Kind.GRAD_SPIKE][0]))
        self._tell()
        self._numbers.setdefault("latched", self._latch.value)  # what is told later does not hold this step's update
        self._hold(optimizer)
        self._at_door(optimizer)

    def _hold(self, optimizer: torch.optim.Optimizer) -> None:
        if not any(optimizer is one for one in self._held) and self._latch.hold(optimizer):
            self._held.append(optimizer)

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Where GradScaler set it, GradScaler takes it away."""
        if any(optimizer is one for one in self._held):
            self._held = [one for one in self._held if one is not optimizer]
            del optimizer.found_inf

    def _tell(self, *, ends: bool = False) -> None:
        """The latch, about what is known by now and was not told before. ends: the step does."""
        bad = []
        if "grad_norm" in self._numbers and "gradients" not in self._told:
            self._told.add("gradients")
            value, bound = self._numbers["grad_norm"], self.bounds[Kind.GRAD_SPIKE][0]
            bad += [~value.isfinite()] if self._judged else []
            bad += [(value > bound) & value.isfinite()] if bound is not None else []
        if self._terms and "losses" not in self._told:
            self._told.add("losses")
            device = self._harness.device
            terms = {name: _number(term, device) for name, term in self._terms.items()}
            self._numbers |= {f"loss {name}": term for name, term in terms.items()}
            bad.append(~torch.stack(list(terms.values())).isfinite().all())
            if (bound := self.bounds[Kind.LOSS_SPIKE][0]) is not None:
                bad.append(terms["loss"] > bound)
        if found := norms(self._written_buffers(anew=not (ends and self._stepped))):
            now = joined(found, self._harness.device)
            self._numbers["buffers"] = torch.maximum(now, self._numbers.get("buffers", now))  # a NaN stays one
            bad.append(~now.isfinite())
        if bad:
            self._latch.add(torch.stack(bad).any())

    def _finish(self) -> None:
        """The step is over: what is to be read is on its way."""
        device = self._harness.device
        if self._stepped and (found := norms(self._doubtful())):
            self._numbers["parameters"] = joined(found, device)
        after = _scaler(self._harness)
        if self._before_scaler and after:
            self._numbers |= self._before_scaler | {f"after {name}": value for name, value in after.items()}
        self._reading = _Reading({"latched": self._latch.value, **self._numbers}, device)
        self._numbers = {}

    def _doubtful(self) -> list[torch.nn.Parameter]:
        """Parameters that may have become infinite: all, or what was written into by others than optimizers of which
        it was known, when they stepped, that they cannot. Fused ones leave no trace in a version."""
        if self._whole:
            return self._params
        now = between.versions(self._params)
        if now == self._param_versions:
            return []
        return [one for one, was, is_now in zip(self._params, self._param_versions, now) if was != is_now]

    def _written_buffers(self, *, anew: bool) -> list[torch.Tensor]:
        """Since this was asked last. anew: there may be others in their places."""
        before = dict(zip(self._buffers, self._versions))
        now = buffers(self._harness) if anew else self._buffers
        counts = between.versions(list(now.values()))
        written = [
            one for (name, one), n in zip(now.items(), counts)
            if one is not self._buffers.get(name) or n != before[name]
        ]  # fmt: skip
        self._buffers, self._versions = now, counts
        return written

    def _judge_numbers(self, numbers: Mapping[str, float]) -> None:
        self._judge_losses()
        if self._judged and not isfinite(numbers.get("grad_norm", 0.0)):
            self._symptoms.append(Symptom(kind=Kind.NONFINITE_GRAD, where="backward"))
        for what, where in ("parameters", "optimizer"), ("buffers", "buffers"):
            if not isfinite(numbers.get(what, 0.0)) and not (what == "parameters" and self._only_large(numbers[what])):
                self._symptoms.append(Symptom(kind=Kind.NONFINITE_PARAM, where=where))

    def _only_large(self, norm: float) -> bool:
        """Squares overflowed, and the parameters are finite: they would not be so again, had they been anything else.
        """
        return isinf(norm) and all_finite(self._parameters.values())

    def _scale_of(self, numbers: Mapping[str, float], prefix: str) -> scaler.Scale:
        backoff = self._harness.scaler.get_backoff_factor() if self._harness.scaler else 1.0
        return scaler.Scale(
            scale=numbers[f"{prefix}scale"], tracker=int(numbers[f"{prefix}tracker"]), backoff=backoff
        )


class _Reading:
    """Numbers on their way to the host."""

    def __init__(self, numbers: Mapping[str, torch.Tensor], device: torch.device) -> None:
        self.names = list(numbers)
        self.event: Any = None
        self.host = torch.stack([_number(one, device) for one in numbers.values()]) if numbers else torch.zeros(0)
        if device.type == "cuda":
            pinned = torch.empty(self.host.shape, dtype=self.host.dtype, pin_memory=True)
            self.host = pinned.copy_(self.host, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    @property
    def ready(self) -> bool:
        return self.event is None or bool(self.event.query())

    def numbers(self) -> dict[str, float]:
        if self.event is not None:
            self.event.synchronize()
        return dict(zip(self.names, map(float, self.host.cpu().numpy())))


def _has_closure(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether an optimizer was handed one: it is called in its step, and may make the gradients only there."""
    return named.get("closure") is not None or any(map(callable, arguments[1:]))


def _number(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Without dimensions, on the device, in the widest type that it has."""
    wide = torch.float32 if device.type == "mps" else torch.float64
    return value.detach().reshape(()).to(device=device, dtype=wide, non_blocking=True)


def joined(found: list[torch.Tensor], device: torch.device) -> torch.Tensor:
    """The norm of all from norms of parts."""
    if len(found) == 1:
        return _number(found[0], device)
    return torch.stack([_number(one, device) for one in found]).square().sum().sqrt()


def _scaler(harness: Harness) -> dict[str, torch.Tensor]:
    """What a GradScaler holds on the device, copied there; nothing where it has not begun."""
    held = {"scale": "_scale", "tracker": "_growth_tracker"}
    found = {name: getattr(harness.scaler, attribute, None) for name, attribute in held.items()}
    return {name: value.clone() for name, value in found.items() if value is not None}


