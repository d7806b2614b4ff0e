"""What tells failing from passing attempts: the nearest to the cause, and nothing that chance explains."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.replay.contrast import Seen, contrast
from reprokit.replay.parting import least_chance


def output(module, hash="same", call=1, index=0, nonfinite=0, mean=0.0):
    numbers = {"min": mean - 1, "max": mean + 1, "mean": mean, "std": 1.0}
    return {"module": module, "call": call, "output": index, "hash": hash, "nonfinite": nonfinite, **numbers}


def seen(failed, *modules, losses="", **counters):
    evidence = {"modules": list(modules), "counters": counters}
    return Seen(failed=failed, evidence=evidence, fingerprint={"losses": losses} if losses else {})


def test_the_first_module_with_a_value_of_each_groups_own_is_named():
    same, after = output("a"), output("c", hash="x")
    fails = [seen(True, same, output("b", hash="bad", mean=7.0), after)] * 3
    passes = [seen(False, same, output("b", hash="good"), after)] * 2
    found = contrast([*fails, *passes])
    assert (found.module.how, found.module.module, found.module.failing["mean"]) == ("values", "b", (7.0, 7.0))
    assert found.sentences()[0] == (
        "the first module whose output tells failing from passing attempts is `b`: min 6 against -1, max 8 against 1, "
        "mean 7 against 0"
    )
    json.dumps(found.to_json(), allow_nan=False)


def test_where_modules_agree_the_step_outside_of_them_is_named():
    found = contrast([seen(True, output("a"), losses="nan"), seen(False, output("a"), losses="0.5")])
    assert found.module is None and found.after == "the losses"
    assert "all 1 output of modules are the same" in found.sentences()[0] and "the losses" in found.sentences()[0]


def test_a_step_that_ends_early_is_named_by_what_it_did_not_come_to():
    found = contrast([seen(True, output("a")), seen(True, output("a")), seen(False, output("a"), output("b"))])
    assert (found.module.how, found.module.module) == ("stops", "b")
    assert contrast([seen(True), seen(False, output("a"))]).module.how == "stops"
    assert contrast([seen(True, output("a"), output("b")), seen(False, output("a"))]).module.how == "goes_on"


def test_bad_values_in_all_failing_and_no_passing_attempts_are_enough():
    """Though every value is another one in each attempt."""
    fails = [seen(True, output("a", hash=f"f{i}"), output("b", hash=f"f{i}", nonfinite=4)) for i in range(2)]
    passes = [seen(False, output("a", hash=f"p{i}"), output("b", hash=f"p{i}")) for i in range(2)]
    found = contrast([*fails, *passes])
    assert (found.module.how, found.module.module, found.varies) == ("nonfinite", "b", "a")


def test_one_attempt_of_each_says_so():
    found = contrast([seen(True, output("a", hash="x")), seen(False, output("a", hash="y"))])
    assert found.module.how == "differs" and "may differ by chance" in found.sentences()[0]


def test_values_that_vary_in_all_attempts_are_no_finding():
    draw = random.Random(3)
    attempts = [seen(i % 2 == 0, output("a", hash=str(i), mean=draw.random())) for i in range(12)]
    found = contrast(attempts)
    assert (
        found.module is None
        and found.varies == "a"
        and "values vary in all attempts from `a` on" in str(found.sentences())
    )


def test_ranges_that_hardly_part_by_chance_are_a_finding():
    attempts = [seen(i < 8, output("a", hash=str(i), mean=i + (100 if i < 8 else 0))) for i in range(16)]
    found = contrast(attempts)
    assert found.module.how == "ranges" and found.module.failing["mean"] == (100.0, 107.0)


def test_a_counter_that_tells_them_apart_is_named_with_its_chance():
    attempts = [seen(i < 7, output("a"), waits=i, load=(5 if i < 7 else 1)) for i in range(14)]
    found = contrast(attempts)
    assert [one.name for one in found.counters] == ["waits", "load"]
    assert found.counters[1].failing == (5.0, 5.0) and found.counters[1].chance == pytest.approx(4 / 3432)
    assert "load 5 against 1" in found.sentences()[-1]
    few = contrast([seen(i < 2, output("a"), waits=i) for i in range(4)])
    assert not few.counters and few.sentences()[-1] == "too few attempts for 1 counters to tell"


def test_chance_alone_names_a_counter_in_one_of_twenty_rounds_at_most():
    draw, wrong, rounds = random.Random(1), 0, 2000
    for _ in range(rounds):
        attempts = [seen(i < 5, **{f"c{k}": draw.random() for k in range(3)}) for i in range(10)]
        wrong += bool(contrast(attempts).counters)
    assert wrong / rounds <= 0.05 and least_chance(5, 5, 3) == pytest.approx(6 / 252)


def test_attempts_without_a_word_are_told_and_their_machine_is_compared():
    fails = [Seen(failed=True, evidence={"host": {"load": 9.0 + i}}) for i in range(6)]
    passes = [Seen(failed=False, evidence={"modules": [output("a")], "host": {"load": float(i)}}) for i in range(6)]
    found = contrast([*fails, *passes])
    assert found.silent == 6 and [one.name for one in found.counters] == ["host.load"]
    assert found.sentences()[0] == "6 failing attempts ended without a word of their modules"


@pytest.mark.parametrize(("failed", "says"), [(True, "no attempt passed"), (False, "no attempt failed")])
def test_one_group_alone_is_told(failed, says):
    assert contrast([seen(failed, output("a"))] * 3).sentences()[0].startswith(says)
    assert contrast([]).sentences()


@given(
    st.lists(
        st.tuples(
            st.booleans(),
            st.dictionaries(
                st.sampled_from(["modules", "counters", "host", "other"]),
                st.recursive(
                    st.none() | st.booleans() | st.floats() | st.text(max_size=3) | st.just(output("a")),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
                    max_leaves=6,
                ),
            ),
        ),
        max_size=5,
    )
)
def test_evidence_that_is_none_breaks_nothing(attempts):
    found = contrast([Seen(failed=failed, evidence=evidence) for failed, evidence in attempts])
    json.dumps(found.to_json(), allow_nan=False)
