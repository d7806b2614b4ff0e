"""Changed experiments for a failure that comes each time, in the order in which people look.

Each changes one thing and asks whether the step still fails. None of them is the captured step, and none is counted
with its attempts: one that still fails rules a cause out, and one that passes says where to look. Pure: nothing here
runs anything; what cannot be asked says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import torch

from reprokit.step.case import Case
from reprokit.triage.changes import Change, Subject

CLIP = 1.0  # the norm that most recipes clip to
_MANY = 16  # values of an entry from which on it is data, and not a handful of numbers
_LOW = (torch.float16, torch.bfloat16)


def known(subject: Subject) -> list[Change]:
    """All of them, in the order in which people look."""
    return [replace(change, group=group_of(make)) for make in MAKERS for change in make(subject)]


def group_of(make: Callable[[Subject], Iterator[Change]]) -> str:
    """The name of what it makes, as `--only` has it."""
    return make.__name__.strip("_").replace("_", "-")


def _inputs(subject: Subject) -> Iterator[Change]:
    for entry, tensor in _data(subject):
        named = f"entry {entry}" if entry else "the batch"
        for label, change, finds in _on_inputs(entry, tensor):
            yield Change(
                changed=f"inputs: {named} {label}",
                case=replace(subject.base, **change),
                passes=f"{finds} decides; it is {_range(tensor)}",
                fails=f"not {finds}",
                suggests=f"look at how {named} is decoded and normalised: {label}, the step passes",
            )


def _on_inputs(entry: str, tensor: torch.Tensor) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Label, change of the case, and what it asks about."""
    if not tensor.is_floating_point():
        yield "as float32", {"dtypes": {entry: "float32"}}, "its integer dtype, which overflows,"
        return
    values = tensor.float()
    if tensor.dtype in _LOW:
        yield "as float32", {"dtypes": {entry: "float32"}}, "its low precision"
    if not values.isfinite().all():
        yield "with 0 for NaN and infinities", {"values": {entry: "finite"}}, "a value in it that is not finite"
    good = values[values.isfinite()]
    if good.numel() and (float(good.min()), float(good.max())) != (0.0, 1.0):
        yield "scaled into 0 to 1", {"values": {entry: "unit"}}, "its range"


def _learning_rate(subject: Subject) -> Iterator[Change]:
    beside, why = _from_earlier(subject)
    highest = max(subject.rates, default=0.0)
    why = why or ("" if highest else "no optimizer has a learning rate above 0")
    for label, value in ((f"{highest / 10:g} in place of {highest:g}", highest / 10), ("0", 0.0)):
        yield Change(
            changed=f"learning rate: {label}{_over(beside)}",
            case=subject.variant("learning rate", label, beside, harness=_harness(subject, lr=value)),
            why_not=why,
            passes="the size of the updates decides",
            fails="not the learning rate of the steps that the incident holds",
            suggests="lower the learning rate or lengthen its warm-up" if value else "",
            beside=beside,
        )


def _precision(subject: Subject) -> Iterator[Change]:
    words = {
        "float32": ("low precision decides: a value overflows it, or vanishes in it", "not low precision"),
        "float64": ("rounding decides, or a value too large for what it is computed in", "not rounding"),
        "bfloat16": ("the range of a dtype decides, not its digits: bfloat16 has float32's range", "not range alone"),
    }
    advice = "in float32 it passes: keep the operation that `reprokit locate` names out of float16 and bfloat16"
    for dtype, (passes, fails) in words.items():
        yield Change(
            changed=f"mixed precision: all of it in {dtype}",
            case=subject.variant("mixed precision", dtype, dtype=dtype),
            passes=passes,
            fails=fails,
            suggests={"float32": advice, "bfloat16": "use bfloat16 in place of float16"}.get(dtype, ""),
        )
    yield Change(
        changed="mixed precision: autocast off",
        case=subject.variant("mixed precision", "autocast off", harness=_harness(subject, autocast=None)),
        why_not="" if _autocast(subject.flags) else "no autocast was on around the captured step",
        passes="autocast decides",
        fails="not autocast",
        suggests="train without autocast until the operation is found: `reprokit locate`",
    )


