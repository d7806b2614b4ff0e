"""What training made is put where it fits, what the config makes stays as the config makes it."""

import copy

import pytest
import torch
from torch import nn

from reprokit.harness import Harness, put_state, take_state
from reprokit.step.refit import refit


class Blocks(nn.Module):
    def __init__(self, depth, width, scale):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width)) for _ in range(depth)])
        self.register_buffer("scale", torch.full((1,), scale))

    def forward(self, x):
        return sum(block(x).mean() for block in self.blocks) * self.scale


CONFIG = {"depth": 3, "width": 5, "scale": 1.0, "lr": 0.1, "decay": 0.0, "amsgrad": False, "frozen": False,
          "schedule": False, "seed": 0, "optimizer": "AdamW"}  # fmt: skip


def build(**changes):
    config = CONFIG | changes
    torch.manual_seed(config["seed"])
    net = Blocks(config["depth"], config["width"], config["scale"])
    net.blocks[0].requires_grad_(not config["frozen"])
    settings = {"weight_decay": config["decay"]}
    settings |= {"amsgrad": config["amsgrad"]} if config["optimizer"] == "AdamW" else {"momentum": 0.9}
    optimizer = getattr(torch.optim, config["optimizer"])(net.parameters(), lr=config["lr"], **settings)
    extra = {"ema": copy.deepcopy(net)}
    if config["schedule"]:
        extra["schedule"] = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 4))
    step = lambda batch: {"loss": net(batch)}
    return Harness(modules={"net": net}, optimizer=optimizer, step=step, layout="b d", extra_state=extra)


def trained(steps=2, **config):
    """What is captured after some steps; the last leaves its gradients."""
    harness = build(**config)
    torch.manual_seed(5)
    for i in range(steps + 1):
        harness.step(torch.randn(6, 4))["loss"].backward()
        if i < steps:
            harness.optimizer.step()
            harness.optimizer.zero_grad()
            harness.extra_state["ema"].load_state_dict(harness.modules["net"].state_dict())
            if "schedule" in harness.extra_state:
                harness.extra_state["schedule"].step()
    return take_state(harness)


def put(changes, captured, **config):
    """The captured state in a harness of the changed config; returns what stays as built, too."""
    harness = build(**config | changes)
    state, left = refit(take_state(harness), captured, take_state(build(**config)))
    put_state(harness, state)
    found = take_state(harness)
    harness.step(torch.randn(6, 4))["loss"].backward()
    harness.optimizer.step()  # its memory is one that it can read
    return found, left


def same(one, other):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(same(one[key], other[key]) for key in one) if isinstance(one, dict) else one == other  # noqa: E501


def test_the_same_config_gets_the_state_as_it_was_captured():
    for config in ({}, {"schedule": True}, {"amsgrad": True, "frozen": True}, {"optimizer": "SGD"}):
        captured = trained(**config)
        found, left = put({}, captured, **config)
        assert left == [] and all(same(found[part], captured[part]) for part in captured)


def test_blocks_that_are_left_get_what_training_made_of_them():
    captured = trained()
    found, left = put({"depth": 2}, captured)
    assert left == []
    for part in ("parameters", "buffers", "gradients", "training"):
        assert len(found[part]) < len(captured[part])
        assert all(same(found[part][name], captured[part][name]) for name in found[part])
    memory = found["optimizers"]["optimizer"]["state"]
    assert len(memory) == 8 and same(memory["net.blocks.1.0.weight"], captured["optimizers"]["optimizer"]["state"]["net.blocks.1.0.weight"])  # noqa: E501
    assert same(found["extra"]["ema"]["blocks.0.0.weight"], captured["extra"]["ema"]["blocks.0.0.weight"])


def test_what_has_another_shape_or_is_new_stays_as_built_and_is_named():
    captured = trained()
    found, left = put({"width": 7}, captured)
    assert same(found["parameters"], take_state(build(width=7))["parameters"])
    assert "parameters.net.blocks.0.0.weight" in left and "extra.ema.blocks.0.0.weight" in left
    assert found["optimizers"]["optimizer"]["state"] == {} and found["gradients"] == {}
    assert found["buffers"]["net.blocks.0.1.num_batches_tracked"] == 3
    found, left = put({"depth": 4}, captured)
    assert {name.split(".")[3] for name in left if name.startswith("parameters")} == {"3"}
    assert "net.blocks.3.0.weight" not in found["optimizers"]["optimizer"]["state"]


@pytest.mark.parametrize("schedule", [False, True])
def test_a_learning_rate_of_the_config_keeps_the_schedules_factor(schedule):
    captured = trained(schedule=schedule)
    rate = captured["optimizers"]["optimizer"]["groups"][0]["lr"]
    found, _ = put({"lr": 0.01}, captured, schedule=schedule)
    assert found["optimizers"]["optimizer"]["groups"][0]["lr"] == pytest.approx(rate / 10)
    found, _ = put({"decay": 0.5}, captured, schedule=schedule)
    group = found["optimizers"]["optimizer"]["groups"][0]
    assert group["lr"] == rate and group["weight_decay"] == 0.5
    assert same(found["optimizers"]["optimizer"]["state"], captured["optimizers"]["optimizer"]["state"])


def test_what_training_has_not_changed_is_as_the_config_makes_it():
    captured = trained()
    found, _ = put({"scale": 2.0, "frozen": True}, captured)
    assert found["buffers"]["net.scale"] == 2.0 and not found["requires_grad"]["net.blocks.0.0.weight"]
    assert same(found["parameters"], captured["parameters"])
    fresh = trained(steps=0)
    found, _ = put({"seed": 9}, fresh)
    assert same(found["parameters"], take_state(build(seed=9))["parameters"])


@pytest.mark.parametrize("changes", [{"amsgrad": True}, {"optimizer": "SGD"}])
def test_an_optimizer_of_another_kind_starts_anew(changes):
    captured = trained()
    found, left = put(changes, captured)
    assert found["optimizers"]["optimizer"]["state"] == {} and left == ["optimizers.optimizer"]
    assert same(found["parameters"], captured["parameters"])


def test_no_state_is_changed():
    captured, harness = trained(), build(depth=2)
    kept, built, original = copy.deepcopy(captured), take_state(harness), take_state(build())
    refit(built, captured, original)
    assert same(captured, kept) and same(built, take_state(harness)) and same(original, take_state(build()))
