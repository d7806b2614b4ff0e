from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.replay.draws import NAMES, RNG, Draws, check, deterministic, varied
from reprokit.step.case import Case, Variant

CASE = Case(incident=Path("incident"), variant=Variant(flags={"threads": 4}, env={"A": "b"}))
EVERY = (RNG, *NAMES)


@given(st.sampled_from(["threads", "deterministic", "memory", "matmul", "tf32", "cudnn_benchmark"]), st.integers(0, 99))
def test_levels_come_in_rounds_so_that_all_are_equally_often_there(name, base):
    draws = Draws(names=(name,), base=base, cores=8, captured={"threads": 3})
    first = Counter(draws.inputs(number)[name] for number in range(60))
    size = len(first)
    assert size > 1 and set(first.values()) == {60 // size}
    assert all(len({draws.inputs(i)[name] for i in range(at, at + size)}) == size for at in range(0, 60, size))


@given(st.sampled_from(EVERY), st.integers(0, 99), st.integers(0, 999))
def test_a_draw_depends_on_base_and_number_alone(name, base, number):
    assert Draws(names=(name,), base=base).inputs(number)[name] == Draws(names=EVERY, base=base).inputs(number)[name]


def test_seeds_are_new_each_time_and_of_each_base():
    drawn = [Draws(names=(RNG, "hashseed"), base=base).inputs(number) for base in range(9) for number in range(99)]
    assert len({one[RNG] for one in drawn}) == len({one["hashseed"] for one in drawn}) == 891
    assert all(0 <= one["hashseed"] < 2**32 and one[RNG] != one["hashseed"] for one in drawn)


def test_thread_counts_are_few_and_hold_the_captured_one():
    draws = Draws(names=("threads",), cores=16, captured={"threads": 6})
    assert {draws.inputs(number)["threads"] for number in range(8)} == {1, 2, 6, 16}


def test_what_is_drawn_takes_the_place_of_the_captured_and_nothing_else_changes():
    found = varied(CASE, {"rng": 5, "threads": 2, "hashseed": 7, "memory": 85, "deterministic": True, "tf32": False})
    assert found.rng == 5 and found.incident == CASE.incident
    assert found.variant.env == {
        "A": "b", "PYTHONHASHSEED": "7", "MALLOC_PERTURB_": "85", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }  # fmt: skip
    flags = found.variant.flags
    assert flags["threads"] == 2 and flags["deterministic_algorithms"] and flags["cudnn_tf32"] is False
    assert varied(CASE, {}) == CASE and varied(CASE, {"threads": 1}).rng == "captured"


def test_deterministic_forces_and_does_not_only_warn():
    flags = deterministic(CASE).variant.flags
    assert flags["deterministic_algorithms"] and not flags["deterministic_warn_only"] and flags["threads"] == 4


@pytest.mark.parametrize(
    ("names", "engine", "device", "forced", "says"),
    [
        (("colour",), "docker", "cpu", False, "--vary colour: unknown; one of hashseed, threads"),
        (("hashseed",), "inline", "cpu", False, "fixed before an interpreter starts"),
        (("memory",), "inline", "cpu", False, "use --engine process or docker"),
        (("tf32",), "docker", "cpu", False, "a switch of GPUs, and this incident ran on cpu"),
        (("deterministic",), "docker", "cpu", True, "leave one of them out"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_one_line(names, engine, device, forced, says):
    with pytest.raises(BadInput, match=says) as refused:
        check(names, engine=engine, device=device, deterministic=forced)
    assert "\n" not in str(refused.value)


def test_what_can_is_not():
    check(tuple(NAMES), engine="docker", device="cuda:0")
    check(("hashseed", "threads", "memory"), engine="fork", device="cpu", deterministic=True)
