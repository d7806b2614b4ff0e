"""Batches of video windows, the same ones in every pass over the loader.

Each video is cut into windows of T frames, evenly spaced. The last window reaches a few frames past the end: it is
padded with black frames, or dropped. Most loaders have such a window, by accident of a video's length; here the windows
are laid out from the end, so that every video has exactly one, whatever its length. Padding comes after the
augmentations, so black stays black.

Windows are streamed in order through a shuffle buffer: a video is decoded when its turn comes. A window cannot leave
the buffer before it entered, so the padded one, the last of its video, comes after all but `shuffle` of those before
it. All draws come from one private generator, made anew for each pass: a pass leaves no state behind.

Views of one window must show the same frames. A batch does not say which those are, so `timed` gives them beside it:
the indices by which frames were taken, not those by which they should have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from reprokit.errors import BadInput
from reprokit.video.clips import decode, find_clips
from reprokit.video.views import global_view, local_view


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Frames of one video."""

    video: Path
    first: int  # index of its first frame
    real: int  # frames that the video has; what is missing up to T is black


class Views(NamedTuple):
    """Of one window, with the index of each of their frames in the video; -1 for a black one."""

    whole: Tensor  # [T, C, H, W]
    local: Tensor  # [V, T, C, h, w]
    whole_times: Tensor  # [T]
    local_times: Tensor  # [V, T]


def cut(count: int, *, frames: int, windows: int, overhang: int, pad_last: bool) -> list[tuple[int, int]]:
    """First frame and real frames of at most `windows` windows over a video of `count` frames, in order of time.

    The last one reaches `overhang` frames past the end. Two neighbours are at least so far apart, thus only the last is
    short. A video shorter than a window is one short window.
    """
    last = max(0, count - frames + overhang)
    stride = max(1, overhang, last // max(1, windows - 1))
    firsts = sorted(range(last, -1, -stride)[:windows])
    spans = [(first, min(frames, count - first)) for first in firsts]
    return [(first, real) for first, real in spans if pad_last or real == frames]


@dataclass(frozen=True, kw_only=True, slots=True)
class Loader:
    """`steps` batches. Reads no video, and needs none, before it is iterated."""

    paths: Sequence[str]  # none: the sample clips
    steps: int
    batch_size: int
    frames: int  # T
    windows: int  # of one video, at most
    overhang: int  # frames that the last window of a video lacks
    pad_last: bool  # False drops that window
    max_frames: int  # read of one video
    short_side: int  # pixels of a decoded frame's shorter side
    views: int  # V
    global_size: int
    local_size: int
    shuffle: int  # windows in the shuffle buffer
    seed: int

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (batch for batch, _ in self.timed())

    def timed(self) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
        """The same batches, each with the indices of its frames: global [B, T], local [B, V, T]."""
        generator = Generator().manual_seed(self.seed)
        videos: dict[Path, Tensor] = {}
        samples = shuffled(self._windows(videos), self.shuffle, generator)
        for _ in range(self.steps):
            windows = [next(samples) for _ in range(self.batch_size)]
            views = [self._views(videos[window.video], window, generator) for window in windows]
            whole, local, whole_times, local_times = map(torch.stack, zip(*views))
            source = [f"{window.video.name}:{window.first}" for window in windows]
            yield {"global": whole, "local": local, "source": source}, {"global": whole_times, "local": local_times}

    def _windows(self, videos: dict[Path, Tensor]) -> Iterator[Window]:
        """Epoch after epoch, video by video; each is decoded when its turn comes first."""
        paths = find_clips(self.paths)
        while True:
            found = False
            for path in paths:
                if path not in videos:
                    videos[path] = decode(path, short_side=self.short_side, limit=self.max_frames)
                for first, real in self._cut(len(videos[path])):
                    found = True
                    yield Window(video=path, first=first, real=real)
            if not found:
                names = ", ".join(path.name for path in paths)
                raise BadInput(f"{names}: shorter than {self.frames} frames; give a longer video, or pad_last: true")

    def _cut(self, count: int) -> list[tuple[int, int]]:
        return cut(count, frames=self.frames, windows=self.windows, overhang=self.overhang, pad_last=self.pad_last)

    def _views(self, video: Tensor, window: Window, generator: Generator) -> Views:
        """All of the same frames."""
        local = [self._times(window) for _ in range(self.views)]
        crops = [local_view(video[times], self.local_size, generator) for times in local]
        whole = self._times(window)
        return Views(
            _padded(global_view(video[whole], self.global_size, generator), self.frames),
            torch.stack([_padded(view, self.frames) for view in crops]),
            _padded(whole, self.frames, -1),
            torch.stack([_padded(times, self.frames, -1) for times in local]),
        )

    def _times(self, window: Window) -> Tensor:
        """Indices of the frames that a view shows."""
        return torch.arange(window.first, window.first + window.real)


def shuffled(windows: Iterator[Window], size: int, generator: Generator) -> Iterator[Window]:
    """A stream in random order, by drawing from a buffer of the next `size` entries. The stream is endless."""
    buffer = [next(windows) for _ in range(max(1, size))]
    while True:
        drawn = int(torch.randint(len(buffer), (), generator=generator))
        yield buffer[drawn]
        buffer[drawn] = next(windows)


def _padded(frames: Tensor, count: int, value: int = 0) -> Tensor:
    """Black frames at the end, up to `count`."""
    return torch.cat([frames, frames.new_full((count - len(frames), *frames.shape[1:]), value)])
