"""The failing step once more, from its start, looked at closely.

What a latch tells is coarse: some gradient was not finite. By the time that anybody reads it the gradients are gone,
but what the step started from is there, so the step can be run again where it failed. If its losses come out equal bit
for bit and it fails in the same way, then what this run shows (parameters by name, how many values) is what happened.

A latch can also be wrong. It looks at squares, which overflow for finite values near 1e19 and above. If the step comes
out the same, overflows in the same way, and each value is finite, then nothing was wrong but the look; or it was a
spike, which has a bound of its own. A step that merely fails no longer did fail, and is a failure that comes and goes.
"""

from __future__ import annotations

from math import isinf, nan

import torch

from reprokit import failure, tree
from reprokit.capture.latch import LateProbe, joined
from reprokit.capture.logs import one_line
from reprokit.capture.snapshot import Snapshot
from reprokit.failure import Kind
from reprokit.harness import Harness, buffers, put_state
from reprokit.step import detectors, flags, rng
from reprokit.step.finite import norms
from reprokit.step.probe import Probe
from reprokit.step.run import run

_ROOT = torch.finfo(torch.float32).max ** 0.5  # a norm from which on its square overflows


def again(harness: Harness, start: Snapshot, late: LateProbe) -> tuple[Probe, str]:
    """What the step shows when it is run again, nothing where nothing failed; what is known already where it comes out
    otherwise, and then a line on that. Afterwards the harness is as it was when the step began, and so are the
    generators. Raises what keeps it from being put back."""
    if start.state is None or start.batch is None or in_company():
        return late, ""
    _back_to(harness, start)
    try:
        with flags.entered(start.flags):
            probe, large = _run(harness, start, late)
    except Exception as error:  # what failed quietly and now raises is another failure
        return late, f"the step, run again from what is held here, raised {one_line(error)}"
    finally:
        _back_to(harness, start)
    before, now = failure.first(late.symptoms), failure.first(probe.symptoms)
    same = probe.fingerprint().get("losses") == late.fingerprint().get("losses")
    if same and (now == before or (before and before.kind in large)):
        return probe, ""
    came = ", ".join(f"{name} {value:g} for {late.losses.get(name, nan):g}" for name, value in probe.losses.items())
    other = "failed in another way" if same else f"gave other losses ({came})"
    why = "it is not deterministic, or something wrote into its state without a trace (`.data`, NumPy)"
    return late, f"the step, run again from what is held here, {other}: {why}"


def in_company() -> bool:
    """Other ranks would have to run it too."""
    return torch.distributed.is_available() and torch.distributed.is_initialized() and (
        torch.distributed.get_world_size() > 1
    )


def _run(harness: Harness, start: Snapshot, late: LateProbe) -> tuple[Probe, set[Kind]]:
    """With the kinds that a latch would see in it only because squares overflow."""
    watching = detectors.of_one_step(late.symptoms, late.bounds, start.loop.get("skips", 0))
    assert start.batch is not None
    batch = tree.unpack(start.batch)
    with Probe(harness, watching, batch) as probe:
        run(harness, batch, probe, micro=start.loop["micro"])
    probe.fingerprint()  # while the harness still is what the step made of it
    overflowed = isinf(late.grad_norm or 0.0) and (probe.grad_norm or 0.0) >= _ROOT
    large = {Kind.NONFINITE_GRAD} if overflowed else set()
    if (found := norms(buffers(harness).values())) and isinf(float(joined(found, harness.device))):
        large.add(Kind.NONFINITE_PARAM)
    return probe, large - {symptom.kind for symptom in probe.symptoms}


def _back_to(harness: Harness, start: Snapshot) -> None:
    assert start.state is not None
    put_state(harness, start.state)
    rng.put(start.rng)
