"""Who made the first bad value: the producer, not those that passed it on."""

import importlib.util
from pathlib import Path

import pytest
import torch
from torch import nn

from reprokit.harness import Harness, parameters
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.step.trace import Trace, describe

NAN, INF = float("nan"), float("inf")
ZOO = Path(__file__).parents[1] / "zoo"


def traced(harness, batch):
    """The description of what made the first symptom."""
    named = {f"batch entry {name}": value for name, value in batch.items()}
    named |= {f"parameter {name}": value for name, value in parameters(harness).items()}
    trace = Trace(harness, {name: value for name, value in named.items() if isinstance(value, torch.Tensor)})
    with Probe(harness) as probe, trace:
        run(harness, batch, probe)
    found = trace.origin(probe.suspect()) if probe.symptoms else None
    return found.to_json() if found else None


def harness_of(step, net=None):
    net = net or nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return Harness(
        modules={"net": net}, optimizer=optimizer, step=lambda batch: step(net, batch["x"]), layout={"x": "b d"}
    )


@pytest.mark.parametrize(
    ("recipe", "op", "producer", "phase"),
    [
        ("z01", "aten._softmax.default", "aten._softmax.default", "forward"),
        ("z03", "aten.div.Tensor", "SqrtBackward0", "backward"),
        ("z07", "aten.div.Tensor", "aten.div.Tensor", "forward"),
        ("z10", "aten.bmm.default", "aten.bmm.default", "forward"),
        ("z14", "aten._to_copy.default", "ToCopyBackward0", "backward"),
        ("z17", None, "batch entry locals", ""),
        ("z25", "aten.div.Tensor", "aten.div.Tensor", "forward"),
        ("z26", "aten.div.Tensor", "SqrtBackward0", "backward"),
    ],
)
def test_known_mechanisms_are_named(recipe, op, producer, phase):
    spec = importlib.util.spec_from_file_location("adapter", ZOO / "adapter.py")
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    found = traced(adapter.build({"recipe": recipe}), adapter.load(recipe).make_batch(0))
    assert (found["op"], found["producer"], found["phase"]) == (op, producer, phase)
    assert found["index"] is not None
    if op:
        assert recipe in found["stack"][-1] and all(one["nan"] == 0 for one in found["inputs"])


def test_a_mask_of_infinities_is_no_fault():
    def step(net, x):
        masked = net(x).masked_fill(torch.eye(4, dtype=torch.bool), -INF)
        return masked.softmax(-1).sum() + (net.weight * 0).sum() / (x.sum() * 0)

    found = traced(harness_of(step), {"x": torch.ones(4, 4)})
    assert found["op"] == "aten.div.Tensor"


def test_what_does_not_reach_the_loss_is_not_blamed():
    def step(net, x):
        (x / 0).nan_to_num().sum()  # bad, and thrown away
        return net(x).log().sum()

    net = nn.Linear(4, 4)
    nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    assert traced(harness_of(step, net), {"x": torch.ones(2, 4)})["op"] == "aten.log.default"


def test_the_module_is_named_also_for_its_backward():
    class Root(nn.Module):
        def forward(self, x):
            return x.abs().sqrt()

    make = lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Sequential(Root()))
    forward = traced(harness_of(lambda net, x: net(x / 0).sum(), make()), {"x": torch.ones(2, 4)})
    assert forward["module"] == ""  # the division is the loop's own
    backward = traced(harness_of(lambda net, x: net(x * 0).sum(), make()), {"x": torch.ones(2, 4)})
    assert (backward["phase"], backward["module"]) == ("backward", "net.1.0")
    assert "sqrt()" not in backward["stack"][-1] and "test_trace.py" in backward["stack"][-1]


def test_the_optimizers_own_operation_is_named():
    net = nn.Linear(4, 4)
    harness = harness_of(lambda net, x: net(x).sum(), net)
    harness.optimizer.param_groups[0]["lr"] = 1e38
    found = traced(harness, {"x": torch.full((2, 4), 1e3)})
    assert found["phase"] == "optimizer"


def test_memory_as_it_was_left_is_no_value():
    def step(net, x):
        scratch = torch.empty(1 << 16).fill_(NAN)
        del scratch
        out = torch.empty(1 << 16)  # likely the same memory
        out.copy_(net(x).sum().expand(1 << 16))
        return out.mean()

    assert traced(harness_of(step), {"x": torch.ones(2, 4)}) is None


def test_a_bad_parameter_is_named_as_such():
    net = nn.Linear(4, 4)
    with torch.no_grad():
        net.weight[1, 2] = INF
    found = traced(harness_of(lambda net, x: net(x).sum(), net), {"x": torch.ones(2, 4)})
    assert (found["op"], found["producer"], found["index"]) == (None, "parameter net.weight", [1, 2])


def test_descriptions():
    assert describe(torch.tensor([1.0, NAN, -INF])) == {
        "shape": [3], "dtype": "float32", "min": 1.0, "max": 1.0, "nan": 1, "inf": 1, "first": [1],
    }  # fmt: skip
    assert describe(torch.tensor([3, 5]))["max"] == 5
    assert describe(torch.zeros(0))["min"] is None
    assert describe(torch.tensor(NAN))["first"] == []
