import copy
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.video import loader as loader_module
from reprokit.video.loader import Loader, Window, cut, shuffled
from reprokit.video.train import _loader, default_config
from reprokit.video.views import global_view


def loader(**changes) -> Loader:
    return replace(_loader(default_config()), **changes)


def spans(frames_in_video, *, frames=8, windows=24, overhang=2, pad_last=True):
    return cut(frames_in_video, frames=frames, windows=windows, overhang=overhang, pad_last=pad_last)


@settings(deadline=None)
@given(st.integers(8, 5000), st.integers(1, 40), st.integers(1, 7))
def test_only_the_last_window_is_short_whatever_the_length_of_the_video(length, windows, overhang):
    *full, (first, real) = spans(length, windows=windows, overhang=overhang)
    assert first + real == length and real == 8 - overhang
    assert len(full) < windows and all(real == 8 and 0 <= first <= length - 8 for first, real in full)
    assert full == spans(length, windows=windows, overhang=overhang, pad_last=False)


@settings(deadline=None)
@given(st.integers(1, 7))
def test_a_video_shorter_than_a_window_is_one_short_window(length):
    assert spans(length, overhang=1) == [(0, length)]
    assert spans(length, overhang=1, pad_last=False) == []


@settings(deadline=None)
@given(st.integers(1, 8), st.integers(0, 100))
def test_a_shuffled_stream_holds_every_window_and_none_before_it_entered(size, seed):
    stream = (Window(video=Path("v"), first=first, real=8) for first in count())
    drawn = list(islice(shuffled(stream, size, torch.Generator().manual_seed(seed)), 50))
    assert len({window.first for window in drawn}) == 50
    assert all(window.first <= place + size - 1 for place, window in enumerate(drawn))


def test_batches_have_the_shapes_of_the_layout():
    config = default_config()
    batch = next(iter(_loader(config)))
    assert batch["global"].shape == (4, 8, 3, 64, 64) and batch["global"].dtype == torch.uint8
    assert batch["local"].shape == (4, 4, 8, 3, 32, 32) and batch["local"].dtype == torch.uint8
    assert all(source.startswith("bigbuckbunny.mp4:") for source in batch["source"])


def test_a_loader_tells_by_which_frames_its_views_were_taken(make_video, monkeypatch):
    monkeypatch.setattr(loader_module, "global_view", lambda frames, size, generator: frames)
    monkeypatch.setattr(loader_module, "local_view", lambda frames, size, generator: frames)
    number = torch.arange(60, dtype=torch.uint8)[:, None, None, None].expand(60, 3, 8, 8)  # a frame shows its index
    monkeypatch.setattr(loader_module, "decode", lambda *_, **__: number)
    timed = list(loader(paths=[str(make_video(60))], steps=6).timed())
    padded = 0
    for batch, times in timed:
        assert times["global"].shape == (4, 8) and times["local"].shape == (4, 4, 8)
        for entry in ("global", "local"):
            black = times[entry] < 0
            padded += int(black.sum())
            assert torch.equal(batch[entry][..., 0, 0, 0].long(), times[entry].clamp(min=0))
    assert padded  # the last window's


def test_every_pass_gives_the_same_batches_and_leaves_torch_alone(make_video):
    ours = loader(paths=[str(make_video(60))], steps=3)
    before = torch.random.get_rng_state()
    once, again = list(ours), list(ours)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert len(once) == len(ours) == 3
    assert all(torch.equal(a["local"], b["local"]) and a["source"] == b["source"] for a, b in zip(once, again))
    other = list(replace(ours, seed=1))
    assert [batch["source"] for batch in other] != [batch["source"] for batch in once]


def test_all_views_show_the_same_frames(make_video, monkeypatch):
    """With frames that carry their number, and views that keep colours."""
    numbered = torch.arange(60, dtype=torch.uint8)[:, None, None, None].expand(60, 3, 40, 40)
    monkeypatch.setattr(loader_module, "decode", lambda path, **_: numbered)
    monkeypatch.setattr(loader_module, "local_view", global_view)
    for batch in loader(paths=[str(make_video(1))], steps=8):
        times = batch["global"][:, :, 0, 0, 0]
        assert (batch["local"] == times[:, None, :, None, None, None]).all()
        for source, row in zip(batch["source"], times.tolist()):
            first = int(source.split(":")[1])
            assert row == [frame if frame < 60 else 0 for frame in range(first, first + 8)]


def black(clip):
    return (clip == 0).flatten(-3).all(dim=-1)


@pytest.mark.parametrize("length", [44, 48, 64, 100, 250])
def test_one_padded_window_after_some_healthy_steps(make_video, length):
    batches = list(loader(paths=[str(make_video(length))]))
    padded = [number for number, batch in enumerate(batches) if black(batch["global"]).any()]
    assert 3 <= padded[0] < 12
    assert_one_padded(batches[padded[0]])


def test_the_sample_clips_fail_at_step_five():
    batches = list(loader(steps=6))
    assert [bool(black(batch["global"]).any()) for batch in batches] == [False] * 5 + [True]
    assert_one_padded(batches[5])


def assert_one_padded(batch):
    """Exactly one sample, with two black frames at its end in every view."""
    (guilty,) = black(batch["global"]).any(dim=1).nonzero().flatten().tolist()
    ends = [False] * 6 + [True] * 2
    assert black(batch["global"][guilty]).tolist() == ends
    assert black(batch["local"][guilty]).tolist() == [ends] * 4
    others = [sample for sample in range(4) if sample != guilty]
    assert not black(batch["local"][others]).any()


def test_without_padding_the_window_is_dropped(make_video):
    video = str(make_video(60))
    assert not any(black(batch["local"]).any() for batch in loader(paths=[video], pad_last=False))


def test_a_loader_reads_no_video_before_it_is_iterated():
    ours = copy.copy(loader(paths=["/no/such/video.mp4"]))
    with pytest.raises(BadInput, match="no such video file"):
        next(iter(ours))


def test_videos_without_a_single_window(make_video):
    with pytest.raises(BadInput, match=r"noise\.mp4: shorter than 8 frames"):
        next(iter(loader(paths=[str(make_video(5))], pad_last=False)))
