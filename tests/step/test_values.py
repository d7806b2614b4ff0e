"""What is made simpler keeps its form, and the input is left alone."""

import math
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit import tree
from reprokit.errors import BadInput
from reprokit.layout import Layout
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.outcome import Status
from reprokit.step.values import simpler, simplified

KINDS = ("zero", "constant", "few", "special")
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2)
INTS = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.uint16, torch.uint32, torch.uint64)
NAN, INF = math.nan, math.inf


@st.composite
def tensors(draw, dtypes=(*FLOATS, *INTS, torch.bool)):
    """Any shape, order of axes and dtype, windows on larger memory and expanded ones; special values among others."""
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(dtypes))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    values = torch.randint(-9, 200, shape, generator=generator).double() / 7
    if dtype in FLOATS and draw(st.booleans()) and values.numel():
        values.view(-1)[:: draw(st.integers(1, 5))] = draw(st.sampled_from([NAN, INF, -INF, 0.0]))
    tensor = (values.abs() if dtype in INTS and dtype.is_signed is False else values).to(dtype)
    if draw(st.booleans()) and tensor.ndim:
        tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    if draw(st.booleans()):
        tensor = tensor[..., None].expand(*tensor.shape, 2)
    if draw(st.booleans()) and tensor.ndim and tensor.shape[0] > 1:
        tensor = tensor[1:]
    return tensor.detach().requires_grad_(dtype in FLOATS and draw(st.booleans()))


def finite(tensor):
    values = tensor.detach().double().reshape(-1)
    return values[values.isfinite()]


@given(tensors(), st.sampled_from(KINDS))
def test_form_stays_and_the_input_too(tensor, kind):
    before = tree.digest(tensor)
    made = simpler(tensor, kind)
    assert (made.shape, made.dtype, made.requires_grad) == (tensor.shape, tensor.dtype, tensor.requires_grad)
    assert made.stride() == tensor.stride() and made.is_leaf
    assert tree.digest(tensor) == before
    assert not made.numel() or made.data_ptr() != tensor.data_ptr()


@given(tensors(), st.sampled_from(KINDS))
def test_what_is_simple_already_does_not_change(tensor, kind):
    once = simpler(tensor, kind)
    assert tree.digest(simpler(once, kind)) == tree.digest(once)


@given(tensors(), st.sampled_from(KINDS))
def test_equal_values_stay_equal(tensor, kind):
    pairs = dict(zip(tensor.detach().reshape(-1).tolist(), simpler(tensor, kind).detach().reshape(-1).tolist()))
    for before, after in zip(tensor.detach().reshape(-1).tolist(), simpler(tensor, kind).detach().reshape(-1).tolist()):
        assert before != before or pairs[before] == after


@given(tensors())
def test_zero_is_zero_and_constant_is_one_value_inside_the_range(tensor):
    assert not simpler(tensor, "zero").detach().double().abs().sum()
    made = simpler(tensor, "constant").detach().double().reshape(-1)
    assert len(made.unique()) <= 1 and made.isfinite().all()
    usual = finite(tensor)
    assert not usual.numel() or usual.min() <= made[0] <= usual.max()


@given(tensors(FLOATS))
def test_special_values_stay_where_they_are(tensor):
    tensor = tensor.detach()
    special = ~tensor.double().isfinite()
    for kind in ("special", "few"):
        made = simpler(tensor, kind)
        assert tree.digest(made[special]) == tree.digest(tensor[special])
        assert torch.equal(~made.double().isfinite(), special)
    assert not simpler(tensor, "special")[~special].double().abs().sum()


@given(tensors())
def test_few_leaves_at_most_four_values_of_the_entry_itself(tensor):
    before, after = finite(tensor), finite(simpler(tensor, "few"))
    assert len(after.unique()) <= 4 and set(after.tolist()) <= set(before.tolist())
    order = before.argsort()
    assert bool((after[order].diff() >= 0).all())  # what was larger is not smaller now


def test_a_nan_keeps_its_payload():
    value = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    assert simpler(value, "special").view(torch.int32).tolist() == [0x7FC00001, 0]


def test_the_mean_does_not_overflow_nor_leave_what_is_constant():
    top = torch.finfo(torch.float64).max
    assert simpler(torch.full((3,), top, dtype=torch.float64), "constant").tolist() == [top] * 3
    assert simpler(torch.full((7,), 0.1), "constant").tolist() == torch.full((7,), 0.1).tolist()
    assert simpler(torch.tensor([NAN, INF]), "constant").tolist() == [0, 0]
    assert simpler(torch.tensor([1.0, 2, 6, NAN]), "constant").tolist() == [3, 3, 3, 3]


