from collections.abc import Callable
from pathlib import Path

import av
import numpy as np
import pytest


@pytest.fixture
def make_video(tmp_path: Path) -> Callable[..., Path]:
    """Write an MP4 of moving noise, so that no frame is flat."""

    def make(frames: int, *, width: int = 128, height: int = 96, name: str = "noise.mp4") -> Path:
        rng = np.random.default_rng(frames)
        with av.open(str(tmp_path / name), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            for _ in range(frames):
                pixels = rng.integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
                container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            container.mux(stream.encode())
        return tmp_path / name

    return make
