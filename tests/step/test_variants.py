"""A variant holds while the context lasts, wherever the step's code looks, and is taken back bit for bit."""

import copy
import math
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprokit.errors import BadInput
from reprokit.harness import Harness, take_state
from reprokit.incident import Incident
from reprokit.step.case import Case, Variant
from reprokit.step.evaluate import Session, evaluate
from reprokit.step.outcome import Status
from reprokit.step.precision import DTYPES, cast
from reprokit.step.probe import Probe
from reprokit.step.run import run
from reprokit.step.variants import Inapplicable, applied, changed, describe, unaffected


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU())
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.head = nn.Linear(6, 1)
        self.register_buffer("running", torch.zeros(6))
        self.seen = []

    def forward(self, x):
        x = self.encoder(x)
        for block in self.blocks:
            x = x + block(x).tanh()
            self.seen.append(x.dtype)
        self.running = 0.9 * self.running + x.detach().mean(0)  # bound anew, as many do
        return self.head(x)


def make(step=None, optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2), **fields):
    torch.manual_seed(0)
    net = Net()
    step = step or (lambda net, batch: {"loss": net(batch["x"]).pow(2).mean()})
    harness = Harness(
        modules={"net": net}, optimizer=optimizer(net.parameters()), step=lambda batch: step(net, batch),
        layout={"x": "b d"}, **fields,
    )  # fmt: skip
    return harness, net


def batch(seed=1):
    return {"x": torch.rand(8, 4, generator=torch.Generator().manual_seed(seed)), "label": torch.arange(8)}


def step(harness, variant=None, content=None):
    """One step as the variant says; returns the probe."""
    content = batch() if content is None else content
    torch.manual_seed(7)
    with applied(harness, variant or Variant()) as changed_harness, Probe(changed_harness) as probe:
        run(changed_harness, cast(content, variant.dtype) if variant and variant.dtype else content, probe)
        probe.prints = probe.fingerprint()
    return probe


def frozen(state):
    return copy.deepcopy(state)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("raises", [False, True])
def test_with_a_dtype_the_harness_comes_back_as_it_went_in(dtype, raises):
    harness, net = make(autocast="bf16", clip_grad_norm=1.0)
    step(harness)
    net.head(torch.ones(1, 6)).sum().backward()  # gradients that survive a step
    before = frozen(take_state(harness))
    identities = [(p, p.data_ptr(), p.grad) for p in net.parameters()]
    running = net.running
    net.seen.clear()
    if raises:
        with pytest.raises(KeyError), applied(harness, Variant(dtype=dtype)) as inside:
            raise KeyError(inside.step(cast(batch(), dtype)))
    else:
        step(harness, Variant(dtype=dtype))
    assert set(net.seen) == {DTYPES[dtype]}
    assert same(take_state(harness), before) and net.running is running
    assert all(p.data_ptr() == place and p.grad is grad for p, place, grad in identities)
    assert harness.autocast == "bf16"


def test_training_goes_on_after_a_variant_as_if_it_had_not_been():
    harness, _ = make()
    step(harness)
    again, _ = make()
    step(again)
    modules = {"net.blocks.1": "identity", "net.encoder": "freeze"}
    for variant in (Variant(dtype="float64"), Variant(dtype="bfloat16", modules=modules, harness={"lr": 9.0})):
        step(again, variant)
    assert step(harness).prints == step(again).prints


def test_float64_is_a_step_of_float64_throughout():
    """Beside the same step written by hand in float64."""
    harness, _ = make(clip_grad_norm=0.1)
    step(harness)
    hand, net = make(clip_grad_norm=0.1)
    step(hand)
    net.double()
    for entry in hand.optimizer.state.values():
        entry.update({k: v.double() for k, v in entry.items() if k != "step"})
    probe = step(harness, Variant(dtype="float64"))
    assert probe.prints == step(hand, content=cast(batch(), "float64")).prints
    assert probe.prints["losses"] != step(harness).prints["losses"]


