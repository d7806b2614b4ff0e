import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.reduce.isolation import NotReproduced
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")


def nan_anywhere(batch):
    return NAN if any(tensor.isnan().any() for tensor in batch.values()) else None


def black_frame(batch):
    """Per-frame standardisation: a frame of zeros has no deviation, and 0/0 is NaN."""
    return NAN if any((tensor == 0).all(-1).any() for tensor in batch.values()) else None


def two_or_value_error(batch):
    """BatchNorm refuses one value per channel."""
    if len(batch["global"]) == 1:
        raise ValueError("Expected more than 1 value per channel when training, got input size [1, 4]")
    return nan_anywhere(batch)


def poke(key, *place):
    def damage(batch):
        batch[key][place] = float("nan")

    return damage


def pad(sample, frames):
    def damage(batch):
        batch["global"][sample, frames] = 0
        batch["local"][sample, :, frames] = 0

    return damage


def axes(found):
    return {name: (axis.kept, axis.guilty) for name, axis in found.axes.items()}


def check_one_minimal(bench, found):
    """By brute force: no single element can be dropped unless healthy content fails or raises in that shape, too."""
    assert found.one_minimal and bench.status(found.case) is Status.FAIL
    for axis, described in found.axes.items():
        for index in described.kept if len(described.kept) > 1 else ():
            keep = {**found.case.keep, axis: tuple(i for i in described.kept if i != index)}
            twin = Case(incident=bench.path, keep=keep, heal=({},))
            if bench.status(Case(incident=bench.path, keep=keep, heal=found.case.heal)) is Status.FAIL:
                assert bench.status(twin) is not Status.PASS


def test_the_padded_window_one_frame_is_kept_and_all_padded_frames_are_guilty(make):
    bench = make(pad(3, [5, 6, 7]), black_frame)
    found = bench.reduce()
    assert found.axes["b"].kept == found.axes["b"].guilty == (3,)
    assert found.axes["t"].kept == (5,) and found.axes["t"].guilty == (5, 6, 7) and found.axes["t"].together
    assert found.axes["v"].kept == (0,) and found.axes["v"].healed == (0,) and found.axes["v"].guilty == ()
    assert found.batch_guilty is True and found.isolation == "restore"
    assert found.step_equivalents < 3
    check_one_minimal(bench, found)


def test_one_nan_frame_of_one_view_is_named_on_every_axis(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere)
    found = bench.reduce()
    assert axes(found) == {"b": ((1,), (1,)), "v": ((2,), (2,)), "t": ((6,), (6,))}
    check_one_minimal(bench, found)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_culprit_anywhere_costs_its_logarithms(make, data):
    sizes = {"b": data.draw(st.integers(1, 9)), "v": data.draw(st.integers(1, 5)), "t": data.draw(st.integers(1, 16))}
    place = [data.draw(st.integers(0, size - 1)) for size in sizes.values()]
    bench = make(poke("local", *place), nan_anywhere, **sizes)
    found = bench.reduce()
    assert axes(found) == {axis: ((index,), (index,)) for axis, index in zip(sizes, place)}
    check_one_minimal(bench, found)
    questions = sum((size - 1).bit_length() + 1 for size in sizes.values())
    assert found.calls <= 4 + questions + 3 * 5


def test_batchnorm_insists_on_two_samples_and_the_second_is_shape_only(make):
    bench = make(poke("global", 3, 1), two_or_value_error)
    found = bench.reduce()
    b = found.axes["b"]
    assert b.kept == (0, 3) and b.healed == (0,) and b.guilty == (3,)
    assert found.axes["t"].kept == (1,)
    assert not found.certificate["findings"]  # healthy content raises the same error
    check_one_minimal(bench, found)


def test_the_false_minimum_of_one_sample_is_not_taken(make):
    """The variance of one sample is zero for any content: the shape twin fails as well."""

    def look(batch):
        return NAN if (batch["local"].mean((-1, -2)).var(0, unbiased=False) == 0).any() else None

    def damage(batch):
        batch["local"][:, 1] = 0

    bench = make(damage, look)
    found = bench.reduce()
    assert len(found.axes["b"].kept) == 2
    assert found.axes["v"].kept == found.axes["v"].guilty == (1,)
    check_one_minimal(bench, found)


def test_an_equal_pair_keeps_both_and_each_alone_heals(make):
    def look(batch):
        flat = batch["global"].flatten(1)
        return NAN if any((flat[i] == flat[j]).all() for i in range(len(flat)) for j in range(i)) else None

    def damage(batch):
        batch["global"][4] = batch["global"][1]

    bench = make(damage, look, b=6)
    found = bench.reduce()
    assert found.axes["b"].kept == found.axes["b"].guilty == (1, 4) and not found.axes["b"].together
    assert len(found.axes["t"].kept) == 1
    check_one_minimal(bench, found)


