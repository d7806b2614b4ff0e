"""What heals alone: also where what fails alone is not alone to blame."""

from dataclasses import replace

import pytest
import torch

from reprokit.failure import Kind, Signature
from reprokit.step.outcome import Outcome, Status

NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
LAYOUT = {"global": "b t h", "local": "b v t h", "sound": "b"}


def test_where_every_sample_lacks_it_each_of_them_heals_alone(make, healthy):
    """The step divides by how many samples have sound. One of them is kept, for it fails alone."""
    bench = make(
        lambda batch: batch.update(sound=torch.zeros(4)),
        lambda batch: None if batch["sound"].sum() else NAN,
        donor=healthy(seed=1) | {"sound": torch.ones(4)},
        options={"layout": LAYOUT},
    )
    axis = bench.reduce().axes["b"]
    assert (len(axis.kept), axis.guilty, axis.together) == (1, (0, 1, 2, 3), False)


def test_a_single_culprit_costs_no_question_to_the_whole_batch_for_each_of_the_others(make):
    def damage(batch):
        batch["global"][5, 2] = 0

    bench = make(damage, lambda batch: NAN if (batch["global"] == 0).any() else None, b=8)
    found = bench.reduce()
    assert {name: found.axes[name].guilty for name in ("b", "t")} == {"b": (5,), "t": (2,)}
    whole = [case for case, _ in bench.asked if not case.keep and len(case.heal) == 1 and case.heal[0]]
    assert len(whole) < 5  # one an axis, and one for groups


LABELS = {"global": "b t h", "local": "b v t h", "label": "b"}


@pytest.mark.parametrize("labels", [[0, 1, 2, 2], [0, 0, 0, 0]])
def test_what_fails_whatever_it_is_given_is_not_the_batchs_fault(make, labels):
    bench = make(
        lambda batch: batch.update(label=torch.tensor(labels)), lambda batch: NAN, options={"layout": LABELS}
    )
    bench.donor = None
    found = bench.reduce()
    cleared = any(labels)  # what is zero cannot be told from what has to be another number
    assert found.batch_guilty is (False if cleared else None)
    assert found.axes["b"].guilty == (() if cleared else None)


def test_content_made_from_the_batch_itself_clears_nothing(make):
    """The first step of all fails for a label that no class has: no donor, and what stands in for it has that label."""
    bench = make(
        lambda batch: batch.update(label=torch.tensor([0, 1, 9, 2])),
        lambda batch: NAN if (batch["label"] > 3).any() else None,
        options={"layout": LABELS},
    )
    bench.donor = None
    found = bench.reduce()
    assert found.batch_guilty is None and found.axes["b"].guilty is None
    assert found.axes["b"].kept == (2,) and "nobody knows" in found.notes[1]


def test_what_other_random_numbers_bring_too_seldom_is_reduced_with_the_captured_ones(make):
    """Each time from the captured state, and from one of fifty others: a replay says that it is reproducible."""

    def damage(batch):
        batch["global"][1] = 0

    bench = make(damage, lambda batch: NAN if (batch["global"] == 0).any() else None)
    plain = bench.evaluate

    def evaluate(case, isolation):
        seldom = case.rng != "captured" and case.rng % 50
        outcome = Outcome(status=Status.PASS) if seldom else plain(case, isolation)
        return replace(outcome, random=True)

    bench.evaluate = evaluate
    found = bench.reduce()
    assert (found.axes["b"].kept, found.axes["b"].guilty, found.rate) == ((1,), (1,), None)
    assert found.depends_on_rng and found.case.rng == "captured"
    assert any("holds for the captured ones alone" in note for note in found.notes)
