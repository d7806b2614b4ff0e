"""What becomes of a batch on its way: what the encoder receives, and how that depends on the batch.

Sizes cannot tell an exchange of axes from a reshape, and the content of one batch cannot tell a normalisation from a
dark scene. So the batch is filled with noise that fills the loader's own range, and the step is run on that: a change
of one frame then shows where frames go, and the range that comes out shows what the numbers went through. Everything
is restored before each run, generators too, so that nothing but the change makes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor, nn

from reprokit.harness import Harness, autocasting, named_modules
from reprokit.layout import SHARED, Layout
from reprokit.smoke.bench import Bench, eager
from reprokit.smoke.encoders import encoders
from reprokit.smoke.laps import copied
from reprokit.step import rng
from reprokit.step.finite import all_finite
from reprokit.step.probe import named_terms

SAMPLES = 16  # of one call that are kept: a copy of all of them may not fit beside training
OWN = 0x5EED  # no batch of noise that a loader drew from the same seed is this noise
CLIP = 5  # axes of what an encoder takes: [B, C, T, H, W]


@dataclass(kw_only=True, slots=True)
class Received:
    """One call of a module with a clip."""

    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    finite: bool
    clip: Tensor  # SAMPLES of it, from all over
    training: bool
    tokens: tuple[int, ...] | None = None  # shape of what came out, where that is [B, N, D]
    gave: str = "nothing"  # the type of it


@dataclass(kw_only=True, slots=True)
class Seen:
    """What one forward pass of the step showed."""

    received: list[Received] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    error: Exception | None = None

    @property
    def loss(self) -> float:
        """The sum alone: other terms may only be watched. NaN where the step raised."""
        return self.losses.get("loss", float("nan"))


class Trials(Bench):
    """Forward passes of a step, each from the same state and the same generators."""

    def __init__(self, harness: Harness, seed: int) -> None:
        super().__init__(harness, seed)
        self._layout = Layout.parse(harness.layout)

    def forward(self, batch: Any, seed: int | None = None) -> Seen:
        """The step alone, on a copy of the batch. What it raises is in what was seen. A step that optimizes by itself
        does so; its state is restored. seed: by another than the usual one."""
        seen = Seen()
        self.rewind()
        if seed is not None:
            rng.seed(seed)
        with eager(), listening(self.harness, self._sizes(batch), seen.received):
            try:
                with autocasting(self.harness):
                    losses = self.harness.step(copied(batch))
                seen.losses = {name: float(term.detach()) for name, term in named_terms(losses).items()}
            except Exception as error:
                seen.error = error
        self.rewind()
        return seen

    def _sizes(self, batch: Any) -> set[tuple[int, int]]:
        return {size for picture in pictures(batch, self._layout).values() for size in picture.sizes}


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """An entry of a batch that holds pictures."""

    name: str
    value: Tensor
    axes: tuple[str, ...]

    @property
    def frames(self) -> int | None:
        """The place of its axis of frames."""
        return self._place("t")

    @property
    def rows(self) -> int | None:
        """The place of the axis along which a row comes after another, where the layout calls it h."""
        return self._place("h")

    @property
    def columns(self) -> int | None:
        """The same of columns, w."""
        return self._place("w")

    @property
    def channels(self) -> int | None:
        """How many there are, where the layout calls them c."""
        return next((self.value.shape[i] for i, axis in enumerate(self.axes) if axis == f"{self.name}.c"), None)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Height and width, whether channels come before or after them."""
        return [tuple(self.value.shape[-2:]), tuple(self.value.shape[-3:-1])]  # type: ignore[list-item]

    def _place(self, letter: str) -> int | None:
        return next((i for i, axis in enumerate(self.axes) if axis in (letter, f"{self.name}.{letter}")), None)


def pictures(batch: Any, layout: Layout) -> dict[str, Picture]:
    """Bytes with two axes of their own at least, height and width, or floats with three: those with two may be masks,
    or features of tokens."""
    found = {}
    for name, value in layout.leaves(batch).items():
        axes = layout.axes_of(name)
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else value
        if not isinstance(tensor, Tensor) or tensor.ndim < 3 or tensor.ndim != len(axes):
            continue
        least = 2 if tensor.dtype == torch.uint8 else 3
        if (least == 2 or tensor.is_floating_point()) and sum(axis not in SHARED for axis in axes) >= least:
            found[name] = Picture(name=name, value=tensor, axes=axes)
    return found


def noise(batch: Any, layout: Layout, seed: int) -> Any:
    """The batch with uniform noise in all pictures, over the range of bytes, or over that of the floats there."""
    generator = Generator().manual_seed(seed ^ OWN)
    return _repainted(batch, layout, lambda picture: _noise_like(picture.value, generator))


