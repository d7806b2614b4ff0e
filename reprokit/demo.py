"""The main job from end to end, on a failure that nobody injected.

The reference model trains on real clips. Its loader pads the last window of a video with black frames, its config asks
for per-frame standardisation, and a black frame has no deviation: 0/0. What follows is what reprokit is for: the step
is captured, reduced, replayed, judged and bundled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reprokit import bundling, pipeline, reducing
from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.errors import ReprokitError
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.pipeline import Options, Subject
from reprokit.progress import Progress
from reprokit.reduce.result import Reduction
from reprokit.replay.result import Replay
from reprokit.video.train import build, default_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Demo:
    """What the demo made; everything but `steps` is None where nothing failed."""

    steps: int
    incident: Incident | None = None
    reduction: Reduction | None = None
    replay: Replay | None = None
    bundle: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        if self.incident is None or self.reduction is None or self.replay is None:
            return {"steps": self.steps, "incident": None, "reduce": None, "replay": None, "bundle": None}
        return {
            "steps": self.steps,
            "incident": {**self.incident.manifest.to_json(), "path": str(self.incident.path)},
            "reduce": self.reduction.to_json(),
            "replay": self.replay.to_json(),
            "bundle": self.bundle,
        }


def run(out: Path, options: Options, progress: Progress, *, video: Path | None = None, healthy: bool = False) -> Demo:
    """Train until a step fails, then take it to a bundle; everything is written below `out`.

    video: a file of one's own instead of the sample clips. healthy: without the padding, where nothing should fail.
    """
    config = default_config()
    config["video"]["paths"] = [str(video)] if video else []
    config["video"]["pad_last"] = not healthy
    steps, captured = _train(config, out / "incidents", progress)
    if captured is None:
        if not healthy:
            raise ReprokitError(
                f"nothing failed in {steps} steps on {video or 'the sample clips'}; try another --video"
            )
        return Demo(steps=steps)
    subject = Subject(incident=Incident.open(captured))
    process = replace(options, engine="process", n=3)  # of a result that is then replayed in containers anyway
    reduction = reducing.reduce(subject, out / "reduced", process, progress)
    assert reduction.path
    smallest = Subject(incident=Incident.open(reduction.path))
    replayed = pipeline.replay(smallest, options, progress)
    file = out / f"{reduction.path.name}.tar.zst"
    image = pipeline.image_of(smallest, options, progress) if replayed.engine == "docker" else None
    written = bundling.bundle(smallest, file, replayed=replayed.to_json(), reduction=reduction.to_json(), image=image)
    return Demo(steps=steps, incident=subject.incident, reduction=reduction, replay=replayed, bundle=written)


def sizes(incident: Incident) -> str:
    """Samples x views x frames of its batch, and bytes: of the batch, and of all of it."""
    axes = Layout.parse(incident.manifest.layout).sizes(incident.batch())
    shape = " x ".join(f"{axes[axis]} {word}" for axis, word in (("b", "samples"), ("v", "views"), ("t", "frames")))
    files = incident.manifest.files
    batch = sum(entry.bytes for path, entry in files.items() if path.startswith(f"{incident.folder}/batch."))
    return f"{shape}   batch {batch / 1024:,.0f} KiB"


def _train(config: Mapping[str, Any], out: Path, progress: Progress) -> tuple[int, Path | None]:
    harness = build(config)
    with Recorder(harness, build=build, config=config, out=out) as recorder:
        total = config["training"]["steps"]
        progress.show("train", 0, total)
        try:
            for step, batch in enumerate(harness.loader or (), start=1):
                losses = recorder.step(batch)
                progress.show("train", step, total, f"loss {losses['loss'].item():.4f}")
        except IncidentCaptured as failure:
            return recorder.steps, failure.path
    return recorder.steps, None
