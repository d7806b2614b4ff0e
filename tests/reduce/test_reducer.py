import random
from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.reduce.isolation import NotReproduced, Unfinished
from reprokit.reduce.journal import Journal
from reprokit.reduce.model import Model
from reprokit.reduce.oracle import Limits
from reprokit.reduce.reducer import reduce
from reprokit.report import reductions
from reprokit.step.case import Case, Variant
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
    return {name: (axis.kept, axis.guilty) for name, axis in found.axes.items() if name != "key"}


def check_one_minimal(bench, found):
    """By brute force: no single element can be dropped unless healthy content fails or raises in that shape, too."""
    assert found.one_minimal and bench.status(found.case) is Status.FAIL
    for axis, described in ((name, found.axes[name]) for name in axes(found)):
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
    assert found.calls <= 4 + questions + 5 * 5


def test_batchnorm_insists_on_two_samples_and_the_second_is_shape_only(make):
    bench = make(poke("global", 3, 1), two_or_value_error)
    found = bench.reduce()
    b = found.axes["b"]
    assert b.kept == (2, 3) and b.healed == (2,) and b.guilty == (3,)
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
    assert all(axis.guilty is None for axis in found.axes.values())  # nothing healthy can stand in for the batch
    assert "shape" in found.notes[0] and found.batch_guilty is True
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


def test_where_every_view_is_bad_the_axis_tells_nothing(make):
    def damage(batch):
        batch["local"][2, :, 4] = float("nan")

    found = make(damage, nan_anywhere).reduce()
    assert found.axes["v"].kept == (0,) and found.axes["v"].guilty == ()


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


def test_blocks_in_which_lengths_are_taken_leave_one_block(make):
    """A hop of sixteen frames is silent: no window that ends inside of a hop can be asked for."""

    def look(batch):
        hops = batch["global"][..., 0].unflatten(1, (-1, 16))
        return NAN if (hops.pow(2).sum(2) < 0.01).any() else None

    def silent(batch):
        batch["global"][1, 32:48, 0] *= 0.01

    axis, hop = make(silent, look, t=64).reduce().axes["t"], tuple(range(32, 48))
    assert (axis.kept, axis.healed, axis.guilty, axis.together) == (hop, (), hop, False)  # a sound in any frame heals


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
    assert found.batch_guilty is False and found.isolation == "restore"  # it failed in a fresh process, too
    assert all(len(axis.kept) == 1 and not axis.guilty for axis in found.axes.values())
    assert "nothing in the batch is to blame" in found.notes[0]


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
    with pytest.raises(NotReproduced, match=r"does not fail here \(0 of 23 runs") as refusal:
        make(lambda batch: None, nan_anywhere).reduce()
    assert refusal.value.exit_code == 11 and "\n" not in str(refusal.value)


def test_a_case_that_fails_for_another_reason_names_both(make):
    def look(batch):
        raise KeyError("pixels")

    with pytest.raises(NotReproduced, match=r"captured nonfinite_loss at loss, now exception at forward \(KeyError"):
        make(lambda batch: None, look).reduce()


def with_baseline(bench, look):
    """The same, with a config that comes to something else."""
    plain, here = bench.evaluate, bench.look

    def evaluate(case, isolation):
        bench.look = here if case.variant == Variant() else look
        return plain(case, isolation)

    bench.evaluate = evaluate
    return Model(config={"depth": 2}, baseline={"depth": 1})


@pytest.mark.parametrize(("look", "says"), [(nan_anywhere, "fails with its config as well"), (None, "own config")])
def test_a_baseline_that_tells_nothing_is_refused_before_the_search(make, look, says):
    bench = make(poke("global", 1, 3), nan_anywhere)
    model = with_baseline(bench, look) if look else Model(config={"depth": 2}, baseline={"depth": 2})
    with pytest.raises(BadInput, match=says):
        bench.reduce(model=model)
    assert len(bench.asked) <= 4 and not any(case.keep for case, _ in bench.asked)


def test_a_baseline_that_cannot_run_the_reduced_case_costs_a_note_and_not_the_reduction(make):
    def look(batch):
        if len(batch["global"]) < 2:
            raise RuntimeError("this model wants two samples")

    bench = make(poke("global", 1, 3), nan_anywhere)
    found = bench.reduce(model=with_baseline(bench, look))
    assert axes(found)["b"] == ((1,), (1,)) and found.complete and found.config is None
    assert ["two samples" in note for note in found.notes if "baseline" in note] == [True]


@pytest.mark.parametrize(("calls", "failed"), [(1, 1), (2, 1)])
def test_a_budget_holds_before_it_is_clear_what_an_evaluation_takes(make, calls, failed):
    bench = make(poke("global", 1, 3), nan_anywhere)
    with pytest.raises(Unfinished, match=f"after {calls} evaluations? .{failed} failed") as end:
        bench.reduce(limits=Limits(calls=calls))
    assert len(bench.asked) == calls and end.value.exit_code == 12 and "\n" not in str(end.value)


