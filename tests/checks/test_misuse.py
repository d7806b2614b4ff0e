"""Whatever is handed over in whatever place: an answer, or one line that says what to mend. Never a raw exception."""

from collections import UserList
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from reprokit import checks
from reprokit.checks import About, Bootstrap, History, Result, check
from reprokit.errors import BadInput

ABOUT = About(dataset="three clips", seed=0, version="a1")


class Silent:
    def __repr__(self):
        raise RuntimeError("no")


class Unequal:
    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


@dataclass
class Unset:
    value: object

    def __init__(self):
        """A field that was never set."""


def looped_list():
    loop = []
    loop.append(loop)
    return loop


def looped_dict():
    loop = {}
    loop["a"] = loop
    return loop


def deep(levels=100_000):
    nest = []
    for _ in range(levels):
        nest = [nest]
    return nest


def of_objects(*values):
    found = np.empty(len(values), object)
    found[:] = values
    return found


def looped_array():
    found = np.empty(1, object)
    found[0] = found
    return found


ODD = {
    "a huge int": lambda: 10**400,
    "an int that cannot be written": lambda: 10**5000,
    "a signalling NaN": lambda: Decimal("sNaN"),
    "a decimal NaN": lambda: Decimal("NaN"),
    "a decimal": lambda: Decimal("0.5"),
    "a fraction": lambda: Fraction(1, 3),
    "a huge fraction": lambda: Fraction(10**400, 3),
    "a complex": lambda: 1j,
    "a text": lambda: "0.5",
    "an empty text": lambda: "",
    "bytes": lambda: b"0.5",
    "nothing": lambda: None,
    "a bool": lambda: True,
    "NumPy's bool": lambda: np.True_,
    "NaN": lambda: float("nan"),
    "infinity": lambda: float("-inf"),
    "below zero": lambda: -1,
    "half": lambda: 0.5,
    "an object": object,
    "a class": lambda: dict,
    "a function": lambda: lambda *_: 0.5,
    "no repr": Silent,
    "no answer": Unequal,
    "unset": Unset,
    "an empty list": list,
    "an empty dict": dict,
    "a set": lambda: {1, 2},
    "a list": lambda: [1.0, 0.0],
    "a list of lists": lambda: [[1.0], [0.0]],
    "a ragged list": lambda: [[1.0], [0.0, 1.0]],
    "a list of texts": lambda: ["a", "b"],
    "a list with a huge int": lambda: [10**400, 1],
    "a list of signalling NaN": lambda: [Decimal("sNaN"), Decimal(1)],
    "a list with nothing": lambda: [None, 1.0],
    "huge counts": lambda: [1e308, 1e308],
    "another sequence": lambda: UserList([1.0, 0.0]),
    "objects": lambda: of_objects(1.0, Decimal("0.5")),
    "texts as objects": lambda: of_objects("1", "0"),
    "objects in two dimensions": lambda: np.array([[1, None], ["a", 2]], object),
    "a text in an array": lambda: np.array("0.5"),
    "nothing in an array": lambda: np.array(None, object),
    "a complex in an array": lambda: np.array(1j),
    "an empty array": lambda: np.empty(0),
    "an empty array of objects": lambda: np.empty(0, object),
    "a flat array of none": lambda: np.empty((0, 3)),
    "complex numbers": lambda: np.array([1j, 2]),
    "dates": lambda: np.array(["2020-01-01", "NaT"], "M8[s]"),
    "records": lambda: np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "masked": lambda: np.ma.array([1.0, 2.0], mask=[True, False]),
    "an array of itself": looped_array,
    "a complex tensor": lambda: torch.tensor(1j),
    "a bool tensor": lambda: torch.tensor(True),
    "a tensor of one": lambda: torch.tensor(0.5, requires_grad=True) * 1,
    "a tensor of many": lambda: torch.ones(2, 2),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "sparse rows": lambda: torch.eye(2).to_sparse_csr(),
    "a sparse sample": lambda: torch.tensor([1.0, 0.0]).to_sparse(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(2, device="meta"),
    "meta of one": lambda: torch.ones((), device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "bits": lambda: torch.ones(2, dtype=torch.uint8).view(torch.bits8),
    "bfloat16": lambda: torch.ones(2, dtype=torch.bfloat16),
    "tensors in a list": lambda: [torch.ones(2, requires_grad=True)],
    "meta in a list": lambda: [torch.ones((), device="meta")],
    "a list of itself": looped_list,
    "a dict of itself": looped_dict,
    "a deep list": deep,
    "a result": lambda: checks.exact("x", 1, 1),
}
SURE, RIGHT, COUNTS = [0.2, 0.7] * 20, [0, 1] * 20, [30, 70]
PLACES = {
    "check: result": lambda odd: check(odd, ABOUT),
    "check: about": lambda odd: check(checks.exact("x", 1, 1), odd),
    "check: next step": lambda odd: check(checks.exact("x", 1, 1), ABOUT, next_step=odd),
    "About: dataset": lambda odd: check(checks.exact("x", 1, 1), About(dataset=odd, seed=0, version="a")),
    "About: version": lambda odd: check(checks.exact("x", 1, 1), About(dataset="x", seed=0, version=odd)),
    "exact: name": lambda odd: checks.exact(odd, 1, 1),
    "exact: got": lambda odd: checks.exact("x", odd, 1),
    "exact: both": lambda odd: checks.exact("x", odd, odd),
    "exact: within both": lambda odd: checks.exact("x", {"a": [odd]}, {"a": [odd]}),
    "exact: beside an array": lambda odd: checks.exact("x", np.ones(2), odd),
    "close: got": lambda odd: checks.close("x", odd, 1.0),
    "close: expected": lambda odd: checks.close("x", 1.0, odd),
    "close: both": lambda odd: checks.close("x", odd, odd, rtol=0.1, atol=0.1),
    "close: beside an array": lambda odd: checks.close("x", np.ones(2), odd),
    "close: beside a tensor": lambda odd: checks.close("x", odd, torch.ones(2)),
    "close: rtol": lambda odd: checks.close("x", 1.0, 1.0, rtol=odd, atol=0.0),
    "close: atol": lambda odd: checks.close("x", 1.0, 1.0, rtol=0.0, atol=odd),
    "close: name": lambda odd: checks.close(odd, 1, 1),
    "at_least: name": lambda odd: checks.at_least(odd, 0.5, 0.5, n=1),
    "Kolmogorov-Smirnov: name": lambda odd: checks.kolmogorov_smirnov(odd, SURE, SURE),
    "chi-square: name": lambda odd: checks.chi_square(odd, COUNTS, expected=[1, 1]),
    "Kullback-Leibler: name": lambda odd: checks.kl_divergence(odd, COUNTS, [1, 1], at_most=0.1),
    "calibration: name": lambda odd: checks.calibration(odd, SURE, RIGHT, resamples=20),
    "at_least: number": lambda odd: checks.at_least("x", odd, 0.5, n=1),
    "at_least: values": lambda odd: checks.at_least("x", odd, 0.5),
    "at_least: bound": lambda odd: checks.at_least("x", 0.5, odd, n=1),
    "at_least: margin": lambda odd: checks.at_least("x", 0.5, 0.5, margin=odd, n=1),
    "at_least: n": lambda odd: checks.at_least("x", 0.5, 0.5, n=odd),
    "at_least: n beside values": lambda odd: checks.at_least("x", [0.5, 0.5], 0.5, n=odd),
    "History: values": lambda odd: checks.at_least("x", 0.5, margin=History(values=odd), n=1),
    "History: alpha": lambda odd: checks.at_least("x", 0.5, margin=History(values=[1, 2], alpha=odd), n=1),
    "Bootstrap: values": lambda odd: checks.at_least("x", odd, 0.5, margin=Bootstrap(resamples=20)),
    "Bootstrap: alpha": lambda odd: checks.at_least("x", RIGHT, 0.5, margin=Bootstrap(resamples=20, alpha=odd)),
    "Bootstrap: resamples": lambda odd: checks.at_least("x", RIGHT, 0.5, margin=Bootstrap(resamples=odd)),
    "Bootstrap: seed": lambda odd: checks.at_least("x", RIGHT, 0.5, margin=Bootstrap(resamples=20, seed=odd)),
    "Bootstrap: statistic": lambda odd: checks.at_least(
        "x", RIGHT, 0.5, margin=Bootstrap(resamples=20, statistic=None if isinstance(odd, type) else odd)
    ),  # what a function of the caller raises is theirs to see
    "Bootstrap: its number": lambda odd: checks.at_least(
        "x", RIGHT, 0.5, margin=Bootstrap(resamples=20, statistic=lambda _: odd)
    ),
    "Kolmogorov-Smirnov: values": lambda odd: checks.kolmogorov_smirnov("x", odd, SURE),
    "Kolmogorov-Smirnov: reference": lambda odd: checks.kolmogorov_smirnov("x", SURE, odd),
    "Kolmogorov-Smirnov: what it gives": lambda odd: checks.kolmogorov_smirnov("x", SURE, lambda _: odd),
    "Kolmogorov-Smirnov: alpha": lambda odd: checks.kolmogorov_smirnov("x", SURE, SURE, alpha=odd),
    "Kolmogorov-Smirnov: detect": lambda odd: checks.kolmogorov_smirnov("x", SURE, SURE, detect=odd),
    "chi-square: counts": lambda odd: checks.chi_square("x", odd, expected=[1, 1]),
    "chi-square: expected": lambda odd: checks.chi_square("x", COUNTS, expected=odd),
    "chi-square: reference": lambda odd: checks.chi_square("x", COUNTS, reference=odd),
    "chi-square: estimated": lambda odd: checks.chi_square("x", COUNTS, expected=[1, 1], estimated=odd),
    "chi-square: alpha": lambda odd: checks.chi_square("x", COUNTS, expected=[1, 1], alpha=odd),
    "chi-square: detect": lambda odd: checks.chi_square("x", COUNTS, expected=[1, 1], detect=odd),
    "Kullback-Leibler: counts": lambda odd: checks.kl_divergence("x", odd, [1, 1], at_most=0.1),
    "Kullback-Leibler: expected": lambda odd: checks.kl_divergence("x", COUNTS, odd, at_most=0.1),
    "Kullback-Leibler: at_most": lambda odd: checks.kl_divergence("x", COUNTS, [1, 1], at_most=odd),
    "calibration: confidences": lambda odd: checks.calibration("x", odd, RIGHT, resamples=20),
    "calibration: correct": lambda odd: checks.calibration("x", SURE, odd, resamples=20),
    "calibration: at_most": lambda odd: checks.calibration("x", SURE, RIGHT, resamples=20, at_most=odd),
    "calibration: bins": lambda odd: checks.calibration("x", SURE, RIGHT, resamples=20, bins=odd),
    "calibration: resamples": lambda odd: checks.calibration("x", SURE, RIGHT, resamples=odd),
    "calibration: seed": lambda odd: checks.calibration("x", SURE, RIGHT, resamples=20, seed=odd),
    "calibration: alpha": lambda odd: checks.calibration("x", SURE, RIGHT, resamples=20, alpha=odd),
    "all_of": lambda odd: checks.all_of(odd),
    "any_of": lambda odd: checks.any_of(checks.exact("x", 1, 1), odd),
    "not_": lambda odd: checks.not_(odd),
}


def wrong_with(place, odd):
    """What came of it, if that is neither an answer nor one line."""
    try:
        result = place(odd)
    except BadInput as error:
        return "" if len(str(error).splitlines()) == 1 and len(str(error)) < 700 else str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if isinstance(result, Result) else f"{result!r} is no result"


@pytest.mark.filterwarnings("ignore")  # of torch, about nested and quantized tensors
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_whatever_is_handed_over_is_answered_or_refused_in_one_line(place):
    wrong = {name: said for name, make in ODD.items() if (said := wrong_with(place, make()))}
    assert wrong == {}


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: check(True, ABOUT), "check: a bool is no result of a check"),
        (lambda: check(checks.exact("x", 1, 1), "three clips"), r"About\(dataset="),
        (lambda: checks.all_of([checks.exact("x", 1, 1)]), "all of: a list is no result of a check; .* one by one"),
        (lambda: checks.not_(False), "not: a bool is no result"),
        (lambda: About(dataset=3, seed=0), "dataset is 3; name the data"),
        (lambda: About(dataset="x", seed=0, version=3), "version is 3"),
        (lambda: checks.exact(3, 1, 1), "a check is named 3"),
        (lambda: checks.at_least("x", 10**400, 0.5, n=1), "x: 10000.* is no number that a float can be"),
        (lambda: checks.at_least("x", [1.0, None], 0.5), r"\[1\] is None"),
        (lambda: checks.at_least("x", 0.5, 10**400, n=1), "the bound is 1000"),
        (lambda: checks.exact("x", np.ma.array([1, 2], mask=[0, 1]), np.array([1, 2])), "masked array"),
        (lambda: checks.kolmogorov_smirnov("x", SURE, stats.norm), "hand over a .cdf"),
        (lambda: checks.exact("x", torch.nested.nested_tensor([torch.ones(1)]), 1), "unbind"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*nested tensors:UserWarning")
def test_the_line_says_what_to_mend(ask, why):
    with pytest.raises(BadInput, match=why):
        ask()


@pytest.mark.parametrize("values", [[0.5, 0.7], np.array([0.5, 0.7]), torch.tensor([0.5, 0.7])])
@pytest.mark.parametrize("margin", [0.0, History(values=[0.5, 0.6])])
def test_an_n_that_is_not_how_many_values_there_are_is_refused(values, margin):
    ask = lambda n: checks.at_least("x", values, 0.1, margin=margin, n=n)
    assert ask(2).n == ask(np.int64(2)).n == ask(None).n == 2
    for n in (0, 1, 3, 200):
        with pytest.raises(BadInput, match=f"n is {n} beside 2 values"):
            ask(n)


def test_decimals_and_fractions_are_numbers():
    for half in (Decimal("0.5"), Fraction(1, 2), np.float16(0.5), torch.tensor(0.5)):
        assert checks.at_least("x", half, half, margin=half, n=1) == checks.at_least("x", 0.5, 0.5, margin=0.5, n=1)
        assert checks.at_least("x", [half, half], half) == checks.at_least("x", [0.5, 0.5], 0.5)


FLOAT = st.floats(width=64)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
MARGINS = {
    "given": lambda _: 0.1,
    "history": lambda values: History(values=values),
    "bootstrap": lambda _: Bootstrap(resamples=200),
    "strict": lambda _: Bootstrap(resamples=200, strict=True),
}


@pytest.mark.filterwarnings("error")
@settings(max_examples=60)
@given(
    st.lists(FLOAT, min_size=30, max_size=40) | st.lists(FINITE, min_size=30, max_size=40),
    FINITE,
    st.sampled_from(list(MARGINS.values())),
    st.sampled_from([checks.at_least, checks.at_most]),
)
def test_no_numbers_are_too_large_or_too_small_for_an_answer(values, bound, margin, ask):
    result = ask("x", values, bound, margin=margin(values))
    if not np.isfinite(values).all():
        assert result.answer is checks.Answer.UNANSWERED


@settings(max_examples=40)
@given(st.integers(-900, 900), st.integers(0, 10**6), st.sampled_from(["history", "bootstrap", "strict"]))
def test_the_unit_does_not_matter(power, seed, margin):
    """A factor of two rounds nothing, so that answers are those of the same values in another unit."""
    values, unit = np.random.default_rng(seed).normal(5, size=40), 2.0**power
    ask = lambda by: checks.at_least("x", values * by, 4.9 * by, margin=MARGINS[margin]((values * by).tolist()))
    assert ask(1.0).answer is not checks.Answer.UNANSWERED
    assert (ask(unit).answer, ask(unit).p_value) == (ask(1.0).answer, ask(1.0).p_value)


@pytest.mark.parametrize("past", [[1.7e308, -1.7e308], [1.7e308, 1.6e308]])
def test_a_history_that_no_float_holds_answers_nothing(past):
    result = checks.at_least("x", 0.5, margin=History(values=past), n=1)
    assert result.answer is checks.Answer.UNANSWERED and "more than a float holds" in result.observed
