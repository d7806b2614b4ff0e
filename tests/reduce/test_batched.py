"""Answers of one forward pass are those of single questions, or there are none. Every question is really evaluated."""

from dataclasses import replace
from uuid import uuid4

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reprokit.failure import Kind, Signature
from reprokit.incident import Draft
from reprokit.layout import Layout
from reprokit.reduce.batched import ask_many, room
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Outcome, Status

B, T, D = 4, 12, 6
NAN = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
LAYOUT = {"x": "b t d", "y": "b t d"}

SCRIPT = """
import torch
from einops import rearrange, reduce
from torch import nn
from torch.nn import functional as F

import reprokit


class Standardise(nn.Module):
    def forward(self, x):  # a frame without contrast has no deviation: 0/0
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


class Log(nn.Module):
    def forward(self, x):
        return x.sum(-1, keepdim=True).log() + x


def build(config):
    torch.manual_seed(3)
    standardise, log = Standardise(), Log()
    layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=config["dropout"], batch_first=True)
    norm = nn.BatchNorm1d(6)
    head = nn.Linear(6, 3)

    def step(batch):
        x, y = batch["x"], batch["y"]
{body}

    net = nn.ModuleDict({{"a": standardise, "b": log, "c": layer, "d": norm, "e": head}})
    return reprokit.Harness(modules={{"net": net}}, optimizer=torch.optim.SGD(net.parameters(), lr=.1),
                            step=lambda batch: {{"loss": step(batch)}}, layout={layout!r})
"""

PER_SAMPLE = {
    "transformer": "return head(layer(standardise(x))).pow(2).mean()",
    "flattened": "return head(layer(standardise(rearrange(x, 'b t d -> (b t) 1 d')))).pow(2).mean()",
    "frames first": "return head(layer(standardise(rearrange(x, 'b t d -> t b d')).transpose(0, 1))).pow(2).mean()",
    "softmax over frames": "return (log(x).softmax(1) * head(x).sum(-1, keepdim=True)).sum()",
    "two branches": "return (head(standardise(x)) + head(log(y))).pow(2).mean()",
    "frozen norm": "norm.eval(); return norm(standardise(x).mean(1)).pow(2).mean()",
    "mask": "h = log(x).softmax(-1)\nm = nn.Identity()(torch.full((len(x), 12), -torch.inf))\n"
    "return (h.sum(-1) * m.exp()).sum() + h.mean()",
}
INTERACTING = {
    "batchnorm": "return norm(standardise(x).mean(1)).pow(2).mean()",
    "contrastive, in the loss": "z = head(x).mean(1)\ns = (z @ z.T) * (0 / x.std(-1)).mean(1)\n"
    "return F.cross_entropy(s, torch.arange(len(z)))",
    "contrastive, in a module": "z = standardise(x).mean(1)\nreturn nn.Identity()(z @ z.T).logsumexp(1).mean()",
    "only in the loss": "return head(x).pow(2).sum() + (0 / x.std(-1)).sum()",
    "mixup": "h = nn.Identity()((standardise(x) + standardise(x).flip(0)) / 2)\nreturn head(h).pow(2).mean()",
    "a fixed batch": "assert len(x) < 4\nreturn head(standardise(x)).pow(2).mean()",
}


def clips(seed):
    generator = torch.Generator().manual_seed(seed)
    return {"x": torch.rand(B, T, D, generator=generator) + 0.1, "y": torch.rand(B, T, D, generator=generator) + 0.1}


@pytest.fixture
def make(tmp_path, fill):
    """make(body, damage) -> Incident whose batch `damage` changed in place."""

    def incident(body, damage, *, dropout=0.0, signature=NAN, layout=LAYOUT):
        name = f"train{uuid4().hex}"
        source = tmp_path / name
        source.mkdir()
        text = SCRIPT.format(body="\n".join(f"        {line}" for line in body.split("\n")), layout=layout)
        (source / f"{name}.py").write_text(text)
        config = {"dropout": dropout}
        harness = load_entrypoint(f"{name}.py:build", source)(config)
        batch = clips(0)
        damage(batch)
        with Draft(tmp_path / "incidents") as draft:
            fill(draft, harness, config, batch, clips(1))
            draft.write_text(f"source/tree/{name}.py", text)
            return draft.publish(name, signature=signature, step=1, entrypoint=f"{name}.py:build", layout=layout)

    return incident


def flat(*places, entry="x"):
    """Frames without contrast."""

    def damage(batch):
        for sample, frame in places:
            batch[entry][sample, frame] = 0.5

    return damage


FRAMES = [{"t": (frame,)} for frame in range(T)]