CODE = {
    "half": lambda x: x.half(),
    "to": lambda x: x.to(torch.float16),
    "to by keyword": lambda x: x.to(dtype=torch.bfloat16),
    "a dtype of an operation": lambda x: x.softmax(-1, dtype=torch.float16),
    "the functional form": lambda x: F.softmax(x, -1, dtype=torch.float16),
    "autocast inside": lambda x: autocast(x),
    "new values": lambda x: torch.full((2,), 0.1),
    "new values by dtype": lambda x: torch.full((2,), 0.1, dtype=torch.float16),
    "pixels": lambda x: (x * 255).to(torch.uint8) / 255,
    "pixels by float": lambda x: (x * 255).to(torch.uint8).float() / 255,
    "noise": lambda x: torch.randn(4) + torch.rand_like(x),
}


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return F.linear(x, torch.ones_like(x))


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_precision_that_the_step_asks_for_is_the_variants(name, dtype):
    found = []
    harness, _ = make(lambda net, batch: found.append(CODE[name](batch["x"]).dtype) or net(batch["x"]).mean())
    step(harness, Variant(dtype=dtype))
    assert found == [DTYPES[dtype]]


def test_values_past_the_range_of_float16_stay_finite_in_float32():
    harness, _ = make(lambda net, batch: (net(batch["x"]) * 1e4).half().pow(2).float().mean())
    assert step(harness).symptoms and not step(harness, Variant(dtype="float32")).symptoms


def test_float64_that_the_step_asks_for_stays():
    found = []
    harness, _ = make(lambda net, batch: found.append(batch["x"].double().dtype) or net(batch["x"]).mean())
    step(harness, Variant(dtype="bfloat16"))
    assert found == [torch.float64]


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(5),
        lambda x: torch.randn(5, device="cpu"),
        torch.randn_like,
        lambda x: torch.empty(5).uniform_(),
        lambda x: x.clone().normal_(),
        lambda x: F.dropout(x, 0.5).sign(),
    ],
)
def test_the_draw_is_that_of_before(draw):
    found = []
    harness, _ = make(lambda net, batch: found.append(draw(batch["x"])) or net(batch["x"]).mean())
    step(harness)
    step(harness, Variant(dtype="float64"))
    assert found[1].dtype is torch.float64 and torch.equal(found[0].double(), found[1])


def test_code_that_runs_in_the_backward_pass_has_the_precision_too():
    seen = []

    class Low(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.half().float()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(gradient.half().dtype)
            return gradient

    def body(net, batch):
        deep = checkpoint(lambda x: net.head(net.encoder(x).half().to(torch.bfloat16)), batch["x"], use_reentrant=False)
        return {"loss": Low.apply(deep).mean()}

    harness, _ = make(body)
    probe = step(harness, Variant(dtype="float64"))
    assert seen == [torch.float64] and not probe.symptoms and probe.prints.keys() >= {"parameters/net"}


def test_autocast_around_and_inside_the_step_is_off_and_comes_back():
    found = []
    harness, _ = make(lambda net, batch: found.append((net.head(net.encoder(batch["x"])).dtype, autocast(batch["x"]).dtype)) or net(batch["x"]).mean(), automatic_optimization=False)  # noqa: E501
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(harness)
        step(harness, Variant(harness={"autocast": None}))
        assert torch.is_autocast_enabled("cpu")
    assert found == [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float32)]


def test_identity_returns_the_first_input_and_leaves_no_gradient():
    harness, net = make()
    x = torch.rand(3, 6)
    with applied(harness, Variant(modules={"net.blocks.1": "identity", "net.encoder": "identity"})):
        assert net.blocks[1](x) is x and net.encoder(x, "more") is x and net.blocks[0](x) is not x
    assert "forward" not in net.blocks[1].__dict__ and net.blocks[1](x) is not x
    net.blocks[1].forward = lambda x: x + 1  # an instance's own, as some libraries set it
    own = net.blocks[1].forward
    with applied(harness, Variant(modules={"net.blocks.1": "identity"})):
        assert net.blocks[1](x) is x
    assert net.blocks[1].forward is own


def test_identity_of_a_module_without_positional_input_is_refused():
    harness, net = make()
    with applied(harness, Variant(modules={"net.head": "identity"})), pytest.raises(Inapplicable, match="it got input"):
        net.head(input=torch.rand(3, 6))


def test_freeze_keeps_parameters_as_they_are_and_all_others_move():
    harness, net = make()
    step(harness)
    net.head(torch.ones(1, 6)).sum().backward()
    net.head.bias.requires_grad_(False)
    left = net.head.weight.grad
    with applied(harness, Variant(modules={"net.head": "freeze"})):
        before = frozen(take_state(harness))["parameters"]
        run(harness, batch(), probe := Probe(harness))
        after = take_state(harness)["parameters"]
    assert not probe.symptoms
    moved = {name.split(".")[1] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"encoder", "blocks"}
    assert net.head.weight.requires_grad and not net.head.bias.requires_grad and net.head.weight.grad is left


