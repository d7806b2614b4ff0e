import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.reduce.values import ORDER, candidates
from reprokit.step.values import simpler


@pytest.mark.parametrize(
    ("value", "moves"),
    [
        (torch.rand(9), ["zero", "constant", "few"]),
        (torch.tensor([math.nan, *range(9)]), ["zero", "constant", "special", "few"]),
        (torch.zeros(3), []),
        (torch.full((3,), 2.0), ["zero"]),
        (torch.tensor([0.0, math.inf]), ["zero"]),
        (torch.tensor([True, True, False]), ["zero", "constant"]),
        (torch.tensor([1, 2, 2]), ["zero", "constant"]),
        ([1.0, 2.0], ["zero", "constant"]),
        (np.arange(9), ["zero", "few"]),
        (["a.mp4", "b.mp4"], []),
        (None, []),
        ({"x": torch.ones(2)}, []),
    ],
)
def test_only_what_would_change_something_is_asked_cheapest_first(value, moves):
    assert candidates(value) == moves


@given(st.lists(st.sampled_from([0.0, 1.0, 2.5, 3.0, 7.0, 9.0, math.nan, math.inf]), max_size=12))
def test_no_two_moves_lead_to_the_same_values(numbers):
    value = torch.tensor(numbers)
    found = candidates(value)
    assert found == [kind for kind in ORDER if kind in found]
    results = [value, *(simpler(value, kind) for kind in found)]
    prints = [one.view(torch.int32).tolist() for one in results]
    assert all(prints.count(one) == 1 for one in prints)