class Asked:
    """Drives a generator of questions against a session, and counts."""

    def __init__(self, incident, sample=1, **case):
        self.session = Session(incident)
        self.base = Case(incident=incident.path, keep={"b": (sample,)}, thorough=False, **case)
        self.samples, self.calls = (sample,), []

    def many(self, cells, **options):
        options = {"kind": Kind.NONFINITE_LOSS, "samples": self.samples, "room": 64, **options}
        asking = ask_many(self.base, cells, **options)
        try:
            case = next(asking)
            while True:
                self.calls.append(case)
                case = asking.send(self.session.evaluate(case))
        except StopIteration as end:
            return end.value

    def singly(self, cells):
        outcomes = [self.session.evaluate(replace(self.base, heal=(*self.base.heal, cell))) for cell in cells]
        assert {outcome.status for outcome in outcomes} <= {Status.FAIL, Status.PASS}
        return [outcome.status is Status.FAIL for outcome in outcomes]


def whichever(body):
    """What brings each of these steps down: no contrast, or a sum below zero."""

    def damage(batch):
        flat((1, 5))(batch)
        if "log(x)" in body:
            batch["x"][1, 5] = -1.0

    return damage


@pytest.mark.parametrize("name", PER_SAMPLE)
def test_where_samples_do_not_interact_a_few_calls_answer_all(make, name):
    asked = Asked(make(PER_SAMPLE[name], whichever(PER_SAMPLE[name])))
    answers = asked.many(FRAMES)
    assert answers == asked.singly(FRAMES) == [frame != 5 for frame in range(T)]
    assert len(asked.calls) == 4 < T


@pytest.mark.parametrize("name", INTERACTING)
def test_where_samples_interact_or_only_the_loss_fails_there_is_no_answer(make, name):
    asked = Asked(make(INTERACTING[name], flat((1, 5))), heal=({"b": (2,)},))
    asked.base, asked.samples = replace(asked.base, keep={"b": (1, 2)}), (1, 2)  # BatchNorm wants two
    assert asked.singly(FRAMES) == [frame != 5 for frame in range(T)]
    assert asked.many(FRAMES) is None
    assert len(asked.calls) <= 4


def test_several_culprits_of_which_each_is_enough_are_all_told(make):
    asked = Asked(make(PER_SAMPLE["two branches"], lambda batch: (flat((1, 5))(batch), batch["y"][1, 7].fill_(-1))))
    cells = [*FRAMES, {"key": ("x",)}, {"key": ("y",)}, {"t": (5, 7)}, {"t": (5,), "key": ("x",)}]
    assert asked.many(cells) == asked.singly(cells)
    assert asked.many(FRAMES) == [True] * T  # none of them heals alone, and all of them together do
    assert asked.calls[-1].heal == (FRAMES[0],) and asked.calls[-2].heal == tuple(FRAMES)


def test_mere_shape_beside_the_essential_sample_is_no_hindrance(make):
    asked = Asked(make(PER_SAMPLE["transformer"], flat((1, 5), (3, 2))), heal=({"b": (0,)}, {"t": (2,)}))
    asked.base, asked.samples = replace(asked.base, keep={"b": (0, 1), "t": tuple(range(1, T))}), (0, 1)
    assert asked.many(FRAMES[1:]) == asked.singly(FRAMES[1:])


def test_dropout_draws_other_numbers_and_the_answers_stay(make):
    asked = Asked(make(PER_SAMPLE["transformer"], flat((1, 5)), dropout=0.5))
    assert asked.many(FRAMES) == asked.singly(FRAMES)


def test_a_small_room_takes_more_calls_and_gives_the_same(make):
    asked = Asked(make(PER_SAMPLE["transformer"], flat((1, 5), (1, 6))))
    cells = [{"t": (one, other)} for one in range(T) for other in range(one)]
    assert asked.many(cells, room=16) == asked.many(cells, room=99) == asked.singly(cells)
    assert all(len(case.stack) <= 16 for case in asked.calls[:6])


def test_what_is_not_worth_it_or_another_kind_asks_nothing(make):
    asked = Asked(make(PER_SAMPLE["transformer"], flat((1, 5))))
    for options in ({"room": 4}, {"kind": Kind.NONFINITE_GRAD}, {"known": dict.fromkeys(range(8), True)}):
        assert asked.many(FRAMES, **options) is None
    assert asked.many(FRAMES[:4]) is None and asked.many([]) is None and not asked.calls


def test_known_answers_must_agree(make):
    asked = Asked(make(PER_SAMPLE["transformer"], flat((1, 5))))
    assert asked.many(FRAMES, known={3: True, 5: False}) == asked.singly(FRAMES)
    asked.calls.clear()
    assert asked.many(FRAMES, known={3: False}) is None and len(asked.calls) == 1


def test_an_entry_without_samples_cannot_differ_between_repetitions(make):
    body = "return head(layer(standardise(x))).pow(2).mean()"
    damage = lambda batch: (flat((1, 5))(batch), batch.update(w=torch.zeros(T)))
    asked = Asked(make(body, damage, layout={**LAYOUT, "w": "t"}))
    assert asked.many(FRAMES) is None and len(asked.calls) == 1