def test_a_learning_rate_is_that_of_all_groups_for_a_while():
    groups = lambda params: torch.optim.SGD([{"params": [p], "lr": 0.1 * i} for i, p in enumerate(params)])
    harness, _ = make(optimizer=groups)
    before = frozen(take_state(harness))
    with applied(harness, Variant(harness={"lr": 0})) as inside:
        run(inside, batch(), Probe(inside))
        assert same(take_state(harness)["parameters"], before["parameters"])
    assert same(take_state(harness)["optimizers"]["optimizer"]["groups"], before["optimizers"]["optimizer"]["groups"])
    rate = torch.tensor(0.1)
    harness, _ = make(optimizer=lambda params: torch.optim.Adam(params, lr=rate, capturable=False, foreach=False))
    with applied(harness, Variant(harness={"lr": 2.0})):
        assert torch.equal(harness.optimizer.param_groups[0]["lr"], torch.tensor(2.0))
    assert harness.optimizer.param_groups[0]["lr"] is rate


def test_a_learning_rate_holds_where_the_step_sets_one_itself():
    def setting(net, batch):
        harness.optimizer.param_groups[0]["lr"] = float("inf")
        return {"loss": net(batch["x"]).pow(2).mean()}

    harness, net = make(setting, lambda params: torch.optim.SGD(params, lr=0.1))
    before = frozen(dict(net.named_parameters()))
    step(harness, Variant(harness={"lr": 0}))
    assert same(dict(net.named_parameters()), before) and harness.optimizer.param_groups[0]["lr"] == 0.1
    assert not harness.optimizer._optimizer_step_pre_hooks


def test_fields_of_the_harness_change_for_the_step_alone():
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    harness, net = make(scaler=scaler, accumulate=2, clip_grad_norm=1.0, autocast="bf16")
    net(batch()["x"]).sum().backward()
    left = net.head.weight.grad
    variant = Variant(harness={"autocast": None, "clip_grad_norm": None, "accumulate": 1, "scaler": None})
    with applied(harness, variant) as inside:
        assert (inside.autocast, inside.clip_grad_norm, inside.accumulate, inside.scaler) == (None, None, 1, None)
        assert net.head.weight.grad is None and not scaler.is_enabled()
    assert (harness.autocast, harness.clip_grad_norm, harness.accumulate, harness.scaler) == ("bf16", 1.0, 2, scaler)
    assert scaler.is_enabled() and net.head.weight.grad is left
    with applied(harness, Variant(harness={"autocast": "fp16"})) as inside:
        assert inside.autocast == "fp16"


def test_one_module_runs_in_float32_and_all_others_under_autocast():
    harness, net = make(autocast="bf16")
    seen = []
    for i, block in enumerate(net.blocks):
        block.register_forward_hook(lambda _module, given, output, i=i: seen.append((i, given[0].dtype, output.dtype)))
    low, wide = torch.bfloat16, torch.float32
    probe = step(harness, Variant(modules={"net.blocks.1": "float32"}))
    assert [output for _, _, output in seen] == [low, wide, low] and not probe.symptoms
    assert "forward" not in net.blocks[1].__dict__ and step(harness).losses != probe.losses
    net.head.bfloat16()
    with pytest.raises(Inapplicable, match="has bfloat16"), applied(harness, Variant(modules={"net.head": "float32"})):
        pass


def test_a_loss_scale_is_that_of_the_step_and_the_scaler_comes_back_as_it_was():
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)
    harness, _ = make(scaler=scaler)
    before = scaler.state_dict()
    with applied(harness, Variant(harness={"loss_scale": 2.0})) as inside:
        run(inside, batch(), Probe(inside))
        assert scaler.get_scale() == 4.0
    assert scaler.state_dict() == before
    with pytest.raises(Inapplicable, match="scales no loss"), applied(make()[0], Variant(harness={"loss_scale": 2.0})):
        pass


@pytest.mark.parametrize(
    ("variant", "says"),
    [
        (Variant(dtype="float8"), "dtype='float8'; expected one of float64"),
        (Variant(modules={"net.block.1": "identity"}), r"no module 'net\.block\.1'; the nearest are net\.blocks\.1"),
        (Variant(modules={"net": "remove"}), "'remove' is no ablation"),
        (Variant(harness={"layout": "b"}), "'layout' of a harness cannot be changed"),
        (Variant(harness={"autocast": "fp8"}), "autocast='fp8'; expected 'bf16'"),
        (Variant(harness={"clip_grad_norm": 0}), "clip_grad_norm=0"),
        (Variant(harness={"accumulate": 3}), "accumulate=3; expected 1"),
        (Variant(harness={"scaler": True}), "scaler=True; expected None"),
        (Variant(harness={"lr": math.nan}), "lr=nan"),
        (Variant(harness={"loss_scale": 0}), "loss_scale=0; expected a number above 0"),
    ],
)
def test_what_no_harness_can_do_is_refused_in_one_line(variant, says):
    harness, _ = make()
    before = frozen(take_state(harness))
    with pytest.raises(BadInput, match=says) as refusal, applied(harness, variant):
        pass
    assert "\n" not in str(refusal.value) and same(take_state(harness), before)


