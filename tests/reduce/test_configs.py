"""The fewest differences between two configs that bring a failure."""

import copy
from dataclasses import replace
from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.reduce.configs import MISSING, Difference, differences, mixed, smallest_difference
from reprokit.reduce.variants import twin_passes
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status

BASE = Case(incident=Path("incident"), thorough=False)
VALUES = st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from([0.0, 1.0, nan, "a"])
CONFIGS = st.recursive(VALUES | st.lists(VALUES, max_size=2), lambda inner: st.dictionaries(st.sampled_from("abc"), inner), max_leaves=8)  # noqa: E501


def plain(config):
    """With types, without the order of keys."""
    return repr(sort(config))


def sort(config):
    return {key: sort(config[key]) for key in sorted(config)} if isinstance(config, dict) else config


@given(CONFIGS, CONFIGS)
def test_all_differences_make_one_config_of_the_other_and_none_leave_it(config, baseline):
    before = copy.deepcopy((config, baseline))
    found = differences(config, baseline)
    assert plain(mixed(baseline, found)) == plain(config) and plain(mixed(baseline, ())) == plain(baseline)
    assert (found == []) == (plain(config) == plain(baseline))
    assert plain(config) == plain(before[0]) and plain(baseline) == plain(before[1])


@given(CONFIGS, CONFIGS, st.data())
def test_a_mixture_differs_in_what_was_not_kept(config, baseline, data):
    found = differences(config, baseline)
    keep = [one for one in found if data.draw(st.booleans())]
    left = differences(config, mixed(baseline, keep))
    assert {one.path for one in left} == {one.path for one in found} - {one.path for one in keep}


def test_a_mapping_that_one_side_lacks_is_one_difference():
    config = {"model": {"depth": 4, "drop": [0.1]}, "new": {"a": 1, "b": 2}, 3: 1}
    baseline = {"model": {"depth": 4, "drop": [0.2]}, "old": {"c": 1}, 3: True}
    assert [one.to_json() for one in differences(config, baseline)] == [
        {"key": "model.drop", "here": [0.1], "baseline": [0.2]},
        {"key": "new", "here": {"a": 1, "b": 2}},
        {"key": "3", "here": 1, "baseline": True},
        {"key": "old", "baseline": {"c": 1}},
    ]
    assert Difference(path=("a", "b")).key == "a.b" and repr(MISSING) == "MISSING"


@given(st.sets(st.integers(0, 19), min_size=1, max_size=4))
def test_the_needed_differences_are_found(answered, needed):
    config, baseline = {f"k{i:02}": 1 for i in range(20)}, {f"k{i:02}": 0 for i in range(0, 20, 2)} | {"only": 2}
    fails = lambda case: Status.FAIL if all(case.variant.whole_config.get(f"k{i:02}") == 1 for i in needed) else Status.PASS  # noqa: E501
    kept, asked = answered(smallest_difference(BASE, config, baseline), fails)
    assert [one.key for one in kept] == [f"k{i:02}" for i in sorted(needed)]
    assert asked[0].variant.whole_config == baseline and len(asked) < 12 + 8 * len(needed)


def test_what_the_base_changes_in_the_config_is_one_of_the_differences(answered):
    base = replace(BASE, variant=Variant(config={"model.depth": 1}, dtype="float64"))
    config, baseline = {"model": {"depth": 4}, "lr": 1}, {"model": {"depth": 4}, "lr": 2}
    fails = lambda case: Status.FAIL if case.variant.whole_config["model"]["depth"] == 1 else Status.PASS
    kept, asked = answered(smallest_difference(base, config, baseline), fails)
    assert [one.to_json() for one in kept] == [{"key": "model.depth", "here": 1, "baseline": 4}]
    assert all(case.variant.config == {} and case.variant.dtype == "float64" for case in asked)


def test_a_mixture_in_which_healthy_content_fails_too_is_left_where_that_is_asked(answered):
    """Each key alone fails, the first whatever the batch holds."""
    config, baseline = {"a": 1, "b": 1}, {"a": 0, "b": 0}

    def status(case):
        whole = case.variant.whole_config
        if case.heal == ({},):
            return Status.FAIL if whole == {"a": 1, "b": 0} else Status.PASS
        return Status.FAIL if whole["a"] or whole["b"] else Status.PASS

    assert [one.key for one in answered(smallest_difference(BASE, config, baseline), status)[0]] == ["a"]
    assert [one.key for one in answered(smallest_difference(BASE, config, baseline, twin_passes), status)[0]] == ["b"]


@pytest.mark.parametrize(
    ("outcome", "says"),
    [
        (Outcome(status=Status.FAIL), "fails with its config as well"),
        (
            Outcome(status=Status.OTHER, signature=Signature(kind=Kind.NONFINITE_GRAD, where="backward")),
            r"another way \(nonfinite_grad at backward\)",
        ),
        (Outcome(status=Status.INVALID, detail="Traceback\n  more\nKeyError: 'd'\n"), r"cannot run .*\(KeyError: 'd"),
        (Outcome(status=Status.INVALID), "no reason given"),
    ],
)
def test_a_baseline_that_does_not_pass_is_refused_in_one_line(answered, outcome, says):
    with pytest.raises(BadInput, match=says) as refusal:
        answered(smallest_difference(BASE, {"a": 1}, {"a": 2}), lambda case: outcome)
    assert "\n" not in str(refusal.value)


def test_the_incidents_own_config_is_no_baseline(answered):
    with pytest.raises(BadInput, match="the incident's own config"):
        answered(smallest_difference(BASE, {"a": nan}, {"a": nan}), lambda case: Status.PASS)