def test_values_that_never_reach_the_loss_are_found_out_by_asking_once_more(make):
    """A NaN that is masked later looks as if healing its cause mattered, and the loss fails for another reason."""
    masked = "h = nn.Identity()(standardise(x))\nreturn h.nan_to_num().sum() + (0 / y[:, 3, 0]).sum()"
    asked = Asked(make(masked, lambda batch: (flat((1, 5))(batch), batch["y"][1, 3].fill_(0))))
    assert asked.singly(FRAMES) == [frame != 3 for frame in range(T)]
    assert asked.many(FRAMES) is None


def answered(base, cells, tell, **options):
    """Drive with outcomes made up: `tell(case, nth)`."""
    asking = ask_many(base, cells, kind=Kind.NONFINITE_LOSS, samples=(0,), room=64, **options)
    try:
        case, nth = next(asking), 0
        while True:
            case, nth = asking.send(tell(case, nth)), nth + 1
    except StopIteration as end:
        return end.value


FAIL = Outcome(status=Status.FAIL, signature=NAN)
OTHER_KIND = Signature(kind=Kind.EXCEPTION, where="forward", exception="ValueError", function="", message="")


@pytest.mark.parametrize(
    "wrong",
    [
        FAIL,  # no rows
        replace(FAIL, bad_rows=(2, 3)),  # what is not healed seems good
        replace(FAIL, bad_rows=(0, 1)),  # what is healed seems bad
        replace(FAIL, bad_rows=(0, 1, 2, 3, 4, 5)),
        Outcome(status=Status.PASS, bad_rows=(0,)),
        Outcome(status=Status.INVALID),
        Outcome(status=Status.INFRA),
        Outcome(status=Status.OTHER, bad_rows=(0,), signature=OTHER_KIND),
        Outcome(status=Status.FAIL, bad_rows=(0,), signature=OTHER_KIND),
    ],
)
def test_whatever_is_off_ends_without_an_answer(wrong, tmp_path):
    assert answered(Case(incident=tmp_path), FRAMES, lambda case, nth: wrong) is None


def told(case, culprit=5):
    """A model in which only this frame matters."""
    heals = lambda cell: culprit in cell.get("t", ()) or bool(cell.get("b"))
    if not case.stack:
        return Outcome(status=Status.PASS) if any(map(heals, case.heal)) else FAIL
    bad = tuple(place for place, cell in enumerate(case.stack) if not heals(cell))
    return replace(FAIL, bad_rows=bad) if bad else Outcome(status=Status.PASS)


@pytest.mark.parametrize("nth", range(4))
def test_each_check_can_refuse(nth, tmp_path):
    """A made-up model answers all questions but one, which comes out wrong."""
    base = Case(incident=tmp_path)
    assert answered(base, FRAMES, lambda case, _: told(case)) == [frame != 5 for frame in range(T)]

    def lies(case, n):
        right = told(case)
        if n != nth:
            return right
        if right.bad_rows:
            return replace(right, bad_rows=(0, *sorted(set(range(1, len(case.stack))) - set(right.bad_rows))))
        return FAIL if right.status is Status.PASS else Outcome(status=Status.PASS)

    assert answered(base, FRAMES, lambda case, n: lies(case, n)) is None or nth == 3


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_random_culprits_random_cells(make, data):
    name = data.draw(st.sampled_from(["transformer", "flattened", "two branches", "softmax over frames"]))
    frames = st.sets(st.integers(0, T - 1), min_size=1, max_size=3)
    x, y = data.draw(frames), data.draw(frames)

    def damage(batch):
        batch["x"][1, list(x)] = -1.0  # no contrast, and no logarithm
        batch["y"][1, list(y)] = -1.0

    asked = Asked(make(PER_SAMPLE[name], damage))
    entries = st.sampled_from([{}, {"key": ("x",)}, {"key": ("y",)}])
    cell = st.builds(lambda t, entry: {"t": tuple(sorted(t))} | entry, frames, entries)
    cells = [*FRAMES, *data.draw(st.lists(cell, max_size=8)), {"t": tuple(x)}, {"t": tuple(x | y)}]
    assert asked.many(cells) == asked.singly(cells)
    assert len(asked.calls) <= 5


def test_room_is_what_the_whole_batch_had():
    layout = Layout.parse({"x": "b v t d", "y": "b", "w": "t"})
    sizes = {"b": 8, "v": 2, "t": 16, "x.d": 3}
    assert room(layout, sizes, {}) == 1 and room(layout, sizes, {"b": (3,)}) == 8
    assert room(layout, sizes, {"b": (3,), "v": (0,), "t": (1,)}) == 8 * (2 * 16 * 3 + 1) // 4
    assert room(Layout.parse({"x": "t d"}), {"t": 3, "x.d": 2}, {}) == 0