def test_lengths_that_fail_at_random_blame_the_shape_and_end_in_a_local_minimum(make, healthy):
    def look(batch):
        t = batch["global"].shape[1]
        if t in (2, 3, 5, 6):
            raise RuntimeError("The size of tensor a must match the size of tensor b (4) at dimension 1")

    signature = Signature(
        kind=Kind.EXCEPTION,
        where="forward",
        exception="RuntimeError",
        function="train.py:step",
        message="The size of tensor a must match the size of tensor b (4) at dimension 1",
    )
    bench = make(lambda batch: None, look, donor=healthy(t=4), options={"signature": signature}, t=6)
    found = bench.reduce()
    assert len(found.axes["t"].kept) == 2 and len(found.axes["b"].kept) == 1
    assert all(axis.guilty == () for axis in found.axes.values())
    assert "shape" in found.certificate["notes"][0] and found.batch_guilty is True
    assert found.one_minimal


def test_two_independent_culprits_one_is_kept_and_both_are_guilty(make):
    def damage(batch):
        poke("global", 0, 2)(batch)
        poke("local", 3, 1, 5)(batch)

    bench = make(damage, nan_anywhere)
    found = bench.reduce()
    assert found.axes["b"].kept == (0,)
    assert found.axes["b"].guilty == (0, 3) and found.axes["b"].together
    assert found.axes["t"].guilty == (2, 5)
    check_one_minimal(bench, found)


def test_where_every_view_is_bad_all_of_them_are_guilty_together(make):
    def damage(batch):
        batch["local"][2, :, 4] = float("nan")

    found = make(damage, nan_anywhere).reduce()
    assert found.axes["v"].kept == (0,) and found.axes["v"].guilty == (0, 1, 2, 3) and found.axes["v"].together


def test_an_architecture_that_takes_one_length_only_is_healed_instead_of_cut(make):
    def look(batch):
        if batch["global"].shape[1] != 8:
            raise RuntimeError(f"expected 8 frames, got {batch['global'].shape[1]}")
        return nan_anywhere(batch)

    bench = make(poke("global", 1, 5), look)
    found = bench.reduce()
    t = found.axes["t"]
    assert t.kept == tuple(range(8)) and t.healed == (0, 1, 2, 3, 4, 6, 7) and t.guilty == (5,)
    check_one_minimal(bench, found)


def test_tubelets_of_two_frames_leave_one_tubelet(make):
    def look(batch):
        if batch["global"].shape[1] % 2:
            raise RuntimeError("frames must come in twos")
        return nan_anywhere(batch)

    bench = make(poke("global", 1, 5), look)
    found = bench.reduce()
    assert len(found.axes["t"].kept) == 2 and found.axes["t"].guilty == (5,)
    check_one_minimal(bench, found)


def test_another_failure_that_healthy_content_does_not_have_is_a_finding(make):
    def look(batch):
        local = batch["local"]
        if local.isnan().any() and len(local) == 1:
            raise ZeroDivisionError("float division by zero")
        return nan_anywhere(batch)

    found = make(poke("local", 2, 0, 0), look).reduce()
    assert len(found.axes["b"].kept) == 2 and found.one_minimal
    assert ["ZeroDivisionError" in finding["failure"] for finding in found.certificate["findings"]] == [True]


def test_a_donor_that_fails_as_well_clears_the_batch(make):
    bench = make(lambda batch: None, lambda batch: NAN)
    found = bench.reduce()
    assert found.batch_guilty is False and found.isolation == "process"
    assert all(len(axis.kept) == 1 and not axis.guilty for axis in found.axes.values())
    assert "nothing in the batch is to blame" in found.certificate["notes"][0]


def test_state_that_leaks_from_one_evaluation_to_the_next_raises_the_isolation(make):
    bench = make(poke("global", 3, 1), nan_anywhere)
    plain, seen = bench.evaluate, {"runs": 0}

    def evaluate(case, isolation):
        seen["runs"] = seen["runs"] + 1 if isolation == "restore" else 0
        outcome = plain(case, isolation)
        print_of = {"losses": f"run {seen['runs']}"}
        return Outcome(status=outcome.status, signature=outcome.signature, fingerprint=print_of)

    bench.evaluate = evaluate
    found = bench.reduce()
    assert found.isolation == "rebuild" and axes(found)["b"] == ((3,), (3,))


def test_a_poisoned_buffer_needs_a_fresh_process(make):
    bench = make(poke("global", 3, 1), nan_anywhere)
    plain, poisoned = bench.evaluate, []

    def evaluate(case, isolation):
        if isolation == "process":
            return plain(case, isolation)
        outcome = plain(case, isolation)
        poisoned.append(outcome.status is Status.FAIL)
        return Outcome(status=Status.FAIL, signature=NAN) if any(poisoned) else outcome

    bench.evaluate = evaluate
    found = bench.reduce()
    assert found.isolation == "process" and found.batch_guilty and axes(found)["b"] == ((3,), (3,))


