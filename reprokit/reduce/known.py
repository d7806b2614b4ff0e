"""What is known of an incident's batch before anything is asked, and handed to plans without its tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import torch

from reprokit.errors import BadInput
from reprokit.failure import Signature
from reprokit.layout import Layout, Unfit
from reprokit.reduce import hints
from reprokit.reduce.asking import Indices
from reprokit.reduce.batched import room
from reprokit.reduce.minimise import Setup
from reprokit.reduce.model import Model
from reprokit.reduce.moves import Part, axes_of, cuttable, total, weigher
from reprokit.reduce.values import ORDER, candidates
from reprokit.step import smooth, values
from reprokit.step.case import Case, Simpler
from reprokit.step.refit import same
from reprokit.step.rewind import axis as history
from reprokit.step.rewind import healthy, split

if TYPE_CHECKING:
    from reprokit.incident import Incident

Source = Literal["captured", "generated"]
_OTHER: tuple[Simpler, ...] = ("zero", "constant")
_LARGE = 1 << 26  # bytes: four digests of it take a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """Of one batch and its donor."""

    setup: Setup
    weigh: Callable[[Case], float]
    donor: Source | None  # what is taken for healthy content
    copied: Mapping[str, tuple[Simpler, ...]]  # numbers of the batch in generated content, and what changes them
    equal: bool  # the donor healed into the batch's shape is the donor itself
    unfit: str
    suspects: Mapping[str, Indices]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, incident: Incident, signature: Signature, rewind: int, model: Model) -> Known:
        layout, batch, donor = Layout.parse(incident.manifest.layout), incident.batch(), healthy(incident, rewind)
        axes, notes, lengths = axes_of(layout, batch, rewind), [], {}
        source: Source = "captured" if donor is not None else "generated"
        if donor is None:
            donor = smooth.generated(batch, layout)
            before = f"no healthy batch is kept from before those {rewind + 1} steps"
            what = before if rewind else "the incident has no donor"
            notes.append(f"{what}: smooth content of the batch's range was taken for healthy")
        try:
            lengths = layout.sizes(donor)
        except BadInput as error:
            notes.append(f"the donor was not used: {error}")
            donor = None
        weigh = weigher(layout, axes, lengths)
        whole = Part.of(incident.path, axes, total(layout, batch), rewind)
        left = {axis: weigh(whole.drop_all_but(axis, axes[axis][:1]).case()) for axis in axes if cuttable(axis)}
        equal, unfit = _fits(layout, batch, donor)
        sizes = layout.sizes(batch)
        setup = Setup(
            whole=whole,
            axes=tuple(sorted(left, key=lambda axis: (axis != "b", left[axis]))),
            axes_of=layout.entries,
            inner=_inner(layout, axes),
            simpler=_simpler(layout, batch, donor),
            texts=tuple(entry for entry, value in layout.leaves(batch).items() if _is_text(value)),
            kind=signature.kind,
            room=lambda keep: room(layout, sizes, keep),
            model=model,
            last={history(layout): rewind} if rewind else {},
        )
        return cls(
            setup=setup,
            weigh=weigh,
            donor=source if donor is not None else None,
            copied=_copied(layout, batch, donor) if source == "generated" and donor is not None else {},
            equal=equal and not rewind,
            unfit=unfit,
            suspects=hints.suspects(batch, donor, layout),
            notes=tuple(notes),
        )


def _copied(layout: Layout, batch: Any, donor: Any) -> dict[str, tuple[Simpler, ...]]:
    """Labels, masks, lengths, and what other values they can be given. Texts and objects have none."""
    others, found = layout.leaves(donor), dict[str, tuple[Simpler, ...]]()
    for entry, value in layout.leaves(batch).items():
        if same(value, others[entry]):
            with suppress(BadInput):
                found[entry] = tuple(kind for kind in _OTHER if not same(values.simpler(value, kind, entry), value))
    return found


def _inner(layout: Layout, axes: Mapping[str, Indices]) -> dict[str, tuple[str, ...]]:
    """Entry -> its axes that can only be healed: rows and columns before channels; large entries first."""
    found = {}
    for entry, own in layout.entries.items():
        inside = [axis for axis in own if not cuttable(axis) and len(axes[axis]) > 1]
        if inside:
            found[entry] = tuple(sorted(inside, key=lambda axis: axis.rpartition(".")[2] not in ("h", "w")))
    size = lambda entry: prod(len(axes[axis]) for axis in layout.entries[entry])
    return {entry: found[entry] for entry in sorted(found, key=size, reverse=True)}


def _simpler(layout: Layout, batch: Any, donor: Any) -> Callable[[Part, str], tuple[Simpler, ...]]:
    """What is worth a question about an entry of a part; of a large one, slow to compare, whatever there is."""

    @cache
    def of(case: str, entry: str) -> tuple[Simpler, ...]:
        part = split(Case.from_json(json.loads(case)), layout)[-1]
        assert part is not None  # the failing step is never dropped
        content = layout.heal(batch, donor, part.heal) if part.heal else batch
        value = layout.leaves(layout.select(content, part.keep))[entry]
        size = value.numel() * value.element_size() if isinstance(value, torch.Tensor) else 0
        return ORDER if size > _LARGE else tuple(candidates(value))

    return lambda part, entry: of(json.dumps(part.case().to_json(), sort_keys=True), entry)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list | tuple) and any(isinstance(one, str) for one in value))


def _fits(layout: Layout, batch: Any, donor: Any) -> tuple[bool, str]:
    """Whether the donor healed into the batch's shape is the donor itself, and else why it cannot be healed into it."""
    if donor is None:
        return False, ""
    try:
        return same(layout.heal(batch, donor, ({},)), donor), ""
    except Unfit as error:
        return False, str(error)
