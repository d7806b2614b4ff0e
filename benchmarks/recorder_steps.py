"""A recorder on a healthy step, beside a bare step and what people put around one to catch a NaN.

lightly-train's capture of NaNs is not among them: it comes with a torchvision that a torch without CUDA cannot load.

ViT-tiny at 8 frames of 224 x 224 with two local views of 96 x 96 and 95% of the tokens dropped, AdamW fused, and as
many samples as make a bare step of about 0.6 s: each way has a model of its own, with the same weights and the same
batches, and they take turns. A step is forward, backward, clipping, the optimizer and `zero_grad`. A turn is as many
steps as lie between two copies of the state, so that each has its share of one. The paths of docs/recorder.md are each
beside the same loop without a recorder.

Reads of the device are counted, not timed: how often a step makes the host ask for a value (`_local_scalar_dense` and
what leads there), in the recorder's steps minus the bare ones.
"""

from __future__ import annotations

import copy
import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from recorder_pairs import Step, afresh, in_turn, ratio, seconds, timed
from torch.utils._python_dispatch import TorchDispatchMode

from reprokit.capture.history import APART
from reprokit.capture.recorder import Recorder
from reprokit.harness import Harness, parameters
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.video.train import build, default_config

SAMPLES, VIEWS, FRAMES = 4, 2, 8  # of the reads, the peers and the paths, whose steps are shorter
STEP = 0.6  # seconds of the bare step beside which the recorder is judged
WARM = 4  # steps that are not counted: a recorder copies its first ones whole
COUNTED = 20
READS = ("_local_scalar_dense", "is_nonzero", "equal")


