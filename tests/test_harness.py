"""State is taken and put back so that training goes on as if nothing had happened."""

import copy

import pytest
import torch
from torch import nn

from reprokit.errors import BadInput
from reprokit.harness import Harness, buffers, parameters, put_state, take_state


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 6))
        self.tied = self.body[0]  # a second name for the same module
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        self.scratch += 1
        return self.body(x)


def make(optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2), **fields):
    torch.manual_seed(0)
    net = Net()
    harness = Harness(
        modules={"net": net}, optimizer=optimizer(net.parameters()), step=None, layout={"x": "b d"}, **fields
    )
    return harness, net


def train(harness, net, steps, seed):
    torch.manual_seed(seed)
    optimizer = harness.optimizers["optimizer"]
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(4, 6)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 3])
def test_training_from_a_restored_state_repeats_bit_for_bit(name, before):
    harness, net = make(OPTIMIZERS[name])
    train(harness, net, before, seed=1)
    start = take_state(harness)
    first = train(harness, net, 4, seed=2)
    put_state(harness, start)
    assert train(harness, net, 4, seed=2) == first


def test_a_state_fits_a_harness_that_was_just_built():
    harness, net = make()
    train(harness, net, 3, seed=1)
    start = take_state(harness)
    again, other = make()
    put_state(again, start)
    assert train(again, other, 3, seed=2) == train(harness, net, 3, seed=2)


def test_nothing_in_a_taken_state_moves_with_training():
    harness, net = make()
    train(harness, net, 1, seed=1)
    start = take_state(harness)
    kept = copy.deepcopy(start)
    train(harness, net, 2, seed=1)
    torch.testing.assert_close(start["parameters"], kept["parameters"], rtol=0, atol=0)
    assert start["optimizers"]["optimizer"]["state"].keys() == kept["optimizers"]["optimizer"]["state"].keys()


def test_buffers_that_are_not_persistent_and_tied_names_are_listed_once():
    harness, _ = make()
    assert "net.scratch" in buffers(harness)
    assert list(parameters(harness)) == [
        f"net.body.{layer}.{name}" for layer in (0, 1, 3) for name in ("weight", "bias")
    ]


def test_names_are_those_beneath_wrappers():
    harness, net = make()
    wrapped = Harness(
        modules={"net": torch.compile(net)}, optimizer=harness.optimizer, step=None, layout={"x": "b d"}
    )  # compiling is lazy: nothing is compiled here
    assert list(parameters(wrapped)) == list(parameters(harness))
    put_state(wrapped, take_state(harness))


def test_entries_that_did_not_exist_at_the_start_are_cleared():
    harness, net = make()
    start = take_state(harness)
    train(harness, net, 1, seed=1)
    put_state(harness, start)
    assert not harness.optimizers["optimizer"].state


def test_optimizer_state_keeps_its_dtype():
    harness, net = make()
    train(harness, net, 1, seed=1)
    for entry in harness.optimizers["optimizer"].state.values():
        entry["exp_avg"] = entry["exp_avg"].double()
    put_state(harness, take_state(harness))
    assert {e["exp_avg"].dtype for e in harness.optimizers["optimizer"].state.values()} == {torch.float64}


def test_gradients_flags_learning_rate_and_extra_state_come_back():
    schedule = lambda opt: torch.optim.lr_scheduler.StepLR(opt, 1)
    harness, net = make()
    generator = torch.Generator().manual_seed(5)
    harness.extra_state = {"schedule": schedule(harness.optimizer), "generator": generator}
    net(torch.randn(4, 6)).sum().backward()
    net.body[1].eval()
    net.body[0].weight.requires_grad_(False)
    start = take_state(harness)
    drawn = torch.rand(3, generator=generator)
    harness.optimizer.step()
    harness.extra_state["schedule"].step()
    net.train().zero_grad()
    net.body[0].weight.requires_grad_(True)
    put_state(harness, start)
    assert harness.optimizer.param_groups[0]["lr"] == 1e-2 and harness.extra_state["schedule"].last_epoch == 0
    assert torch.equal(torch.rand(3, generator=generator), drawn)
    assert not net.body[1].training and net.body[3].training and not net.body[0].weight.requires_grad
    assert net.body[3].weight.grad is not None


def test_strides_come_back():
    conv = nn.Conv2d(3, 4, 3)
    build = lambda m: Harness(
        modules={"m": m}, optimizer=torch.optim.SGD(m.parameters(), lr=1), step=None, layout={"x": "b"}
    )
    state = take_state(build(copy.deepcopy(conv).to(memory_format=torch.channels_last)))
    put_state(build(conv), state)
    assert conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_another_model_is_refused_by_name():
    harness, _ = make()
    other = nn.Linear(6, 6)
    wrong = Harness(
        modules={"net": other}, optimizer=torch.optim.SGD(other.parameters(), lr=1), step=None, layout={"x": "b"}
    )
    with pytest.raises(BadInput, match=r"parameters: build gives another set.*net\.bias"):
        put_state(wrong, take_state(harness))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"autocast": "fp8"}, "autocast='fp8'"),
        ({"accumulate": 0}, "accumulate=0"),
        ({"extra_state": {"ema": object()}}, r"extra_state\['ema'\] \(object\)"),
        ({"extra_state": 5}, "extra_state is a int"),
        ({"features": 5}, "features is a int"),
        ({"fetch": "ids"}, "fetch is a str"),
        ({"knobs": "abc"}, "knobs must map"),
        ({"knobs": {"model.depth": "12"}}, "knobs must map"),
        ({"knobs": {"model.depth": 2}}, "knobs must map"),
    ],
)
def test_a_harness_that_cannot_be_is_refused(fields, says):
    with pytest.raises(BadInput, match=says):
        make(**fields)


def test_two_tensors_of_one_name_are_refused():
    one, two = nn.Sequential(nn.Linear(2, 2)), nn.Linear(2, 2)
    with pytest.raises(BadInput, match=r"two tensors are called a\.0\.weight"):
        Harness(modules={"a": one, "a.0": two}, optimizer=torch.optim.SGD(two.parameters(), lr=1), step=None, layout={})
