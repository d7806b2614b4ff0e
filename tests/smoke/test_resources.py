import re
import threading
import time
from dataclasses import replace

import pytest
import torch

from reprokit.harness import Harness
from reprokit.smoke import meters
from reprokit.smoke.clock import Clock, Overdue
from reprokit.smoke.gates import resources
from reprokit.smoke.gates.resources import Resources, fetch
from reprokit.smoke.loaders import advice, where

from .small import changed, config, failed, plain, rows, skipped, subject

MEMORY, GROWTH, TIME, BATCH = "memory of a step", "memory from step to step", "time of a step", "time of a batch"


def listing(harness):
    return [{"x": torch.zeros(2, 2)}] * 8


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_model_passes_with_numbers(seed):
    found = rows(Resources(), subject(changed(loader=listing), seed=seed))
    assert not failed(found) and not skipped(found)
    measured = found[MEMORY].measured  # what another test left free is taken first, and the process need not grow
    assert measured["peak_bytes"] >= measured["before_bytes"] > 1e7
    assert found[TIME].measured["seconds"] > 0 and found[BATCH].measured["seconds"] >= 0
    assert found[GROWTH].measured["tensors_per_step"] == 0


def test_tokens_are_those_that_token_dropping_leaves():
    usual = config(model__token_drop_rate=0.95)
    usual["video"]["frames"], usual["data"]["global_size"], usual["data"]["local_size"] = 16, 224, 96
    usual["data"]["views"] = 1
    clip = {
        "global": torch.randint(0, 256, (2, 16, 3, 224, 224), dtype=torch.uint8),
        "local": torch.randint(0, 256, (2, 1, 16, 3, 96, 96), dtype=torch.uint8),
        "source": ["a", "b"],
    }
    found = rows(Resources(), subject(changed(loader=None), config=usual, batches=[clip]))
    assert found["tokens of encoder"].observed == "158 and 30 with [CLS], of 2 clips each"
    assert skipped(found) == [BATCH] and not failed(found)


def test_a_model_without_an_encoder_of_ours_has_no_tokens_to_count():
    found = rows(Resources(), plain(lambda net, x: net(x).square().mean()))
    assert skipped(found) == ["tokens of the encoder", BATCH] and not failed(found)


@pytest.mark.parametrize(
    "keep",
    [
        lambda kept, net, x: kept.append(net(x)),
        lambda kept, net, x: kept.append(net(x).detach()),
        lambda kept, net, x: kept.append(x),
        lambda kept, net, x: kept.append(x.numpy().repeat(100).copy()),
        lambda kept, net, x: net.register_buffer(f"b{len(net._buffers)}", torch.zeros(1000)),
    ],
    ids=["graphs", "features", "batches", "arrays", "buffers"],
)
def test_a_step_that_leaves_something_each_time_fails(keep):
    kept = []

    def forward(net, x):
        keep(kept, net, x)
        return net(x).square().mean()

    asked = replace(plain(forward, width=64), batches=[{"x": torch.randn(64, 16)}])
    found = rows(Resources(), asked)
    assert failed(found) == [GROWTH] and "each step leaves more" in found[GROWTH].observed


@pytest.mark.parametrize("seed", range(3))
def test_a_reference_model_that_logs_features_with_their_graph_fails(seed):
    def keeping(harness):
        inner, kept = harness.step, []
        return lambda batch: kept.append(harness.features(batch).mean()) or inner(batch)

    found = rows(Resources(), subject(changed(step=keeping, loader=None), seed=seed))
    assert failed(found) == [GROWTH]


def test_numbers_that_are_kept_and_queues_that_are_full_are_no_leak():
    kept, queue = [], torch.zeros(64, 16)

    def forward(net, x):
        loss = net(x).square().mean()
        kept.append((float(loss.detach()), loss.detach()))
        queue.copy_(torch.cat([queue[8:], net(x).detach()]))
        return loss

    assert not failed(rows(Resources(), plain(forward)))


def test_a_history_that_is_full_after_two_steps_is_no_leak():
    kept = []

    def forward(net, x):
        kept.append(net(x).detach().clone())
        del kept[:-2]
        return net(x).square().mean()

    assert not failed(rows(Resources(), plain(forward, width=256)))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
    ids=["device", "allocator", "python"],
)
def test_memory_that_runs_out_fails_with_advice_that_is_called_another_experiment(error):
    def forward(net, x):
        raise error

    found = rows(Resources(), plain(forward, knobs={"model.depth": [1, 2]}))
    assert failed(found) == [MEMORY] and "out of memory" in found[MEMORY].observed
    advice = found[MEMORY].advice
    assert all(word in advice for word in ("smaller batch", "local crops", "smaller model", "model.depth"))
    assert "this changes the experiment" in advice


def test_what_else_a_step_raises_leaves_the_gate():
    def forward(net, x):
        raise KeyError("x")

    with pytest.raises(KeyError):
        rows(Resources(), plain(forward))


class Stuck:
    """A loader whose workers never answer, after so many batches."""

    def __init__(self, after, kind=threading.Event):
        self.after, self.released = after, kind()

    def __iter__(self):
        yield from [{"x": torch.zeros(2)}] * self.after
        self.released.wait()


@pytest.mark.parametrize("after", [0, 3])
def test_a_loader_that_is_stuck_fails_after_its_deadline(after):
    loader = Stuck(after)
    try:
        asked = replace(plain(lambda net, x: net(x).square().mean(), loader=loader), clock=Clock(1.0))
        found = rows(Resources(), asked)
    finally:
        loader.released.set()
    assert failed(found) == [BATCH]
    place = r"\(\S*test_resources.py:\d+ in __iter__\)"
    assert re.fullmatch(rf"batch {after + 1}: has not come in 1 s {place}", found[BATCH].observed)
    assert "num_workers" not in found[BATCH].advice and "--hang-after" in found[BATCH].advice


