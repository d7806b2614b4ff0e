"""What a recipe keeps of a batch, what is made from it, and what would be a leak."""

import json
import math
from collections import namedtuple
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.layout import Layout
from reprokit.reduce import patterns
from reprokit.reduce.generate import generate
from reprokit.reduce.leaks import leaks
from reprokit.reduce.recipe import LEVELS, at_level, describe, kept, levels

LAYOUT = Layout.parse({"clips": "b t h", "label": "b"})
SECRET = "/data/clips/someone.mp4"
NAN, INF = math.nan, math.inf


def clips(seed=0, dtype=torch.float32, shape=(3, 4, 8)):
    values = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) * (1 if dtype.is_floating_point else 255)
    return values.to(dtype)


def bits(value):
    return json.dumps(tree.pack(value).data), [block.memory.tolist() for block in tree.pack(value).blocks]


def through_json(recipe):
    return json.loads(json.dumps(recipe, allow_nan=False))


# patterns


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_boxes_hold_the_mask_and_nothing_else(shape, data):
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=math.prod(shape), max_size=math.prod(shape))))
    mask = mask.reshape(shape)
    found, rest = patterns.boxes(mask)
    drawn = np.zeros(shape, int)
    for box in found:
        drawn[box.slices] += 1
    assert drawn.max(initial=0) <= 1 and not (drawn.astype(bool) & ~mask).any()
    assert rest == mask.sum() - drawn.sum() and (len(found) == patterns.MOST_BOXES or not rest)


@given(st.data())
def test_one_box_is_found_as_one(data):
    shape = data.draw(st.lists(st.integers(1, 6), max_size=5))
    at = tuple(tuple(sorted(data.draw(st.sets(st.integers(0, n), min_size=2, max_size=2)))) for n in shape)
    mask = np.zeros(shape, bool)
    mask[tuple(slice(*side) for side in at)] = True
    assert [box.at for box in patterns.boxes(mask)[0]] == [at]


@given(st.data())
def test_copies_name_exactly_the_repeats(data):
    """Applied to other noise they bring about the same pattern of equal slices."""
    array, noise = np.random.default_rng(0).random((2, 3, 4, 2, 3))
    for _ in range(data.draw(st.integers(0, 3))):
        depth = data.draw(st.integers(1, 3))
        to, origin = (tuple(data.draw(st.integers(0, n - 1)) for n in array.shape[:depth]) for _ in range(2))
        array[to] = array[origin]
    for (_, to), (_, origin) in patterns.copies([array]):
        noise[to] = noise[origin]
    for depth in range(1, 4):
        same = lambda one, depth=depth: np.unique(one.reshape(-1, *one.shape[depth:]), axis=0, return_inverse=True)[1]
        mine, theirs = same(array), same(noise)
        assert (mine[:, None] == mine).tolist() == (theirs[:, None] == theirs).tolist()


def test_a_repeat_is_found_in_another_entry_and_a_flat_slice_is_none():
    frame = np.random.default_rng(0).random((2, 8))
    other = np.stack([frame * 2, frame])
    assert patterns.copies([frame, other]) == [((1, (1,)), (0, ()))]
    assert patterns.copies([np.zeros((3, 8)), np.full((2, 2), NAN)]) == []


# recipes


Pair = namedtuple("Pair", "left right")


def nested():
    return {
        "clips": clips().permute(2, 0, 1).contiguous().permute(1, 2, 0),
        "label": torch.tensor([3, 1, 3]),
        "mask": torch.tensor([[True, False]]),
        "half": clips(dtype=torch.float16).requires_grad_(),
        "brain": clips(dtype=torch.bfloat16),
        "bytes": clips(dtype=torch.uint8),
        "tokens": torch.randint(0, 50_000, (3, 20), generator=torch.Generator().manual_seed(3)),
        "array": np.asfortranarray(np.arange(12.0).reshape(3, 4) / 7).astype(">f4"),
        "words": np.array([["a long word", "b"], ["b", "c"]]),
        "paths": [SECRET, SECRET, Path("/x/y")],
        "raw": b"secret bytes",
        "pair": Pair(torch.tensor(2.5), (1, 0, 1)),
        "weights": [0.25, 0.5],
        "epoch": 3,
        "empty": torch.zeros(0, 3),
        "nothing": None,
        "scale": 0.125,
        5: (True, [None]),
    }