def test_a_hang_starts_in_a_fresh_process(make):
    hang = Signature(kind=Kind.HANG, where="forward")
    bench = make(poke("global", 3, 1), lambda batch: hang if nan_anywhere(batch) else None, options={"signature": hang})
    bench.reduce()
    assert {isolation for _, isolation in bench.asked} == {"process"}


def test_a_case_that_passes_is_refused_with_its_counts(make):
    with pytest.raises(NotReproduced, match=r"does not fail here \(0 of 3 runs") as refusal:
        make(lambda batch: None, nan_anywhere).reduce()
    assert refusal.value.exit_code == 11 and "\n" not in str(refusal.value)


def test_a_case_that_fails_for_another_reason_names_both(make):
    def look(batch):
        raise KeyError("pixels")

    with pytest.raises(NotReproduced, match=r"captured nonfinite_loss at loss, now exception at forward \(KeyError"):
        make(lambda batch: None, look).reduce()


def test_a_case_that_fails_every_other_time_says_so(make):
    seen = []

    def look(batch):
        if nan_anywhere(batch) is None:
            return None
        seen.append(None)
        return NAN if len(seen) % 2 else None

    with pytest.raises(NotReproduced, match="fails only sometimes"):
        make(poke("global", 0, 0), look).reduce()


def test_a_budget_keeps_the_best_so_far(make):
    bench = make(pad(3, [5, 6, 7]), black_frame)
    calls = bench.reduce().calls
    previous = None
    for budget in range(1, calls + 1):
        found = bench.reduce(budget=budget)
        assert found.calls <= max(budget, 3) + 1 and bench.status(found.case) is Status.FAIL
        size = sum(len(axis.kept) for axis in found.axes.values())
        assert previous is None or size <= previous
        previous = size
    with pytest.raises(BadInput, match="budget of 0"):
        bench.reduce(budget=0)


def test_nothing_is_asked_twice_and_the_result_is_the_same_each_time(make):
    bench = make(pad(2, [1, 2]), black_frame)
    first = bench.reduce()
    searched = [case for case, _ in bench.asked[3:]]
    assert len(searched) == len({repr(case) for case in searched})
    second = bench.reduce()
    assert first.to_json() | {"seconds": 0} == second.to_json() | {"seconds": 0}


def test_no_donor_still_reduces_and_says_what_it_could_not_do(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere)
    bench.donor = None
    found = bench.reduce()
    assert {name: axis.kept for name, axis in found.axes.items()} == {"b": (1,), "v": (2,), "t": (6,)}
    assert found.batch_guilty is None and "no donor" in found.certificate["notes"][0]


def test_a_donor_that_does_not_fit_the_layout_is_no_donor(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere, donor={"global": torch.rand(4, 8, 4)})
    found = bench.reduce()
    assert found.axes["b"].kept == (1,) and "the donor was not used" in found.certificate["notes"][0]


def test_frames_of_unlike_lengths_are_axes_of_their_own(make, healthy):
    layout = {"global": "b t h", "local": "b v local.t h"}
    batch, donor = healthy(), healthy(seed=1)
    for one in (batch, donor):
        one["local"] = one["local"][:, :, :3].clone()
    batch["local"][1, 2, 1] = float("nan")
    bench = make(lambda _: None, nan_anywhere, donor=donor, options={"layout": layout})
    bench.batch = batch
    found = bench.reduce()
    assert axes(found)["local.t"] == ((1,), (1,)) and found.axes["t"].guilty == ()


@pytest.mark.parametrize(
    ("layout", "complaint"), [({"global": "x y z"}, "no axis of .* can be cut"), ({"empty": "b t"}, "length 0")]
)
def test_a_batch_that_cannot_be_cut_is_refused(make, layout, complaint):
    bench = make(lambda batch: None, nan_anywhere, options={"layout": layout})
    bench.batch["empty"] = bench.donor["empty"] = torch.zeros(0, 3)
    with pytest.raises(BadInput, match=complaint):
        bench.reduce()


def test_progress_counts_up_and_sizes_go_down(make):
    seen = []
    make(pad(3, [5, 6, 7]), black_frame).reduce(on_progress=seen.append)
    assert [one.calls for one in seen] == list(range(1, len(seen) + 1))
    assert seen[0].kept == {"b": 4, "t": 8, "v": 4} and seen[-1].kept == {"b": 1, "t": 1, "v": 1}
    assert {one.phase for one in seen} == {"isolation", "search", "closing", "guilty", "final"}
