"""Which samples go bad, told without changing the step; and batches that ask many questions at once."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.layout import Layout
from reprokit.step.case import Case
from reprokit.step.evaluate import Session, evaluate
from reprokit.step.outcome import Status
from reprokit.step.rows import Watch, stacked

LAYOUT = Layout.parse({"x": "b v t d"})
B, V, T, D = 5, 2, 3, 4


def clips(seed=0, b=B):
    return {"x": torch.rand(b, V, T, D, generator=torch.Generator().manual_seed(seed))}


class Returns(nn.Module):
    """A module that returns what it is told to."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, _):
        return self.value


def watched(value, batch=None, **options):
    with Watch(LAYOUT, clips() if batch is None else batch, **options) as watch:
        for one in value if isinstance(value, list) else [value]:
            Returns(one)(None)
    return watch.bad


def bad(shape, *places, value=float("nan")):
    tensor = torch.zeros(shape)
    for place in places:
        tensor[place] = value
    return tensor


@pytest.mark.parametrize(
    ("shape", "place", "sample"),
    [
        ((B, 7), (3, 1), 3),
        ((B,), (2,), 2),
        ((B * V, 7), (V * 3 + 1, 0), 3),
        ((B * T, 7), (T * 4, 0), 4),
        ((B * V * T, 7), (V * T * 2 + 5, 6), 2),
        ((7, B, 9), (6, 4, 8), 4),
        ((B, B), (1, 3), 1),  # the leading one
    ],
)
def test_a_bad_value_is_traced_to_its_sample_through_flattened_axes(shape, place, sample):
    assert watched(bad(shape, place)) == (sample,)
    assert watched(bad(shape, place, value=-float("inf"))) == (sample,)


def test_axes_that_fit_no_sample_or_two_of_them_say_nothing():
    assert watched(bad((B * 7, 3), (0, 0))) is None  # seven is no length of the batch
    assert watched(bad((7, B, B), (0, 1, 2))) is None
    assert watched(bad((B, 7), *range(B))) is None  # all of them: nothing tells them apart
    assert watched(bad((B, 7))) is None
    assert watched(torch.tensor(float("nan"))) is None


def test_the_first_output_that_tells_samples_apart_decides_and_nan_comes_before_masks():
    spread = bad((B, 3), *range(B))
    assert watched([bad((B, 3), 4), spread, bad((B, 3), 0)]) == (4,)
    assert watched([spread, bad((B, 3), 2)]) == (2,)
    assert watched([bad((B, 3), 1, value=-float("inf")), bad((B, 3), 3)]) == (3,)
    assert watched([bad((B, 3), 1, value=float("inf")), spread]) == (1,)  # an overflow that a BatchNorm spread


def test_everywhere_takes_all_outputs_together_and_tells_when_samples_were_mixed():
    everywhere = lambda *tensors: watched(list(tensors), everywhere=True)
    spread = bad((B, 3), *range(B))
    assert everywhere(bad((B, 3), 1), bad((B, 4), 3)) == (1, 3)
    assert everywhere(bad((B, 3), 1), spread) == tuple(range(B))
    assert everywhere(bad((B, 3), 1, value=float("inf")), spread) == tuple(range(B))
    mask = bad((B, 3), *range(B), value=-float("inf"))  # a causal mask is in every sample, and no fault
    assert everywhere(mask, bad((B, 3), 2, value=float("inf"))) == (2,)
    assert everywhere(mask) is None


def test_the_batch_itself_is_looked_at_first_but_not_of_a_stack():
    batch = clips()
    batch["x"][2, 1, 0, 3] = float("nan")
    assert watched(bad((B, 3), 4), batch) == (2,)
    assert watched(bad((B, 3), 4), batch, everywhere=True) == (4,)


@dataclass
class Output:
    scores: torch.Tensor
    other: object = None


def odd_outputs():
    loop = []
    loop.append(loop)
    hidden = bad((B, 3), 3)
    return [
        None, 3, "text", object(), loop, Output, torch.zeros(0, 3), torch.zeros(B, 3).to_sparse(),
        torch.zeros(B, 3, dtype=torch.long),
        torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)], layout=torch.jagged),
        torch.zeros(B, 3, device="meta"), np.zeros(3), (i for i in range(3)), {"a": [hidden, None]},
    ]  # fmt: skip


def test_modules_may_return_anything():
    assert watched(odd_outputs()) == (3,)
    assert watched(Output(scores=bad((B, 3), 2))) == (2,)
    assert watched(bad((B, 3), 1).to(torch.complex64)) == (1,)
    assert watched(bad((B, 3), 1).to(torch.float8_e5m2)) == (1,)
    assert watched(bad((B, 3), 1).to(torch.bfloat16)) == (1,)


def test_what_lives_in_a_transform_is_left_there():
    layer = nn.Linear(3, 3)
    with Watch(LAYOUT, clips()) as watch:
        torch.vmap(layer)(bad((7, B, 3), (0, 1, 0)))
        layer(bad((B, 3), 2))
    assert watch.bad == (2,)


@pytest.mark.parametrize("batch", [{"x": torch.zeros(2, 2)}, {}, None, {"x": torch.zeros(1, V, T, D)}])
def test_a_batch_that_has_no_two_samples_is_watched_in_vain(batch):
    with Watch(LAYOUT, batch) as watch:
        nn.Linear(2, 2)(torch.full((2, 2), float("nan")))
    assert watch.bad is None


