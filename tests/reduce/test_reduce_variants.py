"""Searches over variants: driven by fake answers, and by a real harness."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit.failure import Kind, Signature
from reprokit.incident import Draft
from reprokit.reduce.configs import smallest_difference
from reprokit.reduce.model import Model
from reprokit.reduce.variants import (
    Ablations,
    ablations,
    combined,
    knobs,
    lower,
    needed_modules,
    simpler_loop,
    trained_modules,
    twin_passes,
    unasked,
)
from reprokit.step.case import Case, Variant
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Outcome, Status

BASE = Case(incident=Path("incident"), keep={"b": (2,)}, thorough=False)


def failing(fails):
    """FAIL where `fails(variant)` says so; healthy content passes."""
    return lambda case: Status.FAIL if case.heal != ({},) and fails(case.variant) else Status.PASS


CONFIG = {"model": {"depth": 8, "width": 64, "mode": "causal"}, "lr": 0.1}


def test_knobs_go_down_from_the_lowest_and_the_one_that_saves_most_is_first():
    values = {"model.width": [128, 64, 32], "model.mode": ["full", "causal"], "model.depth": [1, 4, 8, 2], "none": [1]}
    assert [dict(variant.config) for variant in knobs(CONFIG, values)] == [
        {"model.depth": 1}, {"model.depth": 2}, {"model.depth": 4}, {"model.width": 32}, {"model.mode": "full"},
        {"none": 1},
    ]  # fmt: skip
    assert knobs(CONFIG, {"model.depth": [8, 9], "lr": []}) == []


@given(st.integers(1, 8), st.integers(1, 64))
def test_each_knob_ends_at_its_lowest_value_that_fails(answered, depth, width):
    values = {"model.depth": list(range(1, 8)), "model.width": [1, 2, 4, 8, 16, 32]}
    fails = failing(lambda v: v.config.get("model.depth", 8) >= depth and v.config.get("model.width", 64) >= width)
    found, asked = answered(lower(BASE, knobs(CONFIG, values)), fails)
    wanted = {"model.depth": depth, "model.width": min(w for w in (1, 2, 4, 8, 16, 32, 64) if w >= width)}
    assert dict(found.config) == {key: value for key, value in wanted.items() if value != {"model.depth": 8, "model.width": 64}[key]}  # noqa: E501
    assert len(asked) <= depth + 7 + 2 and all(case.keep == BASE.keep for case in asked)


def test_a_variant_under_which_healthy_content_fails_as_well_is_not_taken(answered):
    depth = knobs(CONFIG, {"model.depth": [1, 2]})
    broken = lambda case: Status.FAIL if case.heal != ({},) or case.variant.config["model.depth"] == 1 else Status.PASS
    assert answered(lower(BASE, depth), broken)[0].config == {"model.depth": 2}
    assert answered(lower(BASE, depth, unasked), broken)[0].config == {"model.depth": 1}
    for other in (Status.OTHER, Status.INVALID, Status.PASS):
        assert answered(lower(BASE, depth), lambda case, other=other: other)[0] == BASE.variant


def test_the_twin_is_the_same_case_with_healthy_content(answered):
    case = replace(BASE, heal=({"b": (1,)},), values={"x": "zero"}, variant=Variant(dtype="float64"))
    _, (twin,) = answered(twin_passes(case), lambda case: Status.PASS)
    assert twin == replace(case, heal=({},), values={})


def test_variants_combine_part_by_part():
    one = Variant(name="a", config={"x": 1, "y": 1}, modules={"m": "freeze"}, dtype="float32", env={"A": "1"})
    other = Variant(name="b", config={"y": 2}, modules={"m": "identity"}, flags={"threads": 1}, harness={"lr": 0})
    assert combined(one, other) == Variant(
        name="a + b", config={"x": 1, "y": 2}, modules={"m": "identity"}, dtype="float32", env={"A": "1"},
        flags={"threads": 1}, harness={"lr": 0},
    )  # fmt: skip
    assert combined(Variant(), one) == one == combined(one, Variant())


def test_the_loop_loses_what_it_does_and_nothing_else():
    harness = {"automatic_optimization": True, "autocast": "bf16", "clip_grad_norm": 1.0, "accumulate": 4}
    harness |= {"scaler": True}
    assert [dict(variant.harness) for variant in simpler_loop(harness)] == [
        {"autocast": None}, {"scaler": None}, {"clip_grad_norm": None}, {"accumulate": 1},
    ]  # fmt: skip
    assert [dict(variant.harness) for variant in simpler_loop(harness | {"automatic_optimization": False})] == [{"scaler": None}]  # noqa: E501
    assert simpler_loop({"automatic_optimization": True, "autocast": None, "clip_grad_norm": None, "accumulate": 1, "scaler": False}) == []  # noqa: E501


def model(depth=12):
    """Names and shapes of a small transformer beside a projector."""
    modules, parameters = ["encoder", "encoder.embed", "encoder.blocks"], {"encoder.embed.weight": (8, 4)}
    for i in range(depth):
        block = f"encoder.blocks.{i}"
        modules += [block, f"{block}.norm", f"{block}.mlp", f"{block}.mlp.0", f"{block}.mlp.1", f"{block}.mlp.2"]
        parameters |= {f"{block}.norm.weight": (8,), f"{block}.mlp.0.weight": (16, 8), f"{block}.mlp.2.weight": (8, 16)}
    modules += ["projector", "projector.0", "projector.1", "projector.2"]
    return modules, parameters | {"projector.0.weight": (8, 8), "projector.2.weight": (8, 8)}


def test_repeated_blocks_are_one_ordered_set_and_leaves_are_what_an_input_can_pass():
    found = ablations(*model(3))
    assert found.blocks == (("projector.0", "projector.2"), tuple(f"encoder.blocks.{i}" for i in range(3)))
    assert "encoder.embed" not in found.leaves and "encoder.blocks.0.mlp.0" not in found.leaves
    assert {"encoder.blocks.0.norm", "encoder.blocks.0.mlp.1", "projector.1", "projector.2"} <= set(found.leaves)
    assert found.trained[0] == "encoder.embed" and "projector.1" not in found.trained


@given(st.sets(st.integers(0, 11), min_size=1, max_size=3))
def test_the_blocks_that_a_failure_needs_are_found_by_bisection(answered, blocks):
    needed = {f"encoder.blocks.{i}" for i in blocks} | {f"encoder.blocks.{min(blocks)}.norm", "encoder"}
    outer = needed | {f"encoder.blocks.{min(blocks)}.mlp"}
    fails = failing(lambda v: not outer & {name for name, how in v.modules.items() if how == "identity"})
    found, asked = answered(needed_modules(BASE, ablations(*model())), fails)
    gone = set(found.modules)
    assert not needed & gone and {f"encoder.blocks.{i}" for i in range(12) if i not in blocks} <= gone
    kept = {f"encoder.blocks.{i}" for i in blocks}
    left = [leaf for leaf in ablations(*model()).leaves if leaf.startswith(tuple(f"{one}." for one in kept))]
    assert set(left) - gone == {f"encoder.blocks.{min(blocks)}.norm"}
    assert len(asked) < (20 if len(blocks) == 1 else 60)


def test_where_no_module_is_needed_two_questions_a_set_say_so(answered):
    found, asked = answered(needed_modules(BASE, ablations(*model(12))), failing(lambda v: True))
    assert len(found.modules) == 12 + 2 + 1 and len(asked) == 3 * 2


def test_modules_whose_absence_breaks_healthy_content_too_are_needed(answered):
    """Without block 0 or 1 the step fails whatever is in the batch, and block 3 is needed for the failure."""
    names = tuple(f"blocks.{i}" for i in range(4))

    def status(case):
        gone = set(case.variant.modules)
        if gone & {"blocks.0", "blocks.1"}:
            return Status.FAIL
        return Status.FAIL if case.heal != ({},) and "blocks.3" not in gone else Status.PASS

    found, _ = answered(needed_modules(BASE, Ablations(blocks=(names,), leaves=(), trained=())), status)
    assert found.modules == {"blocks.2": "identity"}


def test_what_must_be_trained_is_what_is_not_frozen(answered):
    found = Ablations(blocks=(), leaves=(), trained=("a", "b", "c"))
    base = replace(BASE, variant=Variant(modules={"b": "identity"}))
    variant, _ = answered(trained_modules(base, found), failing(lambda v: v.modules.get("c") != "freeze"))
    assert variant.modules == {"b": "identity", "a": "freeze"}


SCRIPT = """
import torch
from torch import nn
import reprokit


