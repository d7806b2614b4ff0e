"""Gates that run steps, on harnesses of other shapes than the reference model's."""

import numpy as np
import pytest
import torch
from torch import nn

from reprokit.harness import Harness
from reprokit.smoke.gates.extremes import Extremes
from reprokit.smoke.gates.overfit import Overfit
from reprokit.smoke.gates.resources import Resources
from reprokit.smoke.plots import draw
from reprokit.smoke.smoke import chosen
from reprokit.video import train

from .small import failed, rows, skipped, subject


class Pair(nn.Module):
    """Returns a tuple, and writes into the list that it is given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, log):
        log.append(len(x))
        return self.second(self.first(x).tanh()), {"aux": None}


def bare(wrap, layout, unwrap):
    """A subject whose batch is wrap(floats)."""

    def build(_):
        net = Pair()

        def step(batch):
            x, log = unwrap(batch), []
            out, _ = net(x, log)
            assert log == [len(x)]
            if not len(x):
                raise ValueError("no samples")
            return (out - x).square().mean()

        adam = torch.optim.Adam(net.parameters(), lr=1e-2)
        return Harness(modules={"net": net}, optimizer=adam, step=step, layout=layout)

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    return subject(build, batches=[wrap(x)], config={})


KINDS = {
    "tensor": (lambda x: x, "b d", lambda batch: batch),
    "tuple": (lambda x: (x, ["a"] * 8), {"0": "b d", "1": "b"}, lambda batch: batch[0]),
    "nested": (lambda x: {"views": {"x": x}}, {"views.x": "b d"}, lambda batch: batch["views"]["x"]),
    "array": (lambda x: {"x": x.numpy()}, {"x": "b d"}, lambda batch: torch.from_numpy(np.array(batch["x"]))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("gate", [Resources(), Overfit(), Extremes()], ids=lambda gate: gate.name)
def test_batches_of_any_form_are_asked(gate, kind):
    found = rows(gate, bare(*KINDS[kind]))
    assert not failed(found) and len(skipped(found)) < len(found)
    if gate.name == "extremes":
        (nan,) = [check for check in found if check.startswith("NaN")]
        assert nan == {"tensor": "NaN in the batch", "tuple": "NaN in 0", "nested": "NaN in views.x"}.get(
            kind, "NaN in x"
        )


def test_pictures_of_a_bare_tensor(tmp_path):
    assert len(draw(bare(*KINDS["tensor"]), tmp_path)) == 3


@pytest.mark.parametrize("gate", [Overfit(), Extremes(), Resources()], ids=lambda gate: gate.name)
def test_a_loss_without_a_graph_leaves_the_gate_as_what_torch_says(gate):
    def build(_):
        net = nn.Linear(16, 16)
        step = lambda batch: net(batch).square().mean().detach()
        return Harness(modules={"net": net}, optimizer=torch.optim.SGD(net.parameters()), step=step, layout="b d")

    with pytest.raises(RuntimeError, match="does not require grad"):
        rows(gate, subject(build, batches=[torch.ones(8, 16)], config={}))


@pytest.mark.parametrize("gate", [Overfit(), Extremes()], ids=lambda gate: gate.name)
def test_a_scaler_that_skips_its_first_steps_is_no_failure(gate):
    """Under fp16 a scale that is far too high overflows gradients, and GradScaler backs off."""

    def build(_):
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**26)
        adam = torch.optim.Adam(net.parameters(), lr=1e-2)
        step = lambda batch: (net(batch) - batch).square().mean()
        return Harness(modules={"net": net}, optimizer=adam, step=step, layout="n d", scaler=scaler, autocast="fp16")

    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(1))
    asked = subject(build, batches=[x], config={})
    found = rows(gate, asked)
    assert not failed(found)


@pytest.mark.parametrize("wrap", [lambda out: (out[:, 0], out), lambda out: {"tokens": out}], ids=["tuple", "mapping"])
def test_tokens_are_counted_where_they_are_a_part_of_what_an_encoder_gives(wrap):
    """And [CLS] of them is what is looked at for a collapse."""

    def build(given):
        harness = train.build(given)
        encoder = harness.modules["encoder"]
        encoder.register_forward_hook(lambda _module, _args, tokens: wrap(tokens))
        unwrapped = lambda self, clip: _tokens(nn.Module.__call__(self, clip))  # as the step of such a model does
        encoder.__class__ = type("Wrapped", (type(encoder),), {"__call__": unwrapped})
        return harness

    found = rows(Resources(), subject(build))
    assert found["tokens of encoder"].observed == "17 and 5 with [CLS], of 4, 8 clips"
    assert "outputs of encoder tell samples apart" in rows(Overfit(), subject(build))


def _tokens(output):
    return next(part for part in (output.values() if isinstance(output, dict) else output) if part.ndim == 3)


@pytest.fixture
def alone():
    """A process group of one, as DistributedDataParallel wants it."""
    dist = torch.distributed
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


WRAPPERS = {"ddp": nn.parallel.DistributedDataParallel, "compiled": lambda net: torch.compile(net, backend="eager")}


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize("name", ["shapes", "numbers", "gradients", "leakage", "resources", "overfit", "extremes"])
def test_wrappers_change_no_verdict(alone, monkeypatch, wrapper, name):
    (gate,) = chosen([name])
    told = lambda: {check: one.verdict for check, one in rows(gate, subject()).items()}
    bare = told()
    for made in ("_encoder", "_projector"):
        real = getattr(train, made)
        monkeypatch.setattr(train, made, lambda config, real=real: WRAPPERS[wrapper](real(config)))
    assert told() == bare