def test_what_is_made_has_the_form_of_what_was_described_and_no_content():
    batch = nested()
    recipe = through_json(describe(batch, LAYOUT))
    made = generate(recipe, 0)
    assert list(made) == list(batch) and leaks(batch, made, LAYOUT) == []
    for name in ("clips", "half", "brain", "bytes", "tokens", "empty"):
        old, new = batch[name], made[name]
        assert (new.dtype, new.shape, new.requires_grad) == (old.dtype, old.shape, old.requires_grad)
        assert new.stride() == old.stride() and new.is_leaf
        assert not old.numel() or not torch.equal(new, old)
    assert made["array"].dtype == batch["array"].dtype and made["array"].flags.f_contiguous
    assert made["words"].tolist() == [["sample-0", "sample-1"], ["sample-1", "sample-2"]]
    assert made["paths"] == ["sample-3", "sample-3", PurePosixPath("sample-4")] and made["raw"] == b"sample-5"
    assert made["pair"].right == (1, 0, 1) and made["pair"]._fields == ("left", "right")
    assert isinstance(made["scale"], float) and made["nothing"] is None and made[5] == (True, [None])
    assert made["label"].tolist() == [3, 1, 3] and made["mask"].tolist() == [[True, False]] and made["epoch"] == 3
    assert set(kept(recipe)) == {"label (int64)", "mask (bool)", "pair.right (int64)", "epoch (int64)", "5.0 (bool)"}
    assert "secret" not in json.dumps(recipe) and "someone" not in json.dumps(recipe)
    assert bits(made) == bits(generate(recipe, 0)) != bits(generate(recipe, 1))


def test_identifiers_pictures_and_text_are_no_structure():
    numbers = lambda *values, dtype=torch.int64: torch.tensor(values, dtype=dtype)
    batch = {
        "clips": clips(),
        "label": numbers(1, 2, 3),
        "id": numbers(83_726, 83_727, 91_003),
        "text": numbers(*b"password"),
        "logo": numbers(9, 9, 7, dtype=torch.uint8),
    }
    layout = Layout.parse({"clips": "b t h", "label": "b", "id": "b", "text": "n", "logo": "b"})
    recipe = describe(batch, layout)
    assert kept(recipe) == ("label (int64)",)
    assert not {"83726", "83727", "91003"} & set(json.dumps(recipe).replace(",", " ").replace("}", " ").split())
    assert int(generate(recipe, 0)["id"].max()) <= 91_003  # whatever they are an index of, it is in range


def test_special_values_flat_areas_and_repeats_stay_where_they_are():
    batch = {"clips": clips(), "label": torch.tensor([0, 1, 0])}
    x = batch["clips"]
    x[0, 1, 3] = NAN
    x[0, 2, 2:5] = INF
    x[1, 0] = 0.0
    x[1, 1, 1] = torch.finfo(torch.float32).max
    x[1, 3] = 0.25
    x[2, 1] = x[2, 0]
    x[2, 3, 0] = 12_345.678
    made = generate(through_json(describe(batch, LAYOUT)), 0)["clips"]
    assert torch.equal(made.isnan(), x.isnan()) and torch.equal(made == INF, x == INF)
    assert torch.equal(made == 0, x == 0) and (made[1, 3] == 0.25).all() and torch.equal(made[2, 1], made[2, 0])
    assert made[1, 1, 1] == torch.finfo(torch.float32).max
    assert made[2, 3, 0] == 12_300  # how large it is, not what it is
    usual = made[2, 2]
    assert usual.min() >= 0 and usual.max() <= 1 and leaks(batch, {"clips": made}, LAYOUT) == []