def test_who_stops_before_it_is_clear_is_heard_at_once_also_where_it_comes_and_goes(make):
    bench = make(poke("global", 1, 3), sometimes(nan_anywhere, 0.1))
    with pytest.raises(Unfinished, match="after 7 evaluations"):
        bench.reduce(limits=Limits(stop=lambda: len(bench.asked) >= 7))
    assert len(bench.asked) == 7


def sometimes(look, rate, seed=0):
    """`look`, seen in a share of the evaluations only."""
    dice = random.Random(seed)
    return lambda batch: look(batch) if dice.random() < rate else None


def test_a_failure_that_comes_and_goes_is_reduced_with_its_rates(make):
    bench = make(poke("global", 2, 3), sometimes(nan_anywhere, 0.6))
    found = bench.reduce()
    assert axes(found)["b"] == ((2,), (2,)) and axes(found)["t"] == ((3,), (3,))
    assert 0.3 < found.rate["case"]["rate"] < 0.9 and found.rate["donor"]["fail"] == 0 and not found.depends_on_rng


@pytest.mark.parametrize(
    "seed",
    [
        0,  # passes lightly at first, and then two fresh processes agree that it fails
        39,  # fails each time that the reduced case is run twice again
        82,  # the same, but for the last run, to its end
    ],
)
def test_what_agrees_by_chance_is_neither_believed_nor_asked_in_a_process_each(make, seed):
    """It raises before the first loss, so no two of its runs have numbers in common that would say more."""
    error, dice = Signature(kind=Kind.EXCEPTION, where="forward", exception="ZeroDivisionError"), random.Random(seed)

    def look(batch):
        return error if batch["global"].isnan().any() and dice.random() < 0.5 else None

    options = {"signature": error, "fingerprint": lambda batch: {}}
    bench = make(poke("global", 2), look, options=options, v=1, t=2)
    found = bench.reduce()
    assert found.rate and found.isolation != "process" and axes(found)["b"] == ((2,), (2,))
    assert sum(isolation == "process" for _, isolation in bench.asked) < 20


def test_one_that_fails_once_in_a_while_is_refused_with_its_counts(make):
    seen = []

    def look(batch):
        seen.append(None)
        return NAN if len(seen) == 2 else None

    with pytest.raises(NotReproduced, match=r"too seldom to be reduced \(1 of \d+ runs failed"):
        make(poke("global", 2, 3), look).reduce()


def test_what_depends_on_random_numbers_is_asked_over_several_states(make):
    """A mask that loses the only good frame of sample 1 for half of all states, and shifts when samples are cut."""

    def random_mask(bench, case):
        generator = random.Random(str(case.rng) + str(sorted(case.keep.items())))
        draw = generator.random()
        return lambda batch: nan_anywhere(batch) if draw < 0.5 or (not case.keep and case.rng == "captured") else None

    bench = make(poke("global", 1), nan_anywhere)
    plain = bench.evaluate

    def evaluate(case, isolation):
        bench.look = random_mask(bench, case)
        return replace(plain(case, isolation), random=True)

    bench.evaluate = evaluate
    found = bench.reduce()
    assert found.depends_on_rng and axes(found)["b"] == ((1,), (1,)) and found.axes["key"].guilty == ("global",)
    assert evaluate(found.case, "restore").status is Status.FAIL


def test_two_independent_pairs_are_two_groups(make):
    def repeated(batch):
        rows = batch["global"].flatten(1)
        same = (rows[:, None] == rows[None]).all(-1).sum() > len(rows)
        return NAN if same else None

    def damage(batch):
        batch["global"][1] = batch["global"][0]
        batch["global"][3] = batch["global"][2]

    found = make(damage, repeated).reduce()
    assert sorted(group["b"] for group in found.groups) == [(0, 1), (2, 3)]
    assert len(found.axes["b"].guilty) == 2 and found.axes["b"].together


def test_a_flat_patch_is_a_region_and_guilty(make):
    """Per-patch standardisation of blocks of two."""

    def flat(batch):
        patches = batch["global"].unflatten(-1, (-1, 2))
        return NAN if (patches.std(-1) == 0).any() else None

    def damage(batch):
        batch["global"][2, 5, 2:4] = 0.5

    found = make(damage, flat, h=4).reduce()
    assert found.regions == ({"entry": "global", "b": [2], "t": [5], "h": [2, 3], "guilty": True},)


@pytest.mark.parametrize("entries", [("global",), ("global", "local")])
def test_where_text_alone_decides_no_numbers_are_said_to_be_needed(make, healthy, entries):
    def name(batch, paths="abxd"):
        for gone in set(batch) - set(entries):
            del batch[gone]
        batch["path"] = [f"{path}.mp4" for path in paths]

    donor = healthy(seed=1)
    name(donor, "efgh")
    axes_of = {"global": "b t h", "local": "b v t h"}
    layout = {entry: axes_of[entry] for entry in entries} | {"path": "b"}
    broken = lambda batch: NAN if "x.mp4" in batch["path"] else None
    found = make(name, broken, donor=donor, options={"layout": layout}).reduce()
    assert (found.axes["b"].kept, found.axes["b"].guilty) == ((2,), (2,))
    assert found.axes["key"].healed == entries and found.axes["key"].guilty == ("path",)
    assert not found.regions and not found.case.values