@pytest.mark.parametrize("field", [{"clip_grad_norm": None}, {"accumulate": 1}, {"autocast": "bf16"}])
def test_what_a_step_does_itself_cannot_be_changed_from_here(field):
    harness, _ = make(automatic_optimization=False)
    with pytest.raises(Inapplicable, match="does that itself"), applied(harness, Variant(harness=field)):
        pass


def test_a_compiled_module_runs_as_the_variant_says():
    harness, net = make()
    compiled = torch.compile(net.blocks[1], backend="eager")
    x = torch.rand(3, 6)
    compiled(x)
    harness.modules = {"net": net, "compiled": compiled}
    with applied(harness, Variant(modules={"net.blocks.1": "identity"})):
        assert torch.equal(compiled(x), x)
    assert not torch.equal(compiled(x), x)
    with applied(harness, Variant(dtype="float64")):
        assert compiled(x.double()).dtype is torch.float64


def test_config_keys_change_in_a_copy():
    config = {"model": {"depth": 4}, "seed": 1}
    assert changed(config, {"model.depth": 2}) == {"model": {"depth": 2}, "seed": 1} and config["model"]["depth"] == 4
    with pytest.raises(BadInput, match=r"no key 'model\.width'"):
        changed(config, {"model.width": 2})


def test_what_variants_can_name_is_plain_data():
    harness, _ = make(knobs={"depth": (1, 2)}, clip_grad_norm=2.0)
    found = describe(harness)
    assert found["knobs"] == {"depth": [1, 2]} and found["modules"][:3] == ["net", "net.encoder", "net.encoder.0"]
    assert found["parameters"]["net.head.weight"] == [1, 6]
    assert found["optimizers"] == {"optimizer": {"kind": "AdamW", "lr": [1e-2]}}
    assert found["harness"]["clip_grad_norm"] == 2.0 and found["harness"]["scaler"] is False


def ask(incident, session=None, **variant):
    one = Case(incident=incident.path, variant=Variant(**variant))
    return session.evaluate(one) if session else evaluate(one)


OVERFLOW = "x = (x.clamp(max=1.0) * 1e5).half().float()"
HOT = {"x": torch.rand(4, 4, generator=torch.Generator().manual_seed(1))}


def test_a_case_vanishes_in_the_precision_that_it_needs_and_is_there_again_after(make_incident):
    incident = make_incident(body=OVERFLOW, batch=HOT)
    fresh = ask(incident)
    with Session(incident) as session:
        found = [ask(incident, session, dtype=dtype) for dtype in (None, "float32", "float64", "float16", None)]
    assert [one.status for one in found] == [Status.FAIL, Status.PASS, Status.PASS, Status.FAIL, Status.FAIL]
    assert fresh.fingerprint == found[0].fingerprint == found[-1].fingerprint
    assert len({str(one.fingerprint) for one in found}) == 4


def test_what_nobody_lists_does_not_carry_a_dtype_into_the_next_case(make_incident):
    body = "count[0] = count[0] + x.sum().detach()\nx = x * count[0].isfinite()"
    incident = make_incident(body=body, batch=HOT)
    fresh = ask(incident)
    with Session(incident) as session:
        ask(incident, session, dtype="float64")
        again = ask(incident, session)
    assert again.fingerprint == fresh.fingerprint and again.losses == fresh.losses


def test_a_traced_case_names_tensors_in_the_dtype_of_the_variant(make_incident):
    incident = make_incident(body="x = x / 0 - x / 0")
    one = Case(incident=incident.path, variant=Variant(dtype="float64"), trace=True, content="donor")
    outcome = evaluate(one)
    assert outcome.status is Status.FAIL and outcome.located["inputs"][0]["dtype"] == "float64"


