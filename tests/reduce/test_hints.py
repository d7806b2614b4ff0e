"""What stands out is named first, from contents alone; what the donor has as well does not stand out."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.layout import Layout
from reprokit.reduce.hints import from_rows, suspects
from reprokit.step.outcome import Outcome, Status

LAYOUT = Layout.parse({"global": "b t c h w", "local": "b v t c h w", "valid": "b t", "label": "b", "path": "b"})
B, V, T = 6, 3, 5


def clips(seed=0):
    generator = torch.Generator().manual_seed(seed)
    image = lambda *shape: torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    return {
        "global": torch.rand(B, T, 3, 8, 8, generator=generator) + 0.1,
        "local": image(B, V, T, 3, 4, 4),
        "valid": torch.rand(B, T, generator=generator) < 0.8,
        "label": torch.randint(0, 1000, (B,), generator=generator),
        "path": [f"clip{i}" for i in range(B)],
    }


def found(damage, layout=LAYOUT, batch=None, donor="healthy"):
    batch = clips() if batch is None else batch
    damage(batch)
    return suspects(batch, clips(1) if isinstance(donor, str) else donor, layout)


def put(key, place, value):
    def damage(batch):
        batch[key][place] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (put("local", (2, 1, 3), 0), {"b": (2,), "v": (1,), "t": (3,)}),
        (put("global", (4, 2), 0.7), {"b": (4,), "t": (2,)}),
        (put("global", (1, 4, 0, 7, 3), 1e4), {"b": (1,), "t": (4,)}),
        (put("global", (1, slice(None), 0, 7, 3), -1e4), {"b": (1,)}),
        (put("global", (3, 0), 1e-9), {"b": (3,), "t": (0,)}),
        (put("valid", (5,), False), {"b": (5,)}),
        (put("valid", (slice(None), 2), False), {"t": (2,)}),
        (put("label", (3,), -1), {"b": (3,)}),
        (put("label", (3,), 5000), {"b": (3,)}),
        (put("path", 2, ""), {"b": (2,)}),
        (lambda batch: batch["global"][2].copy_(batch["global"][5]), {"b": (2, 5)}),
        (lambda batch: batch["local"][1, 2, 3].copy_(batch["local"][1, 2, 0]), {"b": (1,), "v": (2,), "t": (0, 3)}),
        (lambda batch: batch["local"][1].copy_(batch["local"][1, :1].clone()), {"b": (1,)}),
        (lambda batch: None, {}),
    ],
)
def test_what_stands_out_is_named_on_every_axis_that_tells_it_apart(damage, expected):
    assert found(damage) == expected


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_named_down_to_the_pixel(value):
    place = {"b": (1,), "t": (4,), "global.c": (0,), "global.h": (7,), "global.w": (3,)}
    assert found(put("global", (1, 4, 0, 7, 3), value)) == place
    assert found(put("global", (1, 4, 0, 7, 3), value), donor=None) == place


def test_the_most_telling_comes_first():
    def damage(batch):
        batch["global"][1].copy_(batch["global"][0])
        batch["local"][2, 0, 0] = 0
        batch["global"][4, 0, 0, 0, 0] = float("nan")
        batch["valid"][5] = False

    assert found(damage)["b"] == (4, 5, 2, 0, 1)


def test_more_of_a_sign_comes_before_less():
    def damage(batch):
        batch["global"][1, :2] = 0
        batch["global"][3, :4] = 0

    assert found(damage)["b"] == (3, 1)


def test_what_the_donor_has_too_is_healthy():
    def damage(batch):
        batch["global"][1, 2] = float("nan")
        batch["local"][2, 0, 0] = 0
        batch["valid"][5] = False
        batch["path"][0] = ""

    healthy = clips(1)
    damage(healthy)
    assert found(damage, donor=healthy) == {}


def test_a_sign_on_all_elements_of_an_axis_tells_nothing_about_it():
    assert found(put("global", (slice(None), 2, ..., 0, 0), float("nan")))["t"] == (2,)
    assert "b" not in found(put("global", (slice(None), 2, ..., 0, 0), float("nan")))
    assert found(put("global", (..., 0, 0), float("nan"))) == {"global.h": (0,), "global.w": (0,)}


def test_an_integer_outside_of_a_short_list_stands_out_and_labels_of_many_classes_do_not():
    layout = Layout.parse({"mode": "b t", "label": "b"})
    batch = {"mode": torch.zeros(8, 9, dtype=torch.long), "label": torch.arange(8) * 100}
    batch["mode"][::2] = 2
    donor = {"mode": batch["mode"].clone(), "label": batch["label"] + 50}
    assert suspects(batch, donor, layout) == {"b": (0,)}  # a label of zero, where the donor has none
    batch["mode"][5, 3], batch["label"][0] = 1, 7
    assert suspects(batch, donor, layout) == {"b": (5,), "t": (3,)}


@pytest.mark.parametrize(
    ("batch", "donor", "spec"),
    [
        (None, None, {"x": "b d"}),
        ({}, {}, {"x": "b d"}),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2)}, {"x": "b d"}),
        ({"x": torch.zeros(0, 3)}, {"x": torch.zeros(2, 3)}, {"x": "b d"}),
        ({"x": torch.full((3, 3), float("nan"))}, {"y": 3}, {"x": "h w"}),
        ({"x": [None, object(), 3]}, {"x": [None, 2, 3]}, {"x": "b"}),
        ({"x": np.array(["a", "b"])}, {"x": np.array(["a", "b"])}, {"x": "b"}),
        ({"x": np.array([1j, 2j])}, None, {"x": "b"}),
    ],
)
def test_what_cannot_be_looked_at_has_no_suspects(batch, donor, spec):
    assert suspects(batch, donor, Layout.parse(spec)) == {}


@pytest.mark.parametrize(
    "kind",
    [torch.float16, torch.bfloat16, torch.float64, torch.float8_e5m2, torch.complex64, "numpy", "big-endian", "list"],
)
def test_of_every_kind_of_number(kind):
    values = torch.rand(B, generator=torch.Generator().manual_seed(0)) + 0.5
    values[3] = float("nan")
    kinds = {
        "numpy": values.numpy,
        "big-endian": lambda: values.numpy().astype(">f8"),
        "list": values.tolist,
    }
    batch = {"x": kinds[kind]() if kind in kinds else values.to(kind)}
    assert suspects(batch, None, Layout.parse({"x": "b"})) == {"b": (3,)}


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.int32, torch.int8])
def test_of_every_kind_of_integer(dtype):
    batch = {"x": torch.tensor([3, 4, 100, 5]).to(dtype)}
    assert suspects(batch, {"x": torch.tensor([3, 4, 6, 5]).to(dtype)}, Layout.parse({"x": "b"})) == {"b": (2,)}


def test_axes_in_any_order_and_nested_entries():
    generator = torch.Generator().manual_seed(0)  # of some draws another frame is the odd one
    batch, donor = ({"views": {"x": torch.rand(8, 3, 8, 4, 6, generator=generator)}} for _ in range(2))
    batch["views"]["x"][:, 1, :, 2] = 0  # h, t, w, b, c
    assert suspects(batch, donor, Layout.parse({"views.x": "h t w b c"})) == {"t": (1,), "b": (2,)}


def test_nothing_is_changed_and_nothing_drawn():
    batch, donor = clips(), clips(1)
    state = torch.get_rng_state()
    suspects(batch, donor, LAYOUT)
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(batch[key], clips()[key]) for key in batch if key != "path")


@given(st.integers(0, B - 1), st.integers(0, V - 1), st.integers(0, T - 1), st.sampled_from([0, 128, 255]))
def test_a_frame_without_contrast_wherever_it_is(b, v, t, value):
    assert found(put("local", (b, v, t), value)) == {"b": (b,), "v": (v,), "t": (t,)}


@given(st.sets(st.integers(0, B - 1)), st.sets(st.integers(0, T - 1)))
def test_suspects_are_indices_each_once(samples, frames):
    def damage(batch):
        for b in samples:
            batch["global"][b, list(frames)] = float("nan")
            batch["local"][b, :, list(frames)] = 0

    for axis, indices in found(damage).items():
        length = LAYOUT.sizes(clips())[axis]
        assert 0 < len(indices) == len(set(indices)) < length and set(indices) <= set(range(length))
        assert axis in ("b", "t") and set(indices) == (samples if axis == "b" else frames)


def test_rows_that_went_bad_are_suspects_too():
    assert from_rows(Outcome(status=Status.FAIL, bad_rows=(2, 3))) == (2, 3)
    assert from_rows(Outcome(status=Status.FAIL)) == ()