def test_values_that_say_less_are_taken_where_healthy_ones_still_pass(make):
    def too_large(batch):
        return NAN if (batch["global"] > 100).any() else None

    found = make(poke("global", 1, 2), lambda batch: nan_anywhere(batch) or too_large(batch)).reduce()
    assert found.case.values == {"global": "special"}


def test_any_number_of_workers_comes_to_the_same_result(make):
    bench = make(pad(3, [5, 6, 7]), black_frame)
    alone = bench.reduce()
    several = reduce(bench.incident, [bench.evaluate] * 3)
    assert several.to_json() | {"seconds": 0} == alone.to_json() | {"seconds": 0}
    assert several.certificate["tests"] == alone.certificate["tests"] and several.certificate["ahead"] > 0


class Killed(BaseException):
    """Nothing catches it, as nothing survives kill -9."""


@pytest.mark.parametrize("workers", [1, 2])
def test_one_that_was_killed_goes_on_to_the_identical_result(make, tmp_path, workers):
    bench = make(pad(3, [5, 6, 7]), black_frame)
    whole = bench.reduce()
    for left in range(1, whole.calls, 4):
        path = tmp_path / f"{workers}-{left}.jsonl"
        budget = iter(range(left))

        def evaluate(case, isolation, budget=budget):
            if next(budget, None) is None:
                raise Killed
            return bench.evaluate(case, isolation)

        with pytest.raises(Killed), Journal.open(path, {"incident": "1"}) as journal:
            reduce(bench.incident, [evaluate] * workers, journal=journal)
        bench.asked.clear()
        with Journal.open(path, {"incident": "1"}) as journal:
            again = reduce(bench.incident, bench.evaluate, journal=journal)
        assert again.to_json() | {"seconds": 0} == whole.to_json() | {"seconds": 0}
        assert workers > 1 or len(bench.asked) <= whole.calls - left + 1


def test_a_budget_keeps_the_best_so_far(make):
    bench = make(pad(3, [5, 6, 7]), black_frame)
    calls = bench.reduce().calls
    previous = None
    for budget in range(3, calls + 1):  # the first three settle what an evaluation takes
        found = bench.reduce(limits=Limits(calls=budget))
        assert found.calls <= budget + 1 and bench.status(found.case) is Status.FAIL
        size = sum(len(kept) for kept, _ in axes(found).values())
        assert previous is None or size <= previous
        previous = size
    with pytest.raises(BadInput, match="budget of 0"):
        bench.reduce(limits=Limits(calls=0))


def test_what_was_not_asked_is_not_called_innocent(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere)
    part, whole = bench.reduce(limits=Limits(calls=8)).to_json(), bench.reduce().to_json()
    assert not part["complete"] and {axis["guilty"] for axis in part["axes"].values()} == {None}
    assert all("guilty not known yet" in line for line in reductions.lines(part)[: len(part["axes"])])
    assert whole["axes"]["v"]["guilty"] == [2] and reductions.blamed(whole["axes"]["v"]) == "2"
    cleared = make(lambda batch: None, lambda batch: NAN).reduce().to_json()
    assert all(axis["guilty"] == [] for axis in cleared["axes"].values()) and cleared["batch_guilty"] is False


def test_nothing_is_asked_twice_and_the_result_is_the_same_each_time(make):
    bench = make(pad(2, [1, 2]), black_frame)
    first = bench.reduce()
    repeats = first.certificate["spent"]["confirm"]["calls"] + 1
    searched = [case for case, _ in bench.asked[3:-repeats]]
    assert len(searched) == len({repr(case) for case in searched})
    second = bench.reduce()
    assert first.to_json() | {"seconds": 0} == second.to_json() | {"seconds": 0}


def test_without_a_donor_smooth_content_is_taken_for_healthy(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere)
    bench.donor = None
    found = bench.reduce()
    assert {name: kept for name, (kept, _) in axes(found).items()} == {"b": (1,), "v": (2,), "t": (6,)}
    assert found.batch_guilty is True and found.donor == "generated" and "no donor" in found.notes[0]


def test_a_donor_that_does_not_fit_the_layout_is_no_donor(make):
    bench = make(poke("local", 1, 2, 6), nan_anywhere, donor={"global": torch.rand(4, 8, 4)})
    found = bench.reduce()
    assert found.axes["b"].kept == (1,) and "the donor was not used" in found.notes[0]


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
    assert [one.phase for one in seen if one.phase in ("isolation", "guilty")]
    assert seen[0].phase == "isolation" and seen[-1].phase == "final"