def test_what_a_variant_cannot_do_here_is_invalid_and_nothing_else_is_lost(make_incident):
    incident = make_incident(body="x = net[0](input=x) if x.shape[0] == 4 else net[0](x)\nx = x[:, :4]")
    with Session(incident) as session:
        before = ask(incident, session)
        found = [
            ask(incident, session, modules={"net.9": "identity"}),
            ask(incident, session, modules={"net.0": "identity"}),
            ask(incident, session, harness={"clip": 1}),
            ask(incident, session, dtype="int8"),
        ]
        after = ask(incident, session)
    assert [one.status for one in found] == [Status.INVALID] * 4 and "\n" not in "".join(one.detail for one in found)
    assert before.status is Status.FAIL and after.fingerprint == before.fingerprint


def test_a_module_as_identity_and_frozen_in_a_case(make_incident):
    batch = {"x": HOT["x"] * 1e30}
    incident = make_incident(batch=batch)
    with Session(incident) as session:
        assert ask(incident, session).status is Status.PASS
        assert ask(incident, session, modules={"net.1": "identity"}).status is Status.FAIL
        frozen = ask(incident, session, modules={"net": "freeze"})
    assert frozen.status is Status.OTHER and "grad" in frozen.signature.message


def test_a_config_that_adds_and_removes_keys_replaces_the_whole(make_incident):
    incident = make_incident(body="if 'cap' in config: x = x.nan_to_num(config['cap'])")
    with Session(incident) as session:
        assert ask(incident, session).status is Status.FAIL
        assert ask(incident, session, whole_config={"seed": 3, "dropout": 0.5, "cap": 1.0}).status is Status.PASS
        gone = ask(incident, session, whole_config={"seed": 3})
        assert gone.status is Status.INVALID and "KeyError: 'dropout'" in gone.detail
        one = ask(incident, session, whole_config={"seed": 3, "dropout": 0.0, "cap": 1.0})
        assert one.fingerprint == ask(incident, session, whole_config={"seed": 3, "cap": 1.0, "dropout": 0.5}, config={"dropout": 0.0}).fingerprint  # noqa: E501
    assert Case.from_json(Case(incident=incident.path, variant=Variant(whole_config={"a": [1]})).to_json()).variant == Variant(whole_config={"a": [1]})  # noqa: E501


def test_the_captured_state_is_put_into_another_config_where_it_fits(make_incident, monkeypatch):
    incident = make_incident(batch=HOT)
    marked = {name: torch.full_like(value, 0.5) for name, value in incident.state()["parameters"].items()}
    state = incident.state()
    monkeypatch.setattr(Incident, "state", lambda self: {**state, "parameters": marked})
    with Session(incident) as session:
        for dropout in (0.0, 0.1, 0.0):
            assert ask(incident, session, config={"dropout": dropout}).detail == ""
            assert session.harness.modules["net"][2].p == dropout
        with applied(session.harness, Variant()):
            session._ready(Case(incident=incident.path, variant=Variant(config={"dropout": 0.0})), "restore")
            assert all(bool((p == 0.5).all()) for p in session.harness.modules["net"].parameters())
    odd = {**marked, "net.0.weight": torch.zeros(9, 4)}
    monkeypatch.setattr(Incident, "state", lambda self: {**state, "parameters": odd})
    assert "parameters.net.0.weight" in ask(incident, config={"dropout": 0.0}).detail
    assert ask(incident).status is Status.INVALID


def test_between_steps_a_loop_does_not_undo_the_variant():
    found = [
        (["groups", "optimizer", "0", "lr"], 0.1),
        (["groups", "optimizer", "0", "weight_decay"], 0.2),
        (["requires_grad", "net.head.weight"], True),
        (["requires_grad", "net.header.weight"], True),
    ]
    assert unaffected(Variant(), found) == found
    assert unaffected(Variant(harness={"lr": 1}, modules={"net.head": "freeze"}), found) == [found[1], found[3]]


def test_a_rank_alone_is_by_the_switch_of_the_wrapper_or_not_at_all():
    class Wrapped(nn.Linear):
        synchronised = True

        @contextmanager
        def no_sync(self):
            self.synchronised = False
            yield
            self.synchronised = True

    seen, net = [], Wrapped(4, 1)
    harness = Harness(
        modules={"net": net}, optimizer=torch.optim.SGD(net.parameters()), layout={"x": "b d"},
        step=lambda batch: seen.append(net.synchronised) or net(batch["x"]).sum(),
    )  # fmt: skip
    step(harness, Variant(harness={"synchronise": False}))
    step(harness)
    assert seen == [False, True]
    plain, _ = make()
    alone = Variant(harness={"synchronise": False})
    with pytest.raises(Inapplicable, match="DistributedDataParallel"), applied(plain, alone):
        pass
