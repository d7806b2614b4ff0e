"""The first mismatch is the first, whatever holds it; NaN equals nothing."""

import argparse
import copy
import re
from collections import OrderedDict
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from reprokit.checks import Answer, exact
from reprokit.errors import BadInput

LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
NESTED = st.recursive(LEAF, lambda part: st.lists(part) | st.dictionaries(st.text(), part) | st.tuples(part, part))


def first(result):
    return re.match(r"first mismatch at (.*?): got", result.observed)[1]


def counted(data):
    if isinstance(data, dict):
        return sum(map(counted, data.values()))
    return sum(map(counted, data)) if isinstance(data, list | tuple) else 1


@given(NESTED)
def test_everything_equals_its_copy(data):
    result = exact("data", copy.deepcopy(data), data)
    assert result.n == counted(data)
    assert result.answer is (Answer.PASSED if result.n else Answer.UNANSWERED)


@given(NESTED, NESTED)
def test_it_agrees_with_python_where_types_agree(one, other):
    result = exact("data", one, other)
    if result.answer is Answer.PASSED:
        assert one == other
    if one != other:
        assert result.answer is Answer.FAILED and result.measured["differ"] >= 1


@given(
    arrays.array_shapes(max_dims=3, max_side=5).flatmap(
        lambda shape: st.tuples(*[arrays.arrays(np.int8, shape, elements=st.integers(0, 1))] * 2)
    ),
    st.booleans(),
)
def test_the_first_index_that_differs_is_found_among_all(pair, as_tensors):
    got, expected = pair
    wrong = [index for index in np.ndindex(got.shape) if got[index] != expected[index]]
    result = exact("x", *(map(torch.from_numpy, pair) if as_tensors else pair))
    assert result.n == got.size and result.measured["differ"] == len(wrong)
    if not wrong:
        assert result.answer is Answer.PASSED
        return
    assert result.answer is Answer.FAILED
    where = f"[{', '.join(map(str, wrong[0]))}]"
    assert result.observed.startswith(f"first mismatch at {where}: got {got[wrong[0]]}; {len(wrong)} of {got.size}")
    assert result.expected == f"{expected[wrong[0]]} at {where}"


@given(st.text(), st.text())
def test_the_first_character_that_differs_is_found(one, other):
    result = exact("text", one, other)
    assert (result.answer is Answer.PASSED) == (one == other)
    if one != other:
        at = int(re.search(r" at \[(\d+)\]:", result.observed)[1])
        assert one[:at] == other[:at] and one[at : at + 1] != other[at : at + 1]


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_a_longer_list_differs_at_the_end_of_the_shorter_at_the_latest(one, other):
    result = exact("list", one, other)
    if one != other:
        at = next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
        assert first(result) == f"[{at}]"


NAN = float("nan")
NANS = [NAN, np.float32("nan"), complex(0, NAN), Decimal("NaN"), Decimal("sNaN"), np.datetime64("NaT")]
WRAPS = {
    "list": lambda x, more: [more, x],
    "tuple": lambda x, more: (x, more),
    "value": lambda x, more: {"a": more, "b": x},
    "dataclass": lambda x, more: Pair(left=x, right=more),
    "namespace": lambda x, more: SimpleNamespace(left=more, right=x),
    "options": lambda x, more: argparse.Namespace(left=more, right=x),
    "objects": lambda x, more: of_objects(more, x),
}
HASHABLE = {  # which pair what they hold by its hash
    "key": lambda x: {0: 1, x: 2},
    "key of a tuple": lambda x: {(0, x): 1},
    "set": lambda x: {0, x},
    "frozen set": lambda x: frozenset([x]),
    "tuple in a set": lambda x: {(0, (x, 1))},
    "set in a set": lambda x: {frozenset([x, 1])},
    "frozen": lambda x: {Frozen(x)},
    "keys": lambda x: {x: 1}.keys(),
    "items": lambda x: {0: x}.items(),
}


def of_objects(*values):
    found = np.empty(len(values), object)
    for index, value in enumerate(values):
        found[index] = value
    return found


def hashable(value):
    try:
        hash(value)
    except TypeError:  # a signalling NaN is not, either
        return False
    return True


@st.composite
def with_a_nan(draw):
    leaf = draw(st.sampled_from(NANS))
    if hashable(leaf) and draw(st.booleans()):
        leaf = draw(st.sampled_from(list(HASHABLE.values())))(leaf)
    elif draw(st.booleans()):
        leaf = draw(st.sampled_from([torch.tensor, np.array]))([1.0, NAN])
    for wrap in draw(st.lists(st.sampled_from(list(WRAPS.values())), max_size=4)):
        leaf = wrap(leaf, draw(NESTED))
    return leaf


@given(with_a_nan())
def test_a_nan_anywhere_is_no_pass_though_it_is_one_object(data):
    result = exact("data", data, data)
    assert result.answer is Answer.UNANSWERED and "NaN at " in result.observed
    assert result.measured["differ"] >= 1  # it is no match either


@given(with_a_nan(), NESTED)
def test_nor_is_it_where_the_other_has_none(data, other):
    for got, expected in ((data, other), (other, data), ([other, data], [other])):
        assert exact("data", got, expected).answer is Answer.UNANSWERED