def striped(batch: Any, layout: Layout, seed: int) -> Any:
    """The same with noise that is equal along each row: pictures vary from row to row alone."""
    generator = Generator().manual_seed(seed ^ OWN)

    def stripes(picture: Picture) -> Tensor:
        new = _noise_like(picture.value, generator)
        if picture.columns is not None and new.numel():
            new.copy_(new.narrow(picture.columns, 0, 1).clone())
        return new

    return _repainted(batch, layout, stripes)


def _repainted(batch: Any, layout: Layout, paint: Callable[[Picture], Tensor]) -> Any:
    found = pictures(batch, layout)

    def painted(name: str, value: Any) -> Any:
        if name not in found:
            return value
        new = paint(found[name])
        return new.numpy() if isinstance(value, np.ndarray) else new

    return layout.changed(batch, painted)


def other_frame(batch: Any, donor: Any, layout: Layout, frame: int) -> Any:
    """The batch with one frame of each picture that has frames from the donor."""
    found, donors = pictures(batch, layout), pictures(donor, layout)

    def changed(name: str, value: Any) -> Any:
        if name not in found or (axis := found[name].frames) is None or found[name].value.shape[axis] <= frame:
            return value
        new = found[name].value.clone()
        new.select(axis, frame).copy_(donors[name].value.select(axis, frame))
        return new.numpy() if isinstance(value, np.ndarray) else new

    return layout.changed(batch, changed)


def _noise_like(tensor: Tensor, generator: Generator) -> Tensor:
    if tensor.dtype == torch.uint8:
        return torch.randint(0, 256, tensor.shape, generator=generator, dtype=torch.uint8).to(tensor.device)
    finite = tensor[tensor.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 1.0)
    drawn = torch.rand(tensor.shape, generator=generator) * ((high - low) or 1.0) + low
    return drawn.to(tensor.device, tensor.dtype)


@contextmanager
def listening(harness: Harness, sizes: set[tuple[int, int]], heard: list[Received]) -> Iterator[None]:
    """Within it, each clip that an encoder is called with is added. Where the harness has no encoder: what the first
    module with a matrix of weights receives that is called with a picture of one of these sizes; what comes before that
    may be there to normalise."""
    known = encoders(harness)
    chosen: list[nn.Module] = []

    def takes(module: nn.Module, given: Tensor) -> bool:
        if known:
            return True
        weighs = any(parameter.ndim > 1 for parameter in module.parameters(recurse=False))
        if not chosen and weighs and given.ndim >= 4 and tuple(given.shape[-2:]) in sizes:
            chosen.append(module)
        return bool(chosen) and module is chosen[0]

    with _hooked(known or dict(named_modules(harness)), takes, heard):
        yield


@contextmanager
def _hooked(
    modules: Mapping[str, nn.Module], takes: Callable[[nn.Module, Tensor], bool], heard: list[Received]
) -> Iterator[None]:
    handles: list[Any] = []
    open_calls: dict[int, Received] = {}

    def listen(name: str, module: nn.Module) -> None:
        def before(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if torch._C._current_graph_task_id() != -1:  # a checkpoint's second forward pass, within a backward one
                return
            given = next((one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)), None)
            if given is not None and takes(module, given):
                heard.append(_received(name, module, given))
                open_calls[id(module)] = heard[-1]

        def after(_: nn.Module, __: Any, output: Any) -> None:
            if (call := open_calls.pop(id(module), None)) is not None:
                found = tokens_in(output)
                call.tokens, call.gave = None if found is None else tuple(found.shape), type(output).__name__

        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))

    for name, module in modules.items():
        listen(name, module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _received(name: str, module: nn.Module, given: Tensor) -> Received:
    return Received(
        module=name,
        shape=tuple(given.shape),
        dtype=given.dtype,
        finite=all_finite([given]),
        clip=given.detach()[_some(len(given))].clone(),
        training=module.training,
    )


def _some(count: int) -> Tensor:
    """Which are kept of so many, always the same: by chance, since views of a sample stand together in one project, and
    samples of a view in another."""
    return torch.randperm(count, generator=Generator().manual_seed(count))[:SAMPLES].sort().values


def tokens_in(output: Any) -> Tensor | None:
    """What an encoder gave, or the part of it that is tokens [B, N, D]; None where there is none."""
    if isinstance(output, Tensor):
        return output if output.ndim == 3 else None
    parts = output.values() if isinstance(output, Mapping) else output if isinstance(output, list | tuple) else ()
    return next((part for part in parts if isinstance(part, Tensor) and part.ndim == 3), None)