def test_watching_changes_nothing_and_keeps_nothing():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.rand(B, 3, 8, requires_grad=True)

    def step():
        torch.manual_seed(1)
        loss = layer(x).pow(2).mean()
        return (loss.detach(), *torch.autograd.grad(loss, [x, *layer.parameters()]), torch.rand(1))

    plain = step()
    with Watch(LAYOUT, clips()) as watch:
        seen = step()
        assert watch._worst and not any(one.requires_grad for one in watch._worst)
    assert all(map(torch.equal, plain, seen)) and watch.bad is None
    with Watch(LAYOUT, clips()), pytest.raises(ZeroDivisionError):
        raise ZeroDivisionError
    assert not torch.nn.modules.module._global_forward_hooks


def test_the_samples_are_in_the_outcome_of_a_case_also_behind_a_batchnorm(make_incident):
    incident = make_incident()
    case = Case(incident=incident.path)
    assert evaluate(Case(incident=incident.path, watch=True)).bad_rows == (2,)
    plain, seen = evaluate(case), evaluate(Case(incident=incident.path, watch=True))
    assert plain.bad_rows is None and plain.fingerprint == seen.fingerprint
    assert evaluate(Case(incident=incident.path, watch=True, keep={"b": (1, 2)})).bad_rows == (1,)
    assert evaluate(Case(incident=incident.path, watch=True, content="donor")).bad_rows is None


def test_a_step_that_raises_over_its_loss_still_tells_who(make_incident):
    raised = Signature(
        kind=Kind.EXCEPTION, where="forward", exception="ValueError", function="train.py:step", message="bad"
    )
    incident = make_incident(body="y = net[0](x + 0)\nif y.isnan().any(): raise ValueError('bad')", signature=raised)
    outcome = evaluate(Case(incident=incident.path, watch=True))
    assert outcome.status in (Status.FAIL, Status.OTHER) and outcome.bad_rows == (2,)


index_sets = lambda n: st.sets(st.integers(0, n - 1)).map(lambda some: tuple(sorted(some)))
cells = st.fixed_dictionaries({}, optional={a: index_sets(n) for a, n in {"b": B, "v": V, "t": T, "x.d": D}.items()})
kept = lambda n: st.sets(st.integers(0, n - 1), min_size=1).map(lambda some: tuple(sorted(some)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(cells, min_size=1, max_size=4),
    st.fixed_dictionaries({}, optional={"b": kept(B), "v": kept(V), "t": kept(T)}),
    st.sampled_from([1, 2, B, B + 2]),
)
def test_a_stack_is_each_part_healed_by_itself_one_after_the_other(asked, keep, donors):
    batch, donor = clips(), clips(seed=1, b=donors)
    stack = stacked(LAYOUT, batch, donor, keep, asked)["x"]
    parts = [LAYOUT.select(LAYOUT.heal(batch, donor, [cell]), keep)["x"] for cell in asked]
    assert torch.equal(stack, torch.cat(parts))


def test_a_stack_keeps_kinds_strides_and_what_has_no_samples():
    layout = Layout.parse({"x": "t b c h w", "names": "b", "ids": "b"})
    batch = {
        "x": torch.rand(3, 4, 2, 5, 5).transpose(3, 4),
        "names": list("abcd"),
        "ids": np.arange(4),
        "scale": torch.tensor(2.0),
    }
    donor = {"x": torch.rand(3, 2, 2, 5, 5), "names": ["p", "q"], "ids": np.array([7, 8]), "scale": torch.tensor(3.0)}
    found = stacked(layout, batch, donor, {"b": (1,)}, [{"b": ()}, {"b": (1,)}, {"b": (0,)}, {"b": (1,), "t": (2,)}])
    assert found["names"] == ["b", "q", "b", "b"] and found["ids"].tolist() == [1, 8, 1, 1]
    assert found["x"].shape == (3, 4, 2, 5, 5) and found["x"].stride(3) < found["x"].stride(4)
    assert torch.equal(found["x"][:, 0], batch["x"][:, 1]) and torch.equal(found["x"][:, 1], donor["x"][:, 1])
    assert torch.equal(found["x"][2, 3], donor["x"][2, 1]) and torch.equal(found["x"][1, 3], batch["x"][1, 1])
    assert found["scale"] == 2


@pytest.mark.parametrize(
    ("layout", "cell", "message"),
    [
        ({"x": "n d"}, {}, "no axis 'b'"),
        ({"x": "b d"}, {"b": (9,)}, "no indices"),
        ({"x": "b d"}, {"q": (0,)}, "no indices"),
        ({"x": "b d"}, {}, "heals 'w'"),
        ({"x": "b d", "w": "d"}, {"key": ("w",)}, "heals 'w'"),
        ({"x": "b t", "w": "t"}, {"t": (1,)}, "heals 'w'"),
    ],
)
def test_what_cannot_differ_between_parts_of_a_stack_is_refused(layout, cell, message):
    batch = {"x": torch.rand(3, 4), "w": torch.rand(4)}
    with pytest.raises(BadInput, match=message):
        stacked(Layout.parse(layout), batch, batch, {}, [cell])


def test_a_stacked_case_says_which_healings_heal(make_incident):
    incident = make_incident(body="net[1].eval()")
    stack = ({"b": ()}, {"b": (2,)}, {"x.d": (0,)}, {"x.d": (1,)})
    case = Case(incident=incident.path, keep={"b": (2,)}, stack=stack, watch=True, thorough=False)
    with Session(incident) as session:
        outcome = session.evaluate(case)
        assert outcome.status is Status.FAIL and outcome.bad_rows == (0, 2)
        impossible = Case(incident=incident.path, stack=({"q": (1,)},))
        assert session.evaluate(impossible).status is Status.INVALID