@given(NESTED, NESTED)
def test_what_holds_no_nan_is_answered(one, other):
    assert exact("data", [0, one], [0, other]).answer is not Answer.UNANSWERED


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (NAN, "value"),
        ({"a": [1.0, NAN]}, "['a'][1]"),
        ({NAN: 1}, "[nan]"),
        ({NAN}, "value"),
        ([{(1, NAN)}], "[0][1]"),
        (torch.tensor([[0.0, NAN]]), "[0, 1]"),
        ({"x": torch.tensor(NAN)}, "['x']"),
        (SimpleNamespace(rate=NAN), ".rate"),
    ],
)
def test_the_place_of_a_nan_is_named_as_one_would_write_it(data, where):
    assert exact("data", data, data).observed.endswith(f"; NaN at {where}, which equals nothing")


@dataclass
class Pair:
    left: object
    right: object


@dataclass(frozen=True)
class Frozen:
    value: object


@pytest.mark.parametrize(
    ("got", "expected", "where"),
    [
        ({"a": 1, "b": [1, {"c": (1, 2)}]}, {"a": 1, "b": [1, {"c": (1, 3)}]}, "['b'][1]['c'][1]"),
        ({"a": 1}, {"a": 1, "b": 2}, "['b']"),
        ({"a": 1, "b": 2}, {"a": 1}, "['b']"),
        (Pair(1, [2, 3]), Pair(1, [2, 4]), ".right[1]"),
        (argparse.Namespace(rate=1, depth=2), argparse.Namespace(rate=1, depth=3), ".depth"),
        (SimpleNamespace(rate=1), SimpleNamespace(rate=1, depth=3), ".depth"),
        ([torch.tensor([1, 2]), torch.tensor([3, 4])], [torch.tensor([1, 2]), torch.tensor([3, 5])], "[1][1]"),
        (np.array([{"a": 1}, {"a": 2}], object), np.array([{"a": 1}, {"a": 3}], object), "[1]['a']"),
        (np.array(["a", "b"]), np.array(["a", "c"]), "[1]"),
        (torch.tensor(1), torch.tensor(2), "value"),
        (1, 2, "value"),
        ({1, 2}, {1, 3}, "value"),
    ],
)
def test_a_place_is_named_as_one_would_write_it(got, expected, where):
    result = exact("data", got, expected)
    assert result.answer is Answer.FAILED and first(result) == where


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (1, True),
        (0, None),
        ("1", 1),
        (b"1", "1"),
        ([1], (1,)),
        (torch.tensor([1.0]), torch.tensor([1])),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64)),
        (torch.tensor([1.0]), np.array([1.0], np.float32)),
        (torch.tensor([1.0]), [1.0]),
        (torch.ones(2, 3), torch.ones(3, 2)),
        (torch.ones(1), torch.ones(1, 1)),
        (np.ones(1), torch.ones(1)),
        ({}, {"a": 1}),
        ({1: "a"}, {True: "a"}),
        ({1}, {True}),
        ({(1, 2)}, {(True, 2)}),
        ({1, 2}, frozenset([1, 2])),
        ([], [1]),
        (2**63, 2**63 + 1),
        (2.0**53, 2**53 + 1),
        (np.array([2**63 - 1]), np.array([2**63 - 2])),
    ],
)
def test_what_is_only_alike_differs(got, expected):
    for one, other in ((got, expected), (expected, got)):
        assert exact("data", one, other).answer is Answer.FAILED


def test_a_key_that_is_only_alike_is_one_of_either_side():
    result = exact("data", {1: "a", 2: "b"}, {True: "a", 2: "b"})
    assert (result.n, result.measured["differ"], first(result)) == (3, 2, "[True]")


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (0.0, -0.0),
        (1, 1.0),
        (np.float32(0.5), 0.5),
        (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
        (torch.ones(4)[::2], torch.ones(2)),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
        (torch.ones(2).to(torch.float8_e4m3fn), torch.ones(2).to(torch.float8_e4m3fn)),
        (torch.eye(3).to_sparse(), torch.eye(3)),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (float("inf"), float("inf")),
        (OrderedDict(a=1, b=2), {"b": 2, "a": 1}),
        ({1, (2, 3.0)}, {(2, 3), 1.0}),
        ({1: "a"}, {1.0: "a"}),
        (10**400, 10**400),
        (Decimal("0.5"), 0.5),
    ],
)
def test_what_has_equal_values_is_equal(got, expected):
    assert exact("data", got, expected).answer is Answer.PASSED


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: torch.ones(1, device="meta"), "meta device"),
        (lambda: torch.quantize_per_tensor(torch.ones(1), 0.1, 0, torch.qint8), "dequantize"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*quantize.*are deprecated")
def test_what_holds_no_values_is_refused(make, why):
    with pytest.raises(BadInput, match=why):
        exact("data", make(), make())


def test_what_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    other = []
    other.append(other)
    with pytest.raises(BadInput, match="contains itself"):
        exact("data", loop, other)


def test_what_does_not_say_whether_it_is_equal_is_refused():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no")

        __hash__ = None

    with pytest.raises(BadInput, match="RuntimeError"):
        exact("data", [Odd()], [Odd()])


def test_long_values_are_cut():
    result = exact("data", {"x" * 500: 1}, {"y" * 500: {"z" * 500: 1}})
    assert len(result.expected) < 700