class Block(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.norm, self.linear, self.scale = nn.LayerNorm(6), nn.Linear(6, 6), scale

    def forward(self, x):
        return x + self.linear(self.norm(x)).tanh() * torch.exp(self.scale * x)


def build(config):
    torch.manual_seed(0)
    scales = [config["scale"] if i == 2 else 0.0 for i in range(config["depth"])]
    blocks, head = nn.ModuleList(map(Block, scales)), nn.Linear(6, 1)

    def step(batch):
        x = batch["x"] if "cap" not in config else batch["x"].clamp(max=config["cap"])
        for block in blocks:
            x = block(x)
        return {"loss": head(x).pow(2).mean()}

    modules = {"blocks": blocks, "head": head}
    params = [*blocks.parameters(), *head.parameters()]
    return reprokit.Harness(modules=modules, optimizer=torch.optim.SGD(params, lr=config["lr"]), step=step,
                            layout={"x": "b d"}, clip_grad_norm=1.0, knobs={"depth": [1, 2, 3, 4, 5]})
"""


@pytest.fixture
def capture(tmp_path, fill):
    return lambda script: _captured(tmp_path, fill, script)


@pytest.fixture
def incident(capture):
    return capture(SCRIPT)


def _captured(tmp_path, fill, script):
    """exp(scale * x) of block 2 overflows for a sample of 90 and more."""
    name = f"train_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(script)
    config = {"depth": 6, "scale": 1.0, "lr": 0.1}
    harness = load_entrypoint(f"{name}.py:build", tmp_path)(config)
    donor = {"x": torch.rand(4, 6, generator=torch.Generator().manual_seed(1))}
    batch = {"x": donor["x"] + torch.tensor([0.0, 95.0, 0.0, 0.0])[:, None]}
    with Draft(tmp_path / "incidents") as draft:
        fill(draft, harness, config, batch, donor)
        draft.write_text(f"source/tree/{name}.py", script)
        return draft.publish("incident", signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss"), step=1,
                             entrypoint=f"{name}.py:build", layout={"x": "b d"})  # fmt: skip


def test_a_real_harness_is_lowered_ablated_and_compared(answered, incident):
    base = Case(incident=incident.path, keep={"b": (1,)}, thorough=False)
    with Session(incident) as session:
        ask = session.evaluate
        assert ask(base).status is Status.FAIL
        about = session.describe(Variant())
        found, _ = answered(lower(base, knobs(incident.config(), about["knobs"])), ask)
        assert found.config == {"depth": 3}
        base = replace(base, variant=found)
        found, _ = answered(lower(base, simpler_loop(about["harness"])), ask)
        assert found.harness == {"clip_grad_norm": None}
        about = session.describe(found)
        found, _ = answered(needed_modules(base, ablations(about["modules"], about["parameters"])), ask)
        assert set(found.modules) == {"blocks.0", "blocks.1", "blocks.2.norm", "blocks.2.linear"}
        assert ask(replace(base, variant=found)).status is Status.FAIL
        plain = Case(incident=incident.path, thorough=False)
        baseline = {"depth": 5, "scale": 0.1, "cap": 1e6, "lr": 0.01}
        kept, _ = answered(smallest_difference(plain, incident.config(), baseline), ask)
        assert [one.to_json() for one in kept] == [{"key": "scale", "here": 1.0, "baseline": 0.1}]
        kept, _ = answered(smallest_difference(plain, incident.config(), baseline | {"scale": 1.0, "cap": 9.0}), ask)
        assert [one.to_json() for one in kept] == [{"key": "cap", "baseline": 9.0}]
        kept, _ = answered(smallest_difference(replace(plain, variant=Variant(config={"depth": 3})), incident.config(), {"depth": 2, "scale": 1.0, "lr": 0.1}), ask)  # noqa: E501
        assert [one.to_json() for one in kept] == [{"key": "depth", "here": 3, "baseline": 2}]


def test_a_module_that_the_step_never_runs_is_no_finding(answered, capture):
    """`spare` and what is in it can be anything: it is left out, as an identity and frozen."""
    spare = '"head": head, "spare": nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3))}'
    incident = capture(SCRIPT.replace('"head": head}', spare))
    base = Case(incident=incident.path, keep={"b": (1,)}, thorough=False)
    with Session(incident) as session:
        model = Model.of(session.describe(Variant()), incident.config(), modules=True)
        assert "spare.0" in model.modules.leaves and "spare.1" in model.modules.trained
        model = replace(model, knobs=(), loop=())
        found, _ = answered(model.simplest(base, twin_passes), session.evaluate)
        unused = {"spare.0": "identity", "spare.1": "freeze"}
        seen = session.evaluate(replace(base, variant=replace(found, modules={**found.modules, **unused})))
    assert not unused.keys() & found.modules.keys() and {"blocks.0", "head"} <= found.modules.keys()
    assert seen.status is Status.FAIL and seen.unused == ("spare.0", "spare.1")
    assert Outcome.from_json(seen.to_json()).unused == seen.unused