@given(st.sampled_from([torch.float64, torch.float32, torch.float16, torch.uint8, torch.int32]), st.integers(0, 20))
def test_noise_keeps_the_range_and_leaks_nothing(dtype, seed):
    batch = {"clips": clips(seed, dtype, (2, 8, 40)), "label": torch.tensor([0, 1])}
    for recipe in levels(batch, LAYOUT):
        made = generate(through_json(recipe), seed)
        assert leaks(batch, made, LAYOUT) == [] and made["clips"].dtype == dtype
        if recipe["level"] == "statistics":
            assert abs(made["clips"].double().mean() - batch["clips"].double().mean()) < 0.1 * batch["clips"].max()
            assert made["clips"].max() <= batch["clips"].double().max() * 1.01


def test_extreme_numbers_do_not_break_the_statistics():
    top = torch.finfo(torch.float64).max
    for values in ([top, -top, 1.0, 2.0], [NAN] * 4, [INF, 1e-320, -1e308, 5.0], [7.0] * 4, [0.0] * 4):
        tensor = torch.tensor(values, dtype=torch.float64)
        for recipe in levels({"x": tensor}, Layout.parse({"x": "n"})):
            made = generate(through_json(recipe), 0)["x"]
            assert recipe["level"] in ("special", "flat", "everything") or made.isfinite().all()
    ends = [2**63 - 1, -(2**63)]
    recipe = describe({"x": torch.tensor([*ends, 5])}, Layout.parse({"x": "n"}))
    assert generate(through_json(recipe), 0)["x"].tolist()[:2] == ends


def test_levels_go_from_coarse_to_fine_and_none_says_the_same_twice():
    batch = {"clips": clips(), "label": torch.tensor([0, 1, 0])}
    assert [recipe["level"] for recipe in levels(batch, LAYOUT)] == ["noise", "statistics"]
    batch["clips"][0] = NAN
    batch["clips"][2] = batch["clips"][1]
    found = list(levels(batch, LAYOUT))
    assert [recipe["level"] for recipe in found] == ["noise", "statistics", "special", "repeats", "everything"]
    assert next(iter(LEVELS)) == "noise" and at_level(found[-1], "repeats") == found[3]
    lengths = [len(json.dumps(recipe)) for recipe in found]
    assert lengths[0] < lengths[1] < min(lengths[2:]) and lengths[-1] == max(lengths)


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.zeros(2).to_sparse(), torch.zeros(2) * 1j, 1j])
def test_what_cannot_be_made_is_refused_in_one_line(value):
    with pytest.raises(BadInput, match=r"^more\.thing: a \w+ cannot be made from noise; [^\n]*$"):
        describe({"more": {"thing": value}}, LAYOUT)


# leaks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.uint8, torch.int64])
def test_a_piece_of_the_original_is_found_wherever_it_is(dtype):
    batch, made = {"clips": clips(0, dtype, (2, 4, 64))}, {"other": clips(1, dtype, (2, 4, 64))}
    assert leaks(batch, made, LAYOUT) == []
    made["other"][1, 2, 8:40] = batch["clips"][0, 1, 20:52]
    [line] = leaks(batch, made, LAYOUT)
    assert line.startswith("clips: ")


def test_four_wide_floats_in_a_row_are_a_leak_and_three_are_none():
    batch, made = {"clips": clips(0)}, {"clips": clips(1)}
    made["clips"][0, 0, :3] = batch["clips"][2, 1, 4:7]
    assert leaks(batch, made, LAYOUT) == []
    made["clips"][0, 0, :4] = batch["clips"][2, 1, 4:8]
    assert len(leaks(batch, made, LAYOUT)) == 1


def test_texts_and_paths_are_leaks_also_inside_others():
    batch = {"paths": [SECRET, Path("/a/b"), "x"], "raw": b"abc"}
    assert leaks(batch, {"paths": ["sample-0", "extra"]}, LAYOUT) == []
    assert leaks(batch, {"paths": [f"see {SECRET}"]}, LAYOUT) == [f"the text {SECRET!r}"]
    assert leaks(batch, {"paths": ["x"], "raw": [b"abc"]}, LAYOUT) != []


def test_what_is_kept_on_purpose_is_no_leak():
    batch = {"clips": torch.zeros(3, 4, 8), "label": torch.arange(3)}
    batch["clips"][1] = NAN
    batch["clips"][2] = 0.3
    assert leaks(batch, batch, LAYOUT) == []
