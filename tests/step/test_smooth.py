import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.layout import Layout
from reprokit.step.smooth import generated

LAYOUT = Layout.parse({"clips": "b t c h w"})


def batch(dtype=torch.float32, value=None):
    clips = torch.rand(2, 3, 3, 8, 8) if value is None else torch.full((2, 3, 3, 8, 8), value)
    clips = (clips * 255).to(dtype) if dtype is torch.uint8 else clips.to(dtype)
    return {"clips": clips, "label": torch.tensor([1, 2]), "path": ["a", "b"], "gain": np.array([0.5, 2.0])}


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.float64]), st.sampled_from([None, 0.0, 1.0]))
def test_it_has_the_batch_s_shapes_and_dtypes_and_no_constant_frame(dtype, value):
    given_batch = batch(dtype, value)
    made = generated(given_batch, LAYOUT)
    assert made["clips"].shape == given_batch["clips"].shape and made["clips"].dtype is dtype
    assert (made["clips"].double().flatten(-2).std(-1) > 0).all()
    assert not torch.equal(made["clips"][0], made["clips"][1])


def test_structure_stays_and_the_batch_is_left_alone():
    given_batch = batch(torch.float32, float("nan"))
    made = generated(given_batch, LAYOUT)
    assert made["label"] is given_batch["label"] and made["path"] == ["a", "b"]
    assert made["clips"].isfinite().all() and given_batch["clips"].isnan().all()
    assert made["gain"].dtype == np.float64 and ((made["gain"] >= 0.5) & (made["gain"] <= 2)).all()


def test_values_are_in_the_range_of_the_batch_s_own_and_the_same_each_time():
    given_batch = batch()
    given_batch["clips"][0, 0, 0, 0, 0] = 1e9
    made = generated(given_batch, LAYOUT)
    assert made["clips"].max() <= 1 and torch.equal(made["clips"], generated(given_batch, LAYOUT)["clips"])
