"""Follow non-finite values through a step, operation by operation, to the one that made them.

Every operation that torch dispatches is looked at: forward, backward and optimizer. A value is *produced* bad where it
comes out of an operation whose inputs and numbers are all finite, or where a NaN comes out of one that got no NaN; all
else that is bad was passed on, and keeps the origin of what it came from. An infinity that was asked for by name, as in
`masked_fill(mask, -inf)`, is no fault: it has no origin until something makes a NaN of it. The question is then asked
from the end: where does the loss, the gradient or the parameter that failed have its bad values from? What went bad and
did not reach them is never blamed. Where those values have no origin, as an infinity that was asked for by name and
went all the way, or what NumPy made, the answer is the first operation that got them.

Of an exception it is the operation that raised it. Most that are raised in Python come from no operation (a check of
shapes, a missing key): then the module that it left first is named, and the line of the user's code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import isfinite, isinf, isnan
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from reprokit.harness import Harness, named_modules

KEPT = 1 << 28  # bytes of an operation's arguments that are copied for a script; past it they are only described
FRAMES = 12  # of the user's code around an operation: the call and what led to it

_BLANK = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_")  # memory as it was left
_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "set_")
_ENGINE = "_engine_run_backward"  # torch's function that autograd runs in; a thread of autograd's own is below none
_HERE = str(Path(__file__).parents[1])
_TORCH = str(Path(torch.__file__).parent)


@dataclass(frozen=True, kw_only=True, slots=True)
class Operation:
    """One that produced bad values."""

    op: str | None  # "aten.div.Tensor"; None: the value was bad when the step began, or Python code raised
    module: str  # path of the innermost module that called it: "encoder.blocks.0.attention"
    phase: str  # forward, backward, optimizer
    producer: (
        str  # the operation; in a backward pass the autograd function, "SqrtBackward0"; else the input, or exception
    )
    inputs: tuple[Mapping[str, Any], ...]
    outputs: tuple[Mapping[str, Any], ...]
    stack: tuple[str, ...]  # of the user's code, innermost last; in a backward pass: of the forward operation first
    step: int | None  # number of the training step in which it ran, or before which the value was bad
    arguments: Mapping[str, Any] | None = field(repr=False)  # copies of args and kwargs; None where they are too large

    def to_json(self) -> dict[str, Any]:
        index = next((one["first"] for one in (*self.outputs, *self.inputs) if one["nan"] or one["inf"]), None)
        return {
            "op": self.op,
            "module": self.module,
            "phase": self.phase,
            "producer": self.producer,
            "inputs": [dict(one) for one in self.inputs],
            "outputs": [dict(one) for one in self.outputs],
            "index": index,
            "stack": list(self.stack),
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class _Bad:
    origin: Operation | None  # None: asked for by name
    nan: bool
    met: Operation | None = None  # where there is no origin: the first operation that got it


class Trace(TorchDispatchMode):
    """A context around a step, or around several one after the other; `origin(tensor)` answers afterwards. Costs a few
    times the step."""

    def __init__(self, harness: Harness, inputs: Mapping[str, torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = {id(module): name for name, module in named_modules(harness)}
        self._inside: list[str] = []  # names of the modules that are running
        self._optimizing = False
        self._bad: dict[int, tuple[StorageWeakRef, _Bad]] = {}
        self._forward: dict[int, tuple[str, tuple[str, ...]]] = {}  # autograd's sequence number -> module, stack
        self._hooks: list[Any] = []
        self._room = KEPT  # for arguments of operations that are to blame for nothing, as of a mask in each layer
        self._raised: tuple[BaseException, Operation] | None = None  # the last operation that raised
        self._leaving: tuple[BaseException, str] | None = None  # an exception, and the first module that it left
        self._step: int | None = None
        self.begin(inputs)

    def begin(self, inputs: Mapping[str, torch.Tensor], step: int | None = None) -> None:
        """What a step starts from, by name. Bad values in it that no operation made are their own origin."""
        self._step = step
        for name, tensor in inputs.items():
            found = describe(tensor)
            if (found["nan"] or found["inf"]) and self._recall(tensor) is None:
                fault = given(name, found, step) if is_fault(name, tensor, found) else None
                self._remember(tensor, _Bad(fault, found["nan"] > 0))

    def __enter__(self) -> Trace:
        entered = lambda module, _: self._inside.append(self._names.get(id(module), ""))
        self._hooks = [
            register_module_forward_pre_hook(entered),
            register_module_forward_hook(self._left, always_call=True),
            register_optimizer_step_pre_hook(lambda *_: self._switch(True)),
            register_optimizer_step_post_hook(lambda *_: self._switch(False)),
        ]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._inside.clear()
        self._optimizing = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        inputs = _read(func, name, args, kwargs)
        before = [(one, describe(one)) for one in inputs]
        arguments = _copies(args, kwargs) if _writes(func) else None  # before they are written to
        module, stack = self._place()
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            read = [known for _, known in before]
            raised = self._operation(func, module, stack, read, (), arguments or _copies(args, kwargs))
            self._raised = error, raised
            raise
        for output in _tensors(result):
            if name in _BLANK or not _holds_numbers(output) or (not _writes(func) and _view(output, inputs)):
                continue
            found = describe(output)
            if found["nan"] or found["inf"]:
                numbers = _bad_numbers(args, kwargs)
                read = [*(known for _, known in before), *numbers]
                given = arguments or _copies(args, kwargs)
                operation = lambda read=read, given=given: self._operation(func, module, stack, read, result, given)
                self._remember(output, self._judge(found["nan"] > 0, before, bool(numbers), operation))
        return result

    def origin(self, tensor: torch.Tensor) -> Operation | None:
        """What made the bad values of a tensor; None where it was not seen, or nothing is to blame."""
        known = self._recall(tensor)
        return known.origin if known else None

    def met(self, tensor: torch.Tensor) -> Operation | None:
        """Of bad values that no operation made, the first one that got them."""
        known = self._recall(tensor)
        return known.met if known else None

    def raised(self, error: BaseException, phase: str) -> Operation:
        """What raised an exception that left the step, in this phase of it."""
        if self._raised and _led_to(self._raised[0], error):
            return self._raised[1]
        left = self._leaving
        return Operation(
            op=None,
            module=left[1] if left and _led_to(left[0], error) else "",
            phase=phase,
            producer=type(error).__name__,
            inputs=(),
            outputs=(),
            stack=_own([*walk_tb(error.__traceback__)][::-1]),
            step=self._step,
            arguments=None,
        )

    def _judge(
        self,
        nan: bool,
        before: Iterable[tuple[torch.Tensor, Mapping[str, Any]]],
        asked: bool,
        operation: Callable[[], Operation],
    ) -> _Bad:
        bad = [
            self._recall(one) or _Bad(None, found["nan"] > 0) for one, found in before if found["nan"] or found["inf"]
        ]
        bad.sort(key=lambda one: (one.origin is None, not one.nan))  # blame before excuse, NaN before infinity
        if bad and bad[0].origin is not None:
            return _Bad(bad[0].origin, nan)
        passed_on = any(one.nan for one in bad) if nan else bool(bad) or asked
        if not passed_on:
            return _Bad(operation(), nan)
        return _Bad(None, nan, next((one.met for one in bad if one.met), None) or self._kept(operation()))

    def _kept(self, operation: Operation) -> Operation:
        size = sum(one.numel() * one.itemsize for one in _tensors(operation.arguments))
        self._room -= min(size, self._room)
        return operation if self._room else replace(operation, arguments=None)

    def _operation(
        self, func: Any, module: str, stack: tuple[str, ...], read: Any, result: Any, arguments: Any
    ) -> Operation:
        node = torch._C._current_autograd_node()
        return Operation(
            op=str(func),
            module=module,
            phase="optimizer" if self._optimizing else "backward" if node is not None else "forward",
            producer=node.name() if node is not None else str(func),
            inputs=tuple(read),
            outputs=tuple(describe(output) for output in _tensors(result)),
            stack=stack,
            step=self._step,
            arguments=arguments,
        )

    def _place(self) -> tuple[str, tuple[str, ...]]:
        """Module and stack; in a backward pass those of the forward operation that it belongs to, and then of what
        autograd calls of the user's: a hook, a Function, a checkpointed forward pass."""
        node = torch._C._current_autograd_node()
        inside, frames = self._inside[-1] if self._inside else "", walk_stack(sys._getframe(1))
        if node is None:
            place = inside, _own(frames)
        else:
            module, stack = self._forward.get(node._sequence_nr(), ("", ()))
            called = _own(takewhile(lambda one: one[0].f_code.co_name != _ENGINE, frames))
            place = inside or module, (*stack, *called)[-FRAMES:]
        # the first operation after autograd made a node is the node's own; what needs no gradient makes none
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        self._forward.setdefault(number, place)
        return place

    def _left(self, *_: Any) -> None:
        error, module = sys.exc_info()[1], self._inside.pop()
        if error and (self._leaving is None or self._leaving[0] is not error):
            self._leaving = error, module

    def _switch(self, optimizing: bool) -> None:
        self._optimizing = optimizing

    def _remember(self, tensor: torch.Tensor, bad: _Bad) -> None:
        reference = StorageWeakRef(tensor.untyped_storage())
        self._bad[reference.cdata] = (reference, bad)

    def _recall(self, tensor: torch.Tensor) -> _Bad | None:
        if not _holds_numbers(tensor):
            return None
        reference, bad = self._bad.get(tensor.untyped_storage()._cdata, (None, None))
        return None if reference is None or reference.expired() else bad


