"""Who made the first bad value: the producer, not those that passed it on."""

import importlib.util
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprokit.harness import Harness, parameters
from reprokit.step.probe import Probe, phase_of
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
    suspect = probe.suspect() if probe.symptoms else None
    found = None if suspect is None else trace.origin(suspect) or trace.met(suspect)
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


def test_a_number_that_goes_all_the_way_is_found_where_it_was_handed_over():
    net = nn.Linear(4, 4)
    harness = harness_of(lambda net, x: net(x).sum(), net)
    harness.optimizer.param_groups[0]["lr"] = INF
    found = traced(harness, {"x": torch.rand(2, 4)})
    assert (found["phase"], found["inputs"][-1]["dtype"], found["inputs"][-1]["inf"]) == ("optimizer", "float", 1)
    found = traced(harness_of(lambda net, x: (net(x) * 0 + INF).sum()), {"x": torch.rand(2, 4)})
    assert (found["op"], found["phase"]) == ("aten.add.Tensor", "forward")
    assert found["outputs"][0]["inf"] == 8 and "test_trace.py" in found["stack"][-1]


def test_what_numpy_made_is_met_where_torch_reads_it_first():
    weights = np.array([1.0, NAN], dtype=np.float32)
    step = lambda net, x: (net(x).mean(1) * torch.from_numpy(weights) * 2).sum()
    found = traced(harness_of(step), {"x": torch.ones(2, 4)})
    assert (found["op"], found["inputs"][1]["nan"], found["index"]) == ("aten.mul.Tensor", 1, [1])


def test_arguments_of_masks_are_kept_up_to_a_limit(monkeypatch):
    monkeypatch.setattr("reprokit.step.trace.KEPT", 300)
    trace = Trace(harness_of(lambda net, x: net(x).sum()), {})
    with trace:
        masks = [torch.zeros(10).masked_fill(torch.ones(10, dtype=torch.bool), -INF) for _ in range(9)]
    assert [trace.met(mask).arguments is None for mask in (masks[0], masks[-1])] == [False, True]
    assert all(trace.origin(mask) is None for mask in masks)


def raising(step, net=None):
    """What is told of the exception that leaves a step."""
    harness = harness_of(step, net)
    trace = Trace(harness, {})
    with pytest.raises(Exception) as caught, Probe(harness) as probe, trace:
        run(harness, {"x": torch.ones(1, 4)}, probe)
    return trace.raised(caught.value, phase_of(caught.value))


def test_an_exception_of_python_names_the_module_that_it_left():
    found = raising(lambda net, x: net(x).sum(), nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4))))
    assert (found.op, found.producer, found.module, found.phase) == (None, "ValueError", "net.1.0", "forward")
    assert "test_trace.py" in found.stack[-1] and "BatchNorm" not in found.stack[-1]


def test_an_operation_whose_exception_was_caught_is_not_blamed():
    def step(net, x):
        with suppress(RuntimeError):
            x.view(3)
        return {"loss": net(x).sum()}["lost"]

    found = raising(step)
    assert (found.op, found.producer, found.module) == (None, "KeyError", "")


def test_an_operation_is_named_through_what_was_raised_from_it():
    def step(net, x):
        try:
            return x.view(3).sum()
        except RuntimeError as error:
            raise ValueError("a clip of the wrong length") from error

    assert raising(step).op == "aten.view.default"


def test_an_exception_of_a_backward_pass_is_none_of_a_module():
    class Wrong(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())

        @staticmethod
        def backward(ctx, grad):
            raise NotImplementedError("not yet")

    found = raising(lambda net, x: Wrong.apply(net(x)).sum())
    assert (found.op, found.producer, found.module, found.phase) == (None, "NotImplementedError", "", "backward")
    assert found.stack[-1].endswith("in backward")


def test_a_hook_in_a_backward_pass_is_named_by_its_line():
    def spoil(grad):
        return grad / (grad * 0)

    def step(net, x):
        net.weight.register_hook(spoil)
        return net(x).sum()

    found = traced(harness_of(step), {"x": torch.ones(2, 4)})
    assert (found["op"], found["phase"]) == ("aten.div.Tensor", "backward")
    assert found["stack"][-1].endswith("in spoil") and not any("in traced" in one for one in found["stack"])


def test_the_line_of_a_functions_own_backward_follows_that_of_its_call():
    class Wrong(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x: x.clone())
        backward = staticmethod(lambda ctx, grad: grad / 0)

    def step(net, x):
        return Wrong.apply(net(x)).sum()

    stack = traced(harness_of(step), {"x": torch.ones(2, 4)})["stack"]
    assert [frame.rpartition(" ")[2] for frame in stack[-3:]] == ["step", "<lambda>", "<lambda>"]


def test_what_a_checkpoint_computes_again_is_in_its_module():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    calls = []
    net[1].register_forward_pre_hook(lambda module, given: (given[0] / (calls.append(1) or 2 - len(calls)),))
    step = lambda net, x: checkpoint(net, x, use_reentrant=True).sum()
    found = traced(harness_of(step, net), {"x": torch.ones(2, 4, requires_grad=True)})
    assert (found["op"], found["phase"], found["module"]) == ("aten.div.Tensor", "backward", "net.1")


def test_what_needs_no_gradient_does_not_take_the_place_of_what_does():
    def root(x):
        return x.sqrt()

    def step(net, x):
        roots = root(net(x * 0))
        x.detach().mul(2)
        return roots.sum()

    net = nn.Linear(4, 4, bias=False)
    assert traced(harness_of(step, net), {"x": torch.ones(2, 4)})["stack"][-1].endswith("in root")


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
