"""What rows say of what was counted and measured."""

import re
from types import SimpleNamespace

import pytest
import torch

from reprokit.smoke.gates import resources
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.overfit import Overfit
from reprokit.smoke.gates.resources import Resources
from reprokit.smoke.gates.shapes import Shapes
from reprokit.smoke.words import counted

from .small import plain, rows, subject

BATCH, APART = "time of a batch", "outputs of net tell samples apart"


@pytest.mark.parametrize(("count", "said"), [(0, "0 laps"), (1, "1 lap"), (2, "2 laps"), (1200, "1,200 laps")])
def test_one_of_a_kind_has_no_plural(count, said):
    assert counted(count, "lap") == said


@pytest.mark.parametrize("gate", [Shapes(), Numbers(), Gradients(), Resources()], ids=lambda gate: gate.name)
def test_no_row_of_a_small_model_and_one_batch_has_a_plural_of_one(gate):
    asked = plain(lambda net, x: net[0].weight.square().mean())
    for one in rows(gate, asked).values():
        assert not re.search(r"\b1 (?!is\b|has\b)\w+s\b", f"{one.expected}; {one.observed}"), one


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([(4, 65)], "65 with [CLS], of 4 clips"),
        ([(1, 65)], "65 with [CLS], of 1 clip"),
        ([(4, 65), (4, 17), (4, 17), (4, 17)], "65 and 17 (3 times) with [CLS], of 4 clips each"),
        ([(2, 158), (16, 30)], "158 and 30 with [CLS], of 2, 16 clips"),
    ],
)
def test_equal_calls_of_an_encoder_are_told_once(monkeypatch, calls, said):
    monkeypatch.setattr(resources, "_tokens", lambda harness, batch: {"encoder": calls})
    assert rows(Resources(), subject())["tokens of encoder"].observed == said


@pytest.mark.parametrize(
    ("fine", "above", "said"),
    [
        (1_000_000, 24_600, "500 MB on the host, under 1 MB above"),
        (1_000_000, 2_460_000, "500 MB on the host, 2 MB above"),
        (1, 24_600, "500 MB on the host, 24.6 kB above"),
        (1, 0, "500 MB on the host, 0 B above"),
    ],
)
def test_memory_is_told_as_finely_as_it_is_known(fine, above, said):
    peak = SimpleNamespace(most=500_123_456, before=500_123_456 - above, where="the host", fine=fine)
    found = Resources()._peak(SimpleNamespace(device=torch.device("cpu")), peak)
    assert found.observed.startswith(said)
    assert found.measured["peak_bytes"] == 500_123_456


@pytest.mark.parametrize(
    ("step", "batch", "waits"),
    [(0.0012, 0.00128, False), (0.0012, 0.004, False), (1.0, 1.1, False), (1.0, 1.3, True), (0.001, 0.01, True)],
)
def test_that_training_waits_is_told_where_it_matters(monkeypatch, step, batch, waits):
    monkeypatch.setattr(resources, "_seconds", lambda harness, given: step)
    monkeypatch.setattr(resources, "fetch", lambda loader, after: resources.Fetched(seconds=[batch] * 3))
    found = rows(Resources(), plain(lambda net, x: net(x).square().mean(), loader=[1]))[BATCH]
    assert ("training waits" in found.observed) is waits


@pytest.mark.parametrize(("batch", "said"), [(0.0000012, "under 0.01 ms,"), (0.0000123, "0.0123 ms,"), (2.5, "2.5 s,")])
def test_a_time_that_a_clock_hardly_sees_has_no_digits(monkeypatch, batch, said):
    monkeypatch.setattr(resources, "fetch", lambda loader, after: resources.Fetched(seconds=[batch] * 3))
    asked = plain(lambda net, x: net(x).square().mean(), loader=[1])
    assert rows(Resources(), asked)[BATCH].observed.startswith(said)


@pytest.mark.parametrize(("samples", "judged"), [(4, False), (8, True)])
def test_dimensions_of_few_samples_are_said_not_to_be_judged(samples, judged):
    asked = plain(lambda net, x: (net(x) - x).square().mean())
    asked.batches[0]["x"] = asked.batches[0]["x"][:samples]
    found = rows(Overfit(), asked)[APART]
    assert ("dimensions" in found.expected) is judged
    assert ("not judged: 4 samples of 8 at least" in found.observed) is not judged
