import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.step.finite import all_finite, count_bad

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@given(
    st.lists(st.sampled_from(DTYPES), min_size=1, max_size=6),
    st.integers(0, 5),
    st.sampled_from([float("nan"), float("inf"), -float("inf")]),
)
def test_one_bad_value_anywhere_is_found(dtypes, place, bad):
    tensors = [torch.full((3, 2), 2.0, dtype=dtype) for dtype in dtypes]
    assert all_finite(tensors)
    tensors[place % len(tensors)].view(-1)[place % 6] = bad
    assert not all_finite(tensors)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_finite_value_is_finite(dtype):
    assert all_finite([torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)])


def test_what_holds_no_floating_point_numbers_is_finite():
    assert all_finite([torch.zeros(0), torch.tensor([1, 2]), torch.tensor([True])]) and all_finite([])


def test_complex_and_sparse_values_are_looked_at():
    assert not all_finite([torch.tensor([1 + 1j, complex(0, float("nan"))])])
    assert not all_finite([torch.tensor([[0.0, float("inf")]]).to_sparse()])


def test_bad_values_are_counted():
    assert count_bad(torch.tensor([1.0, float("nan"), float("inf"), -float("inf")])) == {"nan": 1, "inf": 2, "of": 4}


def test_float8_is_looked_at():
    assert all_finite([torch.ones(3).to(torch.float8_e4m3fn)])
    assert not all_finite([torch.tensor([float("nan")]).to(torch.float8_e4m3fn)])