def _batch_size(subject: Subject) -> Iterator[Change]:
    size = _samples(subject)
    why = "" if size else "the layout has no axis b"
    half, every = max(1, size // 2), tuple(range(size))
    more = {"stack": ({"b": ()}, {"b": every})} if subject.donor else {"stack": ({"b": ()}, {"b": ()})}
    few = why or ("" if size > 1 else "the batch has one sample")
    parts = {
        f"{2 * size} samples, with the donor's": (more, why),
        f"the first {half} of {size} samples": ({"keep": {"b": every[:half]}}, few),
        f"the last {size - half} of {size} samples": ({"keep": {"b": every[half:]}}, few),
    }
    for label, (change, reason) in parts.items():
        yield Change(
            changed=f"batch size of the regulariser: {label}",
            case=replace(subject.base, **change),
            why_not=reason,
            passes="how many samples, or which of them, a loss is computed over decides: `reprokit reduce` tells which",
            fails="the failure does not need the other samples" if change is not more else "not too small a batch",
            suggests="give the regulariser more samples: a larger batch, or features gathered over ranks"
            if change is more
            else "",
        )


def _distributed(subject: Subject) -> Iterator[Change]:
    yield Change(
        changed="distributed synchronisation: each rank keeps its own gradients",
        case=subject.variant("distributed", "alone", harness=_harness(subject, synchronise=False)),
        why_not="the step ran in one process" if subject.ranks == 1 else "",
        passes="what other ranks send decides",
        fails="not the exchange of gradients: this rank fails by itself",
        suggests="look at the gradients of the rank that `reprokit show` names first, before they are averaged",
    )


def _clipping(subject: Subject) -> Iterator[Change]:
    beside, why = _from_earlier(subject)
    for label, value in ((f"gradients clipped to {CLIP:g}", CLIP), ("no clipping", None)):
        yield Change(
            changed=f"clipping: {label}{_over(beside)}",
            case=subject.variant("clipping", label, beside, harness=_harness(subject, clip_grad_norm=value)),
            why_not=why,
            passes="the norm of the gradients decides",
            fails="not clipping",
            suggests=f"clip gradients: clip_grad_norm={CLIP:g}" if value else "",
            beside=beside,
        )


def _eager(subject: Subject) -> Iterator[Change]:
    inline = "engine inline is one process, which has compiled already; use process or docker"
    why = "" if subject.seen.compiled else "the step compiles nothing"
    yield Change(
        changed="eager: torch.compile does nothing",
        case=subject.variant("eager", "", env={**subject.base.variant.env, "TORCHDYNAMO_DISABLE": "1"}),
        why_not=why or (inline if subject.seen.engine == "inline" else ""),
        passes="compiled code decides",
        fails="not the compiler",
        suggests="train eagerly, or leave the failing function out of torch.compile, and report it to torch",
    )


def _donor(subject: Subject) -> Iterator[Change]:
    yield Change(
        changed="donor: the last healthy batch on the same state",
        case=replace(subject.base, content="donor"),
        why_not="" if subject.donor else "the incident has no donor: its first step failed",
        passes="this batch is needed: `reprokit reduce` tells which part of it",
        fails="any batch fails: look at the state (weights, optimizer) and the code, not at this batch",
    )


def _fresh(subject: Subject) -> Iterator[Change]:
    yield Change(
        changed="fresh state: the same batch on a model that was just built",
        case=replace(subject.base, state="built", rewind=0),
        passes="the captured state is needed: what training made of weights, statistics or the optimizer",
        fails="batch and code fail by themselves, whatever training did before",
    )


def _decoded(subject: Subject) -> Iterator[Change]:
    yield Change(
        changed="decoded again: the samples as the harness reads them now",
        case=replace(subject.base, content="decoded"),
        passes="the samples were other ones when they were read for this step: a decoder, a disk or augmentation",
        fails="the samples themselves have it: reading them again gives the same failure",
        suggests="compare the captured samples with what the files hold now, and check memory and disk of that host",
    )


MAKERS: tuple[Callable[[Subject], Iterator[Change]], ...] = (
    _inputs,
    _learning_rate,
    _precision,
    _batch_size,
    _distributed,
    _clipping,
    _eager,
    _donor,
    _fresh,
    _decoded,
)


def _harness(subject: Subject, **change: Any) -> dict[str, Any]:
    return {**subject.base.variant.harness, **change}


def _from_earlier(subject: Subject) -> tuple[Case | None, str]:
    """Where the optimizer can matter: in the step itself, or in the steps before it that the incident holds; or why it
    cannot."""
    if subject.base.rewind or not subject.early:
        return None, ""
    return (replace(subject.base, rewind=subject.back), "") if subject.back else (None, subject.early)


def _over(beside: Case | None) -> str:
    return f", over {beside.rewind} step{'s' * (beside.rewind != 1)} before it" if beside else ""


def _data(subject: Subject) -> Iterator[tuple[str, torch.Tensor]]:
    """Entries that are data: with an axis of samples and more beside it."""
    for entry, value in subject.layout.leaves(subject.batch).items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.dtype is not torch.bool:
            whole = not value.is_floating_point()
            if not value.is_complex() and value.numel() and prod(value.shape[1:]) >= (_MANY if whole else 1):
                yield entry, value


def _range(tensor: torch.Tensor) -> str:
    values = tensor.float()
    good = values[values.isfinite()]
    span = f"{good.min():g} to {good.max():g}" if good.numel() else "not finite"
    bad = "" if good.numel() == values.numel() else f", {values.numel() - good.numel()} not finite"
    return f"{str(tensor.dtype).removeprefix('torch.')}, {span}{bad}"


def _samples(subject: Subject) -> int:
    return subject.layout.sizes(subject.batch).get("b", 0)


def _autocast(flags: Mapping[str, Any]) -> bool:
    around = flags.get("autocast") or {}
    return bool(flags.get("harness_autocast")) or any(one.get("enabled") for one in around.values())
