from collections import OrderedDict, namedtuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.layout import Layout, Unfit

SPEC = {"global": "b t h", "local": "b v t h", "label": "b", "names": "b"}
LAYOUT = Layout.parse(SPEC)


def make_batch(b=3, v=2, t=4, h=2, seed=0):
    """Floats with NaN of several payloads, integers, a list, and what no layout lists."""
    draw = torch.Generator().manual_seed(seed)
    bits = torch.tensor([0x7FC00000, 0x7FC00001, -0x400000, 0x7F800000], dtype=torch.int32)
    global_ = torch.randn(b, t, h, generator=draw)
    global_.view(-1)[:4] = bits.view(torch.float32)[: global_.numel()]
    return {
        "global": global_,
        "local": torch.randn(b, v, t, h, generator=draw),
        "label": torch.randint(0, 1000, (b,), generator=draw),
        "names": [f"clip {seed} {i}" for i in range(b)],
        "scale": torch.randn(3, generator=draw),
        "epoch": seed,
    }


def bits(value):
    """A value to compare with `==` that tells NaN payloads and -0.0 apart."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: bits(entry) for key, entry in value.items()}
    return value


@st.composite
def batches(draw):
    sizes = {"b": draw(st.integers(1, 4)), "v": draw(st.integers(1, 3)), "t": draw(st.integers(1, 4))}
    return sizes, make_batch(**sizes, seed=0), make_batch(**sizes, seed=1)


def some(size, least=0):
    return st.lists(st.integers(0, size - 1), min_size=min(least, size), max_size=size, unique=True)


def keeps(sizes):
    return st.fixed_dictionaries({}, optional={axis: some(size, 1) for axis, size in sizes.items()})


def cell_lists(sizes):
    keys = st.lists(st.sampled_from(["global", "local", "names", "scale"]), max_size=2, unique=True)
    axes = {axis: some(size) for axis, size in sizes.items()}
    return st.lists(st.fixed_dictionaries({}, optional=axes | {"key": keys}), max_size=3)


@given(st.data(), batches())
def test_select_composes(data, made):
    sizes, batch, _ = made
    outer = data.draw(keeps(sizes))
    inner = data.draw(keeps(sizes | {axis: len(indices) for axis, indices in outer.items()}))
    composed = outer | {
        axis: [outer.get(axis, range(sizes[axis]))[i] for i in indices] for axis, indices in inner.items()
    }
    twice = LAYOUT.select(LAYOUT.select(batch, outer), inner)
    assert bits(twice) == bits(LAYOUT.select(batch, composed))


@given(st.data(), batches())
def test_select_takes_what_indexing_takes(data, made):
    sizes, batch, _ = made
    keep = data.draw(keeps(sizes))
    b, v, t = (keep.get(axis, list(range(sizes[axis]))) for axis in "bvt")
    cut = LAYOUT.select(batch, keep)
    assert bits(cut["local"]) == bits(batch["local"][b][:, v][:, :, t])
    assert bits(cut["global"]) == bits(batch["global"][b][:, t])
    assert bits(cut["label"]) == bits(batch["label"][b]) and cut["names"] == [batch["names"][i] for i in b]
    assert cut["scale"] is batch["scale"]
    assert LAYOUT.sizes(cut) == LAYOUT.sizes(batch) | {axis: len(indices) for axis, indices in keep.items()}


@given(batches())
def test_selecting_everything_in_order_is_the_same_objects_in_a_new_container(made):
    sizes, batch, _ = made
    cut = LAYOUT.select(batch, {axis: range(size) for axis, size in sizes.items()})
    assert cut is not batch and all(cut[key] is batch[key] for key in batch)


@given(batches())
def test_healing_everything_gives_the_donors_content(made):
    _, batch, donor = made
    assert bits(LAYOUT.heal(batch, donor, [{}])) == bits(donor)


@given(st.data(), batches())
def test_heal_touches_the_meeting_of_each_cell_and_nothing_else(data, made):
    sizes, batch, donor = made
    cells, before = data.draw(cell_lists(sizes)), bits(batch)
    healed = LAYOUT.heal(batch, donor, cells)
    for entry in batch:
        axes = SPEC.get(entry, "").split()
        inside = [cell for cell in cells if set(cell) - {"key"} <= set(axes) and entry in cell.get("key", [entry])]
        if not axes:
            assert bits(healed[entry]) == bits((donor if inside else batch)[entry])
            continue
        for at in np.ndindex(*np.shape(batch[entry])):
            touched = any(all(i in cell.get(axis, [i]) for axis, i in zip(axes, at)) for cell in inside)
            of = lambda entries, place=at: entries[place[0]] if isinstance(entries, list) else entries[place]
            assert bits(of(healed[entry])) == bits(of((donor if touched else batch)[entry]))
    assert bits(batch) == before


@given(st.data(), batches())
def test_heal_is_idempotent_and_keeps_shapes(data, made):
    sizes, batch, donor = made
    cells = data.draw(cell_lists(sizes))
    once = LAYOUT.heal(batch, donor, cells)
    assert bits(LAYOUT.heal(once, donor, cells)) == bits(once)
    assert LAYOUT.sizes(once) == LAYOUT.sizes(batch)


@given(st.data(), batches())
def test_heal_then_select_is_select_then_heal_there(data, made):
    sizes, batch, donor = made
    cells, keep = data.draw(cell_lists(sizes)), data.draw(keeps(sizes))
    there = [
        {
            axis: [keep[axis].index(i) for i in indices if i in keep[axis]] if axis in keep else indices
            for axis, indices in cell.items()
        }
        for cell in cells
    ]
    late = LAYOUT.heal(LAYOUT.select(batch, keep), LAYOUT.select(donor, keep), there)
    assert bits(LAYOUT.select(LAYOUT.heal(batch, donor, cells), keep)) == bits(late)


@given(batches(), st.integers(1, 5), st.integers(1, 5))
def test_a_donor_of_other_shared_lengths_is_repeated_or_cut_off(made, b, t):
    sizes, batch, _ = made
    donor = make_batch(b=b, v=1, t=t, seed=1)
    healed = LAYOUT.heal(batch, donor, [{}])
    wrap = lambda axis, length: [i % length for i in range(sizes[axis])]
    assert bits(healed["local"]) == bits(donor["local"][wrap("b", b)][:, wrap("v", 1)][:, :, wrap("t", t)])
    assert healed["names"] == [donor["names"][i] for i in wrap("b", b)]


def test_healed_tensors_are_new_and_keep_precision_strides_and_requires_grad():
    batch = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last).requires_grad_()
    donor = torch.zeros(2, 3, 4, 4, dtype=torch.float64)
    healed = Layout.parse("b c h w").heal(batch, donor, [{}])
    assert healed.dtype == torch.float32 and healed.requires_grad and healed.is_leaf
    assert healed.stride() == batch.stride() and batch.abs().sum() > 0
    batch, donor = make_batch(seed=0), make_batch(seed=1)
    LAYOUT.heal(batch, donor, [{}])["scale"].zero_()
    assert donor["scale"].abs().sum() > 0


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.uint16, torch.uint64, torch.bool, torch.int64, torch.bfloat16, torch.float8_e5m2, torch.cfloat],
)
def test_every_dtype_is_cut_and_copied_as_it_is(dtype):
    layout = Layout.parse("b c")
    batch, donor = torch.zeros(4, 3).to(dtype), torch.ones(4, 3).to(dtype)
    healed = layout.select(layout.heal(batch, donor, [{"b": [1], "c": [0, 2]}]), {"b": [3, 1]})
    assert healed.dtype == dtype
    assert healed.to(torch.cfloat).real.tolist() == [[0, 0, 0], [1, 0, 1]]


def test_a_cut_keeps_the_order_of_axes_in_memory():
    layout = Layout.parse("b c h w")
    images = torch.randn(4, 3, 5, 5)
    assert layout.select(images, {"b": [0, 2], "h": [1, 2]}).is_contiguous()
    last = images.to(memory_format=torch.channels_last)
    assert layout.select(last, {"b": [0, 2], "h": [1, 2]}).is_contiguous(memory_format=torch.channels_last)
    assert layout.select(images[:, :, ::2], {"b": [1]}).is_contiguous()


def test_shared_axes_are_bare_and_all_others_belong_to_their_tensor():
    layout = Layout.parse({"global": "b t h", "local": "b v local.t h"})
    batch = {"global": torch.zeros(2, 8, 5), "local": torch.zeros(2, 3, 4, 6)}
    sizes = {"b": 2, "t": 8, "global.h": 5, "v": 3, "local.t": 4, "local.h": 6}
    assert layout.sizes(batch) == sizes and list(layout.sizes(batch)) == list(sizes) == list(layout.axes)
    assert layout.shared == ("b", "t", "v") and layout.private == ("global.h", "local.t", "local.h")
    assert layout.axes_of("local") == ("b", "v", "local.t", "local.h") and layout.axes_of("other") == ()
    cut = layout.select(batch, {"t": [0], "local.h": [1, 2]})
    assert cut["global"].shape == (2, 1, 5) and cut["local"].shape == (2, 3, 4, 2)


def test_entries_are_found_by_dotted_path_position_and_as_the_batch_itself():
    Pair = namedtuple("Pair", "clip caption")
    views = {"global": torch.arange(6).view(3, 2), "note": "as is"}
    nested = OrderedDict(views=views, pair=Pair(torch.arange(3), "abc"))
    layout = Layout.parse({"views.global": "b t", "pair.0": "b"})
    cut = layout.select(nested, {"b": [2]})
    assert cut["views"]["global"].tolist() == [[4, 5]] and cut["views"]["note"] == "as is"
    assert type(cut) is OrderedDict and type(cut["pair"]) is Pair and cut["pair"].clip.tolist() == [2]
    assert layout.keys(nested) == ("views.global", "views.note", "pair.0", "pair.1")
    assert Layout.parse({"0": "b t", "1": "b"}).select((torch.zeros(3, 2), ["a", "b", "c"]), {"b": [1]})[1] == ["b"]
    assert Layout.parse("b t").select(torch.arange(6).view(3, 2), {"t": [1]}).tolist() == [[1], [3], [5]]
    assert Layout.parse("b t").sizes(torch.zeros(3, 2)) == {"b": 3, "t": 2}
    assert Layout.parse("b h").sizes(torch.zeros(3, 2)) == {"b": 3, "h": 2}


def test_key_heals_entries_by_name_or_by_the_name_of_what_holds_them():
    layout = Layout.parse({"views.global": "b t", "views.local": "b t"})
    batch = {"views": {"global": torch.zeros(2, 2), "local": torch.zeros(2, 2)}, "extra": {"a": torch.zeros(2)}}
    donor = {"views": {"global": torch.ones(2, 2), "local": torch.ones(2, 2)}, "extra": {"a": torch.ones(2)}}
    one = layout.heal(batch, donor, [{"key": ["views.local"], "t": [1]}])
    assert one["views"]["global"].sum() == 0 and one["views"]["local"].tolist() == [[0, 1], [0, 1]]
    both = layout.heal(batch, donor, [{"key": ["views"]}])
    assert both["views"]["global"].sum() == both["views"]["local"].sum() == 4 and both["extra"]["a"].sum() == 0
    assert layout.heal(batch, donor, [{"key": ["extra"]}])["extra"]["a"].sum() == 2


def test_arrays_are_entries_too():
    layout = Layout.parse({"x": "b t", "words": "b"})
    batch = {"x": np.zeros((2, 3), np.float32), "words": np.array(["a", "b"])}
    donor = {"x": np.ones((2, 3)), "words": np.array(["a", "longer"])}
    healed = layout.heal(batch, donor, [{"b": [1]}])
    assert healed["x"].tolist() == [[0, 0, 0], [1, 1, 1]] and healed["x"].dtype == np.float32
    assert healed["words"].tolist() == ["a", "longer"]
    assert layout.select(batch, {"t": [0, 2]})["x"].shape == (2, 2)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"clip": "b t t"}, "'t' stands twice in 'b t t' of 'clip'"),
        ({"clip": "b clip.t t c clip.c"}, "'clip.c' stands twice"),
        ({"clip": "b (h w)"}, "'(h' in the axes 'b (h w)' of 'clip'"),
        ({"clip": "b, t"}, "'b,'"),
        ({"clip": "b 1"}, "expected names between spaces, as in 'b v t c h w'"),
        ({"clip": "b ..."}, "'...'"),
        ({"clip": "b other.t"}, "'clip.t' for a private one"),
        ({"clip": "key b"}, "'key'"),
        ("b x.t", "'x.t'"),
        ({"clip": 3}, "expected axes by entry"),
        (None, "expected axes by entry"),
    ],
)
def test_a_layout_that_cannot_be_says_what_was_given_and_what_was_expected(spec, says):
    with pytest.raises(BadInput) as refused:
        Layout.parse(spec)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("spec", "batch", "says"),
    [
        ({"clip": "b t"}, {"clip": torch.zeros(2)}, "'clip' has 1 axes, [2]; its layout 'b t' names 2"),
        ({"clip": "b c"}, {"clip": torch.zeros(2)}, "its layout 'b c'"),
        ({"clip": "b"}, {"klip": torch.zeros(2)}, "no entry 'clip'; it has 'klip'"),
        ({"clip": "b"}, torch.zeros(2), "no entry 'clip'; it has only Tensor"),
        ({"a.clip": "b"}, {"a": 3}, "no entry 'a.clip'; it has 'a'"),
        ("b", {"clip": torch.zeros(2)}, "the batch is of type dict"),
        ({"clip": "b"}, {"clip": None}, "'clip' is of type NoneType"),
        ({"clip": "b"}, {"clip": torch.zeros(2).to_sparse()}, "sparse"),
        (
            {"x": "b t", "y": "b t"},
            {"x": torch.zeros(2, 3), "y": torch.zeros(2, 4)},
            "axis 't' is 3 long in 'x' and 4 long in 'y'; a shared axis has one length, 'y.t' makes it private",
        ),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_in_one_line_that_names_it(spec, batch, says):
    with pytest.raises(BadInput) as refused:
        Layout.parse(spec).sizes(batch)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        ({"b": []}, "nothing is kept of axis 'b'"),
        ({"b": [3]}, "3 is no index of axis 'b'; expected 0 to 2"),
        ({"b": [-1]}, "-1 is no index"),
        ({"b": ["0"]}, "'0' is no index"),
        ({"x": [0]}, "no axis 'x'; the layout has b, t, global.h, v, local.h"),
        ({"key": ["global"]}, "can be healed, not cut"),
    ],
)
def test_a_cut_that_cannot_be_is_refused(keep, says):
    with pytest.raises(BadInput) as refused:
        LAYOUT.select(make_batch(), keep)
    assert says in str(refused.value)


def test_cells_that_name_what_is_not_there_are_refused():
    for cell, says in [({"x": [0]}, "no axis 'x'"), ({"t": [9]}, "9 is no index"), ({"key": ["z"]}, "no entry 'z'")]:
        with pytest.raises(BadInput, match=says):
            LAYOUT.heal(make_batch(), make_batch(), [cell])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"global": torch.zeros(3, 4, 7)}, "axis 'global.h' is 7 long, in the batch 2"),
        ({"global": torch.zeros(3, 4, 2, dtype=torch.int64)}, "'global' is a tensor of torch.int64, in the batch a"),
        ({"label": torch.zeros(3)}, "'label' is a tensor of floats, in the batch a tensor of torch.int64"),
        ({"names": ("a", "b", "c")}, "'names' is a tuple, in the batch a list"),
        ({"scale": torch.zeros(4)}, "'scale' has the shape [4], in the batch [3]; give it a layout"),
        ({"local": None}, "'local' is of type NoneType"),
    ],
)
def test_a_donor_that_cannot_stand_in_is_unfit(change, says):
    with pytest.raises(Unfit) as refused:
        LAYOUT.heal(make_batch(), make_batch(seed=1) | change, [{}])
    assert says in str(refused.value) and str(refused.value).startswith("donor: ") and "\n" not in str(refused.value)


def test_a_donor_without_an_unlisted_entry_is_unfit_only_where_that_is_healed():
    batch, donor = make_batch(), make_batch(seed=1)
    del donor["scale"]
    assert LAYOUT.heal(batch, donor, [{"b": [0]}])["scale"] is batch["scale"]
    with pytest.raises(Unfit, match="no entry 'scale'"):
        LAYOUT.heal(batch, donor, [{}])