def given(name: str, found: Mapping[str, Any], step: int | None) -> Operation:
    """What was bad before anything of the step ran."""
    return Operation(
        op=None, module="", phase="", producer=name, inputs=(found,), outputs=(), stack=(), step=step, arguments=None
    )


def is_fault(name: str, tensor: torch.Tensor, found: Mapping[str, Any]) -> bool:
    """Whether something is wrong with what a step starts from: negative infinities alone in a buffer are a mask."""
    mask = name.startswith("buffer ") and not found["nan"] and not (tensor == float("inf")).any()
    return bool(found["nan"] or found["inf"]) and not mask


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """Shape, dtype, finite range, how many values are NaN and infinite, and where the first of them is."""
    plain = tensor.detach()
    known: dict[str, Any] = {"shape": list(plain.shape), "dtype": str(plain.dtype).removeprefix("torch.")}
    known |= {"min": None, "max": None, "nan": 0, "inf": 0, "first": None}
    if not _holds_numbers(plain) or not plain.numel() or plain.dtype is torch.bool:
        return known
    if not plain.is_floating_point():
        return known if plain.is_complex() else known | {"min": int(plain.min()), "max": int(plain.max())}
    values = plain.float() if plain.itemsize < 4 else plain
    finite = values.isfinite()
    good = values[finite]
    if good.numel():
        known |= {"min": float(good.min()), "max": float(good.max())}
    if good.numel() < values.numel():
        first = [int(i) for i in (~finite).nonzero()[0]]
        known |= {"nan": int(values.isnan().sum()), "inf": int(values.isinf().sum()), "first": first}
    return known