def stepped(pairs: int) -> Iterator[dict[str, Any]]:
    """Rows of the recorder, then those of its peers, which need fewer pairs: they are further off."""
    logging.getLogger("reprokit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="reprokit-steps-") as out:
        samples = _samples_for(STEP)
        ours = {
            "bare": lambda: nullcontext(_bare(_harness(), samples)),
            "recorder": lambda: _recording(_harness(), Path(out), samples),
        }
        took = afresh(pairs, ours, APART, WARM)
        clock, used = ({name: [one[i] for one in both] for name, both in took.items()} for i in (0, 1))
        yield ratio("recorder / bare step", clock["recorder"], clock["bare"])
        yield ratio("recorder / bare step, CPU time of all threads", used["recorder"], used["bare"])
        yield seconds("bare step", clock["bare"])
        counted = {"bare": _bare(_harness()), "recorder": _recorded(_harness(), Path(out))}
        yield {**_reads(_warm(counted)), "name": "host reads per healthy step", "unit": "reads"}
        ways = {
            "bare": _bare(_harness()),
            "isfinite for each parameter": _isfinite(_harness()),
            "detect_anomaly": _anomaly(_harness()),
            "transformers' DebugUnderflowOverflow": _debugged(_harness()),
        }
        took = in_turn(pairs // 2, _warm(ways))
        for name in list(ways)[1:]:
            yield ratio(f"{name} / bare step", took[name], took["bare"])


def paths(pairs: int) -> Iterator[dict[str, Any]]:
    """A row for each path of a loop through the recorder."""
    logging.getLogger("reprokit").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="reprokit-paths-") as out:
        for name, change in PATHS.items():
            bare, recorded = _harness(**change), _harness(**change)
            took = in_turn(pairs // 4, _warm({"bare": _run(bare), "recorder": _recorded(recorded, Path(out))}), APART)
            yield ratio(f"recorder / bare step, {name}", took["recorder"], took["bare"])


PATHS: dict[str, dict[str, Any]] = {
    "fused": {},
    "not fused": {"fused": False},
    "GradScaler": {"scaler": True},
    "no clipping": {"clip": None},
    "accumulation of 2": {"accumulate": 2},
    "a teacher by EMA": {"ema": True},
}


def _run(harness: Harness) -> Step:
    """The harness's loop, as a recorder runs it, with nobody looking."""
    batches, count = _batches(), itertools.count()
    blind = Blind(harness)
    return lambda: run(harness, next(batches), blind, micro=next(count) % harness.accumulate)


class Blind(Probe):
    """A probe that does not look."""

    def look_at_losses(self, losses: Any) -> dict[str, torch.Tensor]:
        return dict(losses)

    def look_at_gradients(self, **_: Any) -> None: ...


def _harness(
    *, fused: bool = True, scaler: bool = False, clip: float | None = 1.0, accumulate: int = 1, ema: bool = False
) -> Harness:
    config = default_config()
    config["video"]["frames"] = FRAMES
    config["data"] |= {"global_size": 224, "local_size": 96, "standardize": "imagenet"}
    config["model"] |= {"depth": 12, "tubelet_size": 1, "token_drop_rate": 0.95}
    harness = build(config)
    harness.optimizer = torch.optim.AdamW(parameters(harness).values(), lr=3e-4, weight_decay=0.05, fused=fused)
    harness.features = None
    harness.scaler = torch.amp.GradScaler("cpu", init_scale=256.0) if scaler else None
    harness.clip_grad_norm, harness.accumulate = clip, accumulate
    return _with_teacher(harness) if ema else harness


def _with_teacher(harness: Harness) -> Harness:
    student = harness.modules["encoder"]
    teacher = copy.deepcopy(student).requires_grad_(False)
    harness.modules = {**harness.modules, "teacher": teacher}
    step = harness.step

    @torch.no_grad()
    def follow() -> None:
        torch._foreach_lerp_(list(teacher.parameters()), list(student.parameters()), 0.01)

    def stepped(batch: Any) -> Any:
        follow()
        return step(batch)

    harness.step = stepped
    return harness


def _samples_for(step: float) -> int:
    """How many make a bare step of so many seconds here."""
    (bare,) = _warm({"bare": _bare(_harness())}).values()
    return max(2, round(SAMPLES * step / min(timed(bare) for _ in range(5))))


def _batches(samples: int = SAMPLES) -> Iterator[dict[str, Any]]:
    random = torch.Generator().manual_seed(0)
    pixels = lambda *shape: torch.randint(256, (samples, *shape), generator=random, dtype=torch.uint8)
    kept = [
        {
            "global": pixels(FRAMES, 3, 224, 224),
            "local": pixels(VIEWS, FRAMES, 3, 96, 96),
            "source": [f"{i}-{n}.mp4" for n in range(samples)],
        }
        for i in range(4)
    ]
    while True:
        yield from kept


def _step(harness: Harness, batch: Any, check: Callable[[], None] = lambda: None) -> None:
    (optimizer,) = harness.optimizers.values()
    harness.step(batch)["loss"].backward()
    check()
    torch.nn.utils.clip_grad_norm_(parameters(harness).values(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def _bare(harness: Harness, samples: int = SAMPLES) -> Step:
    batches = _batches(samples)
    return lambda: _step(harness, next(batches))


def _recorded(harness: Harness, out: Path) -> Step:
    batches = _batches()
    recorder = Recorder(harness, build=build, config=default_config(), out=out, rehearse=False)
    return lambda: recorder.step(next(batches))


@contextmanager
def _recording(harness: Harness, out: Path, samples: int) -> Iterator[Step]:
    batches = _batches(samples)
    with Recorder(harness, build=build, config=default_config(), out=out, rehearse=False) as recorder:
        yield lambda: recorder.step(next(batches))


def _isfinite(harness: Harness) -> Step:
    batches = _batches()

    def check() -> None:
        for parameter in parameters(harness).values():
            if not torch.isfinite(parameter).all() or not torch.isfinite(parameter.grad).all():
                raise FloatingPointError

    return lambda: _step(harness, next(batches), check)


def _anomaly(harness: Harness) -> Step:
    batches = _batches()

    def step() -> None:
        with torch.autograd.detect_anomaly(check_nan=True):
            _step(harness, next(batches))

    return step


def _debugged(harness: Harness) -> Step:
    """With hooks on modules, which keep the extremes of what went through each in the last calls. On those without
    parts alone: it cannot look at a mask of booleans, which blocks are given."""
    from transformers.debug_utils import DebugUnderflowOverflow

    whole = torch.nn.ModuleDict(harness.modules)
    DebugUnderflowOverflow(torch.nn.ModuleList([one for one in whole.modules() if not list(one.children())]))
    return _bare(harness)


def _warm(ways: dict[str, Step]) -> dict[str, Step]:
    for step in ways.values():
        for _ in range(WARM):
            step()
    return ways


class _Reads(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in READS
        return func(*args, **(kwargs or {}))


def _reads(ways: dict[str, Step]) -> dict[str, float]:
    counts = {}
    for name, step in ways.items():
        with _Reads() as reads, suppress(StopIteration):
            for _ in range(COUNTED):
                step()
        counts[name] = reads.count / COUNTED
    more = counts["recorder"] - counts["bare"]
    return {"value": more, "low": more, "high": more}
