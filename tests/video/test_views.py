import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.video import views
from reprokit.video.views import global_view, local_view


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def noise(frames=4, height=40, width=56, seed=0):
    return torch.randint(256, (frames, 3, height, width), dtype=torch.uint8, generator=generator(seed))


@pytest.mark.parametrize("view", [global_view, local_view])
def test_a_view_is_bytes_of_the_asked_size(view):
    assert view(noise(), 24, generator()).shape == (4, 3, 24, 24)
    assert view(noise(), 24, generator()).dtype == torch.uint8


@pytest.mark.parametrize("view", [global_view, local_view])
def test_the_same_draw_gives_the_same_view_and_another_seed_another(view):
    assert torch.equal(view(noise(), 24, generator(1)), view(noise(), 24, generator(1)))
    assert not torch.equal(view(noise(), 24, generator(1)), view(noise(), 24, generator(2)))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_all_frames_of_a_view_are_treated_alike(seed):
    still = noise(1).expand(3, -1, -1, -1)
    view = local_view(still, 16, generator(seed))
    assert torch.equal(view[0], view[1]) and torch.equal(view[0], view[2])


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000))
def test_black_stays_black_and_nothing_turns_flat(seed):
    assert not local_view(torch.zeros(2, 3, 40, 56, dtype=torch.uint8), 16, generator(seed)).any()
    bright = 235 + noise(2) % 20
    assert (local_view(bright, 16, generator(seed)).float().std(dim=(1, 2, 3)) > 0).all()


def test_each_augmentation_happens_and_not_always(monkeypatch):
    for name in ("JITTER", "GRAYSCALE", "FLIP"):
        monkeypatch.setattr(views, name, 0)
    plain = local_view(noise(), 16, generator())
    monkeypatch.setattr(views, "FLIP", 1)
    assert torch.equal(local_view(noise(), 16, generator()), plain.flip(-1))
    monkeypatch.setattr(views, "FLIP", 0)
    monkeypatch.setattr(views, "GRAYSCALE", 1)
    grey = local_view(noise(), 16, generator())
    assert torch.equal(grey[:, 0], grey[:, 1]) and torch.equal(grey[:, 0], grey[:, 2])
    monkeypatch.setattr(views, "GRAYSCALE", 0)
    monkeypatch.setattr(views, "JITTER", 1)
    assert local_view(noise(), 16, generator()).float().std() < plain.float().std()