def _read(func: Any, name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors whose values an operation reads: not those that it only writes."""
    written = {one.name for one in func._schema.arguments if one.alias_info is not None and one.alias_info.is_write}
    only_written = {one for one in written if one.startswith("out")}
    if name in _OVERWRITES:
        only_written |= written
    given = {one.name: value for one, value in zip(func._schema.arguments, args)} | dict(kwargs)
    return _tensors([value for name, value in given.items() if name not in only_written])


def _bad_numbers(args: Any, kwargs: Any) -> list[dict[str, Any]]:
    """Python's own, described as a tensor is."""
    numbers = [one for one in tree_leaves((args, kwargs)) if isinstance(one, float) and not isfinite(one)]
    nothing: dict[str, Any] = {"shape": [], "dtype": "float", "min": None, "max": None, "first": []}
    return [nothing | {"nan": int(isnan(one)), "inf": int(isinf(one))} for one in numbers]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]


def _holds_numbers(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def _view(output: torch.Tensor, inputs: Iterable[torch.Tensor]) -> bool:
    """Whether it is the memory of an input: what is known of that goes for both."""
    memory = output.untyped_storage()._cdata
    return any(_holds_numbers(one) and one.untyped_storage()._cdata == memory for one in inputs)


def _writes(func: Any) -> bool:
    return any(one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments)


def _copies(args: Any, kwargs: Any) -> Mapping[str, Any] | None:
    size = sum(one.numel() * one.itemsize for one in _tensors((args, kwargs)))
    if size > KEPT:
        return None
    copied = lambda tensor: tensor.detach().clone()
    return {
        "args": tree_map_only(torch.Tensor, copied, list(args)),
        "kwargs": tree_map_only(torch.Tensor, copied, kwargs),
    }


def _own(frames: Iterable[tuple[FrameType, int]]) -> tuple[str, ...]:
    """Those outside torch and reprokit, of frames that come innermost first; innermost last."""
    found: list[str] = []
    for frame, line in frames:
        file = frame.f_code.co_filename
        own = not file.startswith((_TORCH, "<")) and (not file.startswith(_HERE) or "/video/" in file)
        if own:
            found.append(f"{file}:{line} in {frame.f_code.co_name}")
        if len(found) == FRAMES:
            break
    return tuple(reversed(found))


def _led_to(cause: BaseException, error: BaseException) -> bool:
    """Whether an exception is this one, or what this one was raised from; autograd may hand on a copy."""
    return any(one is cause or (type(one), one.args) == (type(cause), cause.args) for one in _chain(error))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