class Raising(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise KeyError("clip")


@pytest.mark.slow
def test_to_do_without_workers_is_advised_where_a_worker_raised():
    by_worker, here = (fetch(torch.utils.data.DataLoader(Raising(), num_workers=workers), 60.0) for workers in (1, 0))
    assert "clip" in str(by_worker.error) and "num_workers=0" in advice(by_worker.error)
    assert "clip" in str(here.error) and "num_workers" not in advice(here.error)
    assert re.search(r"test_resources.py:\d+ in __getitem__\)", where(here.error, []))


class Waiting(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if torch.utils.data.get_worker_info() is not None:
            threading.Event().wait(3600)  # as on a lock that was held when the worker was forked
        return torch.zeros(16)


@pytest.mark.slow
def test_workers_that_are_stuck_are_seen_and_none_is_without_them():
    loaders = [torch.utils.data.DataLoader(Waiting(), num_workers=workers) for workers in (1, 0)]
    stuck, alive = (fetch(loader, stuck_after=3.0) for loader in loaders)
    assert isinstance(stuck.error, Overdue) and not stuck.seconds
    assert where(stuck.error, []) == " (its workers are waited for)"
    assert "num_workers=0" in advice(stuck.error) and "this changes the experiment" in advice(stuck.error)
    assert alive.error is None and len(alive.seconds) == 4


@pytest.mark.parametrize(
    ("loader", "observed"),
    [([], "the loader ends before its first batch"), (map(int, ["x"]), "batch 1: ValueError: invalid literal")],
    ids=["empty", "raising"],
)
def test_a_loader_that_gives_nothing_fails(loader, observed):
    found = rows(Resources(), plain(lambda net, x: net(x).square().mean(), loader=loader))
    assert failed(found) == [BATCH] and found[BATCH].observed.startswith(observed)


def test_a_slow_loader_passes_and_is_said_to_be_what_training_waits_for(monkeypatch):
    monkeypatch.setattr(resources, "fetch", lambda loader, after: resources.Fetched(seconds=[9.0, 5.0, 6.0, 7.0]))
    found = rows(Resources(), plain(lambda net, x: net(x).square().mean(), loader=[1]))
    assert not failed(found) and found[BATCH].measured == {"seconds": 6.0, "first_seconds": 9.0}
    assert "training waits for the loader" in found[BATCH].observed
    assert "this changes the experiment" in found[BATCH].advice


def test_without_a_batch_only_the_loader_is_asked():
    found = rows(Resources(), subject(changed(loader=None), batches=[], no_batches="the harness has no loader"))
    assert skipped(found) == list(found) == ["memory, time and tokens of a step", BATCH]


def test_a_loader_is_left_alone_after_its_batches():
    given = []
    loader = (given.append(i) or i for i in range(10_000))
    assert len(fetch(loader, 5.0).seconds) == resources.BATCHES
    assert len(given) == resources.BATCHES


def test_births_are_those_of_forward_and_backward_and_forget_what_is_freed():
    weight = torch.ones(1000, requires_grad=True)
    with meters.Births() as births:
        (weight * 2).sum().backward()
    alive = [size for ref, size in births.found.values() if not ref.expired()]
    assert 4000 in alive and sum(alive) < 9000  # the gradient; the product is gone


def test_a_peak_on_the_host_sees_what_is_gone_again():
    with meters.Peak(torch.device("cpu")) as peak:
        for _ in range(30):
            torch.ones(25_000_000).sqrt_().sum()  # over 32 MB: no allocator has that at hand, or keeps it
    assert peak.most - peak.before > 5e7 and peak.before > 0 and peak.where == "the host"


def test_a_harness_on_any_device_is_measured_by_its_counters(monkeypatch):
    """A device that counts: its peak is asked for, and reset before."""
    calls = []

    class Counting:
        def memory_allocated(self, device):
            return 1000 + 10_000 * len(calls)

        def max_memory_allocated(self, device):
            return 5000

        def reset_peak_memory_stats(self, device):
            calls.append("reset")

        def synchronize(self):
            calls.append("wait")

    monkeypatch.setattr(meters, "_module", lambda device: Counting())
    device = torch.device("cuda", 0)
    with meters.Peak(device) as peak:
        pass
    assert peak.most == 5000 and peak.where == "cuda:0" and "reset" in calls
    assert meters.allocated(device) > 1000
    grown = meters.kept(lambda: None, device, 3)
    assert grown[0]["tensors"] < grown[1]["tensors"] < grown[2]["tensors"]


def test_a_harness_without_parameters_is_on_the_host():
    net = torch.nn.Identity()
    dummy = torch.zeros(1, requires_grad=True)

    def build(_):
        step = lambda batch: (dummy * batch["x"].sum()).sum()
        sgd = torch.optim.SGD([dummy], lr=0.0)
        return Harness(modules={"net": net}, optimizer=sgd, step=step, layout={"x": "b d"})

    assert not failed(rows(Resources(), subject(build, batches=[{"x": torch.ones(2, 2)}], config={})))


def test_a_loader_that_is_slow_and_not_stuck_is_left_when_it_has_come_to_an_end(monkeypatch):
    """Or it would draw random numbers in the middle of the next gate."""

    class Slow:
        def __iter__(self):
            yield from [{"x": torch.zeros(2)}] * 2
            time.sleep(0.5)
            yield {"x": torch.rand(2)}

    monkeypatch.setattr("reprokit.smoke.gates.resources.PATIENCE", 0.0)
    before = set(threading.enumerate())
    assert len(fetch(Slow(), 60.0).seconds) == 2 and set(threading.enumerate()) <= before
