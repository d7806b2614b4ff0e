"""Tolerances are those of torch.testing, and neither NaN nor another infinity is within them."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.checks import Answer, close
from reprokit.checks.equal import TOLERANCES, tolerance
from reprokit.errors import BadInput

FLOATING = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128]
DTYPES = [*FLOATING, torch.int64, torch.int8, torch.uint8, torch.bool, torch.float8_e5m2]
NAN = float("nan")
NUMBERS = st.floats(-1e4, 1e4) | st.sampled_from([0.0, float("inf"), float("-inf"), float("nan")])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_table_is_torchs(dtype):
    assert tolerance(str(dtype).removeprefix("torch.")) == torch.testing._comparison.default_tolerances(dtype)


def test_nothing_in_the_table_is_unknown_to_torch():
    assert all(isinstance(getattr(torch, name), torch.dtype) for name in TOLERANCES)


def says_torch(got, expected, **options):
    try:
        torch.testing.assert_close(got, expected, check_dtype=False, **options)
    except AssertionError:
        return False
    return True


@given(
    st.lists(NUMBERS, min_size=1, max_size=4),
    st.sampled_from([0.0, 1e-7, 9e-6, 1.1e-5, 1e-3, 1e-2, 0.1]),
    st.sampled_from(FLOATING),
)
def test_it_answers_as_torch_does(values, relative, dtype):
    expected = torch.tensor(values, dtype=torch.float64).to(dtype)
    got = (expected * (1 + relative)).to(dtype)
    result = close("x", got, expected)
    assert (result.answer is Answer.PASSED) == says_torch(got, expected)
    nan = bool((expected != expected).any() or (got != got).any())
    assert (result.answer is Answer.UNANSWERED) == nan


@given(st.floats(0, 1), st.floats(0, 1), st.floats(-10, 10), st.floats(-10, 10))
def test_a_given_tolerance_is_used(rtol, atol, got, expected):
    result = close("x", got, expected, rtol=rtol, atol=atol)
    assert (result.answer is Answer.PASSED) == (abs(got - expected) <= atol + rtol * abs(expected))


EXACT = st.integers(-(10**40), 10**40) | st.fractions(-10, 10) | st.decimals(-10, 10) | st.floats(-10, 10)


@given(EXACT, EXACT, st.floats(0, 1), st.floats(0, 1))
def test_of_numbers_that_numpy_lacks_too(got, expected, rtol, atol):
    """Integers beyond 64 bits, fractions and decimals, without rounding them."""
    apart = abs(Fraction(got) - Fraction(expected)) > Fraction(atol) + Fraction(rtol) * abs(Fraction(expected))
    if all(isinstance(one, float) or (isinstance(one, int) and abs(one) < 2**63) for one in (got, expected)):
        return  # which NumPy has, and rounds
    assert (close("x", got, expected, rtol=rtol, atol=atol).answer is Answer.FAILED) == apart


def test_integers_of_python_are_as_those_of_numpy():
    for expected, got in ((10**9, 10**9 + 1), (np.array([10**9]), [10**9 + 1]), (torch.tensor(10**9), 10**9 + 1)):
        assert close("x", got, expected).answer is Answer.FAILED
    assert close("x", 10**9 + 1, 1e9).answer is Answer.PASSED


@given(st.floats(-10, 10), st.floats(-10, 10), st.floats(0, 1), st.floats(0, 1))
def test_a_wider_tolerance_never_fails_what_a_narrower_one_passes(got, expected, one, other):
    narrow, wide = sorted((one, other))
    if close("x", got, expected, rtol=0.0, atol=narrow).answer is Answer.PASSED:
        assert close("x", got, expected, rtol=0.0, atol=wide).answer is Answer.PASSED


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([1.0]), [1.000001]),
        ([1.0, 2.0], (1.0, 2.0)),
        (torch.tensor(0.5), 0.5000001),
        (np.float32(0.1), 0.1),
        (torch.tensor([0.1], dtype=torch.bfloat16), torch.tensor([0.1])),
        ({"a": [torch.ones(2), 1e-9]}, {"a": [torch.ones(2) + 1e-6, 0.0]}),
        (10**30, 10**30),
    ],
)
def test_kinds_may_differ_and_the_coarser_dtype_counts(got, expected):
    assert close("x", got, expected).answer is Answer.PASSED


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (float("inf"), float("-inf")),
        (float("inf"), 1e308),
        (1.0, float("inf")),
        (torch.tensor([1e308, 1.0], dtype=torch.float64), torch.tensor([-1e308, 1.0], dtype=torch.float64)),
        (np.array([2**63 - 1]), np.array([2**63 - 2])),
        (np.array([2**64 - 1], np.uint64), np.array([0], np.uint64)),
        (np.array([-(2**63)]), np.array([2**63 - 1])),
        (True, False),
        ("a", "b"),
        (torch.ones(2), torch.ones(3)),
    ],
)
def test_what_is_far_apart_is_not_close(got, expected):
    assert close("x", got, expected).answer is Answer.FAILED


def test_integers_are_subtracted_without_rounding():
    one, other = np.array([2**60]), np.array([2**60 + 3])
    assert close("x", one, other, rtol=0.0, atol=2.0).answer is Answer.FAILED
    assert close("x", one, other, rtol=0.0, atol=3.0).answer is Answer.PASSED


def test_signed_beside_unsigned_integers_are_not_rounded_either():
    got, expected = np.array([2**63], dtype=np.uint64), np.array([2**63 - 1])
    assert close("x", got, expected).answer is Answer.FAILED
    assert close("x", expected, got, rtol=0.0, atol=0.0).answer is Answer.FAILED
    assert close("x", got, expected, rtol=0.0, atol=1.0).answer is Answer.PASSED
    assert close("x", np.array([-1]), np.array([2**64 - 1], dtype=np.uint64)).answer is Answer.FAILED


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_the_least_integer_has_a_size(dtype):
    least = np.array([np.iinfo(dtype).min], dtype=dtype)
    assert close("x", least + 20, least, rtol=0.3, atol=0.0).answer is Answer.PASSED


def test_the_message_has_tolerance_and_largest_difference():
    result = close("x", torch.tensor([1.0, 2.0]), torch.tensor([1.1, 2.5]))
    assert result.condition == "|x - expected| <= 1e-05 + 1.3e-06 * |expected| (atol + rtol, by dtype)"
    assert "first mismatch at [0]: got 1.0; 2 of 2 differ; largest difference 0.5" in result.observed


@pytest.mark.parametrize("options", [{"rtol": 0.1}, {"atol": 0.1}])
def test_both_tolerances_or_none(options):
    with pytest.raises(BadInput, match="give both"):
        close("x", 1.0, 1.0, **options)


def test_where_there_is_no_answer_no_largest_difference_is_said():
    for got, expected in ((NAN, NAN), (torch.tensor([1.0, NAN]), torch.tensor([2.0, 1.0])), ([], [])):
        result = close("loss", got, expected)
        assert "largest difference" not in result.observed and "largest_difference" not in result.measured


@pytest.mark.parametrize("got", [float("inf"), [1.0, float("-inf")], Fraction(1, 3)])
def test_the_largest_difference_of_what_is_infinitely_far_apart_is_infinite(got):
    expected = [1.0, float("inf")] if isinstance(got, list) else 1.0 if isinstance(got, float) else float("inf")
    result = close("loss", got, expected, rtol=0.1, atol=0.1)
    assert result.answer is Answer.FAILED and result.measured["largest_difference"] == float("inf")
    assert close("loss", expected, expected, rtol=0.1, atol=0.1).measured["largest_difference"] == 0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_a_tolerance_is_a_number(bad):
    with pytest.raises(BadInput, match="finite"):
        close("x", 1.0, 1.0, rtol=bad, atol=0.1)