def test_integers_become_the_most_frequent_and_keep_the_ends_of_their_range():
    assert simpler(torch.tensor([5, 7, 7, 2]), "constant").tolist() == [7] * 4
    assert simpler(torch.tensor([5, 255, 0], dtype=torch.uint8), "special").tolist() == [0, 255, 0]
    assert simpler(torch.tensor([-128, 127, 3], dtype=torch.int8), "special").tolist() == [-128, 127, 0]
    large = torch.tensor([2**64 - 2, 2**64 - 2, 1], dtype=torch.uint64)
    assert simpler(large, "constant").tolist() == [2**64 - 2] * 3
    assert simpler(torch.tensor([True, True, False]), "constant").tolist() == [True] * 3


Pair = namedtuple("Pair", "left right")


def test_lists_of_numbers_and_of_tensors():
    assert simpler([1.0, 2.0, 6.0], "constant") == [3.0, 3.0, 3.0]
    assert simpler((1, 1, 5), "constant") == (1, 1, 1)
    assert simpler([True, False, True], "zero") == [False] * 3
    assert list(map(type, simpler([1, 2.5, True], "zero"))) == [int, float, bool]
    assert simpler(Pair(1.0, 3.0), "constant") == Pair(2.0, 2.0)
    made = simpler([torch.tensor([1.0, 3.0]), np.array([4, 4, 5])], "constant")
    assert made[0].tolist() == [2, 2] and made[1].tolist() == [4, 4, 4]
    assert simpler([], "zero") == [] and simpler(2.5, "zero") == 0.0 and simpler(3, "special") == 0


@pytest.mark.parametrize("dtype", ["float32", ">f8", "int16", "uint8", "bool", "float16"])
def test_arrays_keep_dtype_and_order_in_memory(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for given_ in (array, np.asfortranarray(array), array[1:, ::2]):
        before = given_.copy()
        for kind in KINDS:
            made = simpler(given_, kind)
            assert made.dtype == given_.dtype and made.shape == given_.shape and isinstance(made, np.ndarray)
            assert made.flags.f_contiguous == np.empty_like(given_).flags.f_contiguous
        assert np.array_equal(given_, before) and not simpler(given_, "zero").any()
    assert simpler(np.float32(2.5), "zero") == 0 and isinstance(simpler(np.float32(2.5), "zero"), np.float32)


@pytest.mark.parametrize(
    "value",
    [
        "clip.mp4", ["a", 1], {"x": 1}, None, b"raw", Path("a"), object(), 2**70,
        torch.zeros(2, dtype=torch.complex64), torch.zeros(2, 2).to_sparse(), np.array(["a"]), np.array([1j]),
        np.array(["2026-11-29"], dtype="datetime64[D]"),
    ],
)  # fmt: skip
def test_what_is_not_made_of_numbers_is_refused_in_one_line(value):
    with pytest.raises(BadInput, match=r"^values: 'paths' is [^\n]*cannot be made simpler$"):
        simpler(value, "zero", "paths")


def test_only_the_named_entries_change():
    batch = {"clips": torch.ones(2, 3), "more": {"label": torch.tensor([1, 2])}, "paths": ["a", "b"]}
    layout = Layout.parse({"clips": "b t", "more.label": "b", "paths": "b"})
    made = simplified(batch, layout, {"more.label": "zero"})
    assert made["more"]["label"].tolist() == [0, 0] and batch["more"]["label"].tolist() == [1, 2]
    assert made["clips"] is batch["clips"] and made["paths"] is batch["paths"]
    assert simplified(torch.ones(3), Layout.parse("b"), {"": "zero"}).tolist() == [0, 0, 0]
    with pytest.raises(BadInput, match=r"no entry 'label'; it has 'clips', 'more\.label', 'paths'"):
        simplified(batch, layout, {"label": "zero"})


def test_a_case_says_which_entries_are_made_simpler(make_incident):
    incident = make_incident()
    with Session(incident) as session:
        status = lambda kind: session.evaluate(Case(incident=incident.path, values={"x": kind})).status
        assert {kind: status(kind) for kind in KINDS} == {
            "zero": Status.PASS, "constant": Status.PASS, "few": Status.FAIL, "special": Status.FAIL,
        }  # fmt: skip
        assert session.evaluate(Case(incident=incident.path, values={"y": "zero"})).status is Status.INVALID
