"""Two processes train one model over gloo: whatever happens in one of them, both end, and leave one incident."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

import reprokit
from reprokit.capture.ranks import Ranks, Told
from reprokit.failure import Kind
from reprokit.step.case import Case
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

pytestmark = pytest.mark.slow

DEADLINE = 240  # seconds for both to end: far beyond what they take, on a machine that has other work too

TRAIN = """
import os, pathlib, signal, sys, time, torch, reprokit
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from reprokit.harness import take_state

RANK = int(os.environ.get("RANK", 0))
for name in ("STUCK", "JUDGE"):
    if name in os.environ:
        import reprokit.capture.ranks
        setattr(reprokit.capture.ranks, f"_{name}", float(os.environ[name]))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    def forward(self, x):
        return self.body(x)

def build(config):
    if config["inits"] and not dist.is_initialized():
        dist.init_process_group("gloo")
    torch.manual_seed(config["seed"])
    net = DDP(Net())
    def step(batch):
        if batch["act"] in ("raise", "linger"):
            raise ValueError("the third sample is no clip")
        if batch["act"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        while batch["act"] == "hang" and not list(pathlib.Path("incidents").glob("*-step4")):
            time.sleep(0.1)
        out = net(batch["x"])
        return {"loss": out.pow(2).mean(), "mean": out.mean(), "local": batch["x"].mean()}
    return reprokit.Harness(modules={"net": net}, optimizer=torch.optim.AdamW(net.parameters()), step=step,
                            layout={"x": "b d"})

def batches(act):
    rng = torch.Generator().manual_seed(RANK)
    for i in range(5):
        x = torch.rand(4, 4, generator=rng)
        if i == 3 and RANK == 1 and act == "nan":
            x[2, 1] = float("nan")
        yield {"x": x, "act": act if i == 3 and RANK == 1 else ""}

if __name__ == "__main__":
    act, place = sys.argv[1], sys.argv[2]
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=RANK, world_size=2)
    config = {"seed": 3, "inits": INITS}
    harness = build(config)
    torch.manual_seed(100 + RANK)
    if act == "bare":
        for batch in batches(act):
            harness.step(batch)["loss"].backward()
            harness.optimizer.step()
            harness.optimizer.zero_grad()
    else:
        limits = reprokit.Limits(hang_after=8 if act == "hang" else None)
        with reprokit.Recorder(harness, build=build, config=config, limits=limits, recapture=True) as recorder:
            for batch in batches(act):
                if recorder.steps == 3:
                    tensors = {kind: take_state(harness)[kind] for kind in ("parameters", "buffers")}
                    torch.save(tensors, f"start-{act}-{RANK}.pt")
                try:
                    recorder.step(batch)
                except ValueError:
                    while act == "linger" and not os.path.exists("gone"):
                        time.sleep(0.1)
                    raise
                print("ended", recorder.steps, flush=True)
    torch.save(dict(harness.modules["net"].state_dict()), f"end-{act}-{RANK}.pt")
"""


def replayed(incident, **changes):
    with Worker(incident) as worker:
        return worker.evaluate(Case(incident=incident.path, **changes), timeout=DEADLINE)


def start(folder, act, *, inits=True, body=TRAIN):
    body = body.replace("INITS", repr(inits))
    (folder / "train.py").write_text(textwrap.dedent(body))
    place = folder / f"store-{act}"
    judge = {} if act == "kill" else {"JUDGE": "60"}  # a machine that has other work, too: who is dead never answers
    processes = []
    for rank in (0, 1):
        env = {**os.environ, **judge, "OMP_NUM_THREADS": "1", "RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
        with (folder / f"out-{rank}.txt").open("w") as out:
            command = [sys.executable, "train.py", act, str(place)]
            processes.append(subprocess.Popen(command, cwd=folder, stdout=out, stderr=out, env=env))
    return processes


def ended(folder, processes):
    """Exit codes and what was printed, by rank."""
    try:
        codes = [process.wait(DEADLINE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return codes, [(folder / f"out-{rank}.txt").read_text() for rank in (0, 1)]


def run(folder, act, **options):
    return ended(folder, start(folder, act, **options))


def captured(folder):
    [path] = (path for path in (folder / "incidents").iterdir() if not path.name.startswith("."))
    assert not list((folder / "incidents").glob(".draft-*"))
    return reprokit.Incident.open(path)


@pytest.fixture(scope="module")
def nan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nan")
    return folder, *run(folder, "nan")


@pytest.fixture(scope="module")
def raised(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raised")
    return folder, *run(folder, "raise", inits=False)


def test_a_nan_of_one_rank_is_one_incident_that_names_it_and_stops_both(nan):
    folder, codes, said = nan
    incident = captured(folder)
    manifest = incident.manifest
    assert (manifest.signature.kind, manifest.step) == (Kind.NONFINITE_LOSS, 4), said
    assert (manifest.world_size, manifest.origin, incident.ranks) == (2, 1, [0, 1])
    line = f"IncidentCaptured: step 4: nonfinite_loss at {manifest.signature.where}; in rank 1, as the first; captured"
    assert codes == [1, 1] and all(line in one and str(incident.path) in one for one in said), said


def test_each_rank_has_its_own_batch_donor_generators_and_history(nan):
    incident = captured(nan[0])
    assert incident.batch(1)["x"].isnan().any() and incident.batch(0)["x"].isfinite().all()
    assert torch.equal(incident.batch()["x"].nan_to_num(), incident.batch(1)["x"].nan_to_num())
    for rank in (0, 1):
        drawn = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(rank))
        assert torch.equal(incident.donor(rank)["x"], drawn[2])
        earlier = [step["batch"]["x"] for step in incident.history(rank)]
        assert len(earlier) == 3 and all(map(torch.equal, earlier, drawn))
    assert not torch.equal(incident.rng(0)["torch"], incident.rng(1)["torch"])
    assert incident.rewindable() == 3
    own, shared = incident.state(0), incident.state(1)
    assert own["parameters"].keys() == shared["parameters"].keys()
    differ = [name for name, buffer in own["buffers"].items() if not torch.equal(buffer, shared["buffers"][name])]
    assert [name.rpartition(".")[2] for name in differ] == ["running_mean", "running_var"]


def test_each_rank_has_the_state_that_its_failing_step_started_from(nan):
    folder, incident = nan[0], captured(nan[0])
    for rank in (0, 1):
        start, held = torch.load(folder / f"start-nan-{rank}.pt"), incident.state(rank)
        for kind in start:
            assert start[kind].keys() == held[kind].keys() and start[kind]
            assert all(torch.equal(value, held[kind][name]) for name, value in start[kind].items())


def test_the_evidence_says_which_rank_only_received_the_nan(nan):
    evidence = captured(nan[0]).manifest.symptoms[0].evidence
    assert evidence["origin"] == 1
    assert evidence["ranks"]["0"] == "nonfinite_grad at backward, later"
    assert evidence["ranks"]["1"].startswith("nonfinite_loss at ")


def test_an_exception_of_one_rank_is_captured_with_the_one_that_waits_for_it(raised):
    folder, codes, said = raised
    incident = captured(folder)
    signature = incident.manifest.signature
    assert (signature.kind, signature.exception, signature.function) == (Kind.EXCEPTION, "ValueError", "train.py:step")
    assert (incident.manifest.origin, incident.ranks, incident.manifest.step) == (1, [0, 1], 4)
    plain = said[1].replace("[rank1]: ", "")
    assert codes[1] == 1 and "ValueError: the third sample is no clip\nreprokit captured this step in" in plain
    assert codes[0] != 0 and str(incident.path) in said[0], said[0]
    assert incident.batch(0)["act"] == "" and incident.batch(1)["act"] == "raise"


@pytest.mark.parametrize("rewind", [0, 3])
def test_a_replay_starts_all_ranks_and_fails_bit_for_bit_as_the_first_did(nan, rewind):
    incident = captured(nan[0])
    outcome = replayed(incident, rewind=rewind)
    assert outcome.status is Status.FAIL and outcome.signature == incident.manifest.signature, outcome.detail
    assert outcome.fingerprint == incident.manifest.fingerprint
    assert outcome.ranks["1"] == outcome.fingerprint and outcome.ranks["0"]["losses"] != outcome.fingerprint["losses"]


def test_a_case_heals_the_batch_of_the_rank_that_failed(nan):
    outcome = replayed(captured(nan[0]), content="donor")
    assert outcome.status is Status.PASS, outcome.detail
    assert outcome.ranks["0"]["gradients/net"] == outcome.ranks["1"]["gradients/net"]  # they were exchanged


def test_an_exception_comes_again_where_the_group_was_not_made_by_the_build(raised):
    incident = captured(raised[0])
    outcome = replayed(incident)
    assert outcome.status is Status.FAIL and outcome.signature == incident.manifest.signature, outcome.detail


def test_a_failure_that_stays_in_one_rank_stops_both(tmp_path):
    """A loss term that nothing is computed from: the other rank is healthy, and one step further."""
    body = TRAIN.replace('"mean": out.mean()', '"mean": out.mean() + (float("nan") if batch["act"] == "alone" else 0)')
    codes, said = run(tmp_path, "alone", body=body)
    incident = captured(tmp_path)
    assert (incident.manifest.origin, incident.ranks, incident.manifest.step) == (1, [0, 1], 4), said
    assert incident.manifest.symptoms[0].evidence["ranks"]["0"] == "had not failed"
    assert 0 not in codes and all(str(incident.path) in one for one in said), said
    drawn = torch.rand(5, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(incident.batch(0)["x"], drawn[3])
    outcome = replayed(incident)  # its gradients are finite, so this compares values of both ranks
    assert outcome.status is Status.FAIL, outcome.detail
    assert outcome.fingerprint == incident.manifest.fingerprint


def test_a_rank_that_is_killed_does_not_leave_the_other_waiting(tmp_path):
    codes, said = run(tmp_path, "kill")
    assert codes[1] == -signal.SIGKILL
    incident = captured(tmp_path)
    assert codes[0] == 1 and str(incident.path) in said[0], said[0]
    assert (incident.manifest.origin, incident.ranks, incident.manifest.world_size) == (0, [0], 2)
    [line] = [line for line in incident.manifest.left_out if line.startswith("ranks/01: ")]
    assert "did not answer within" in line
    assert any("replay" in line and "no batch of rank 1" in line for line in incident.manifest.left_out)


def test_a_process_that_waits_for_one_that_never_comes_ends(tmp_path, monkeypatch):
    """The other one catches its exception, and goes on with something else."""
    monkeypatch.setenv("STUCK", "1.5")
    processes = start(tmp_path, "linger")
    try:
        processes[0].wait(DEADLINE)
    finally:
        (tmp_path / "gone").touch()
    codes, said = ended(tmp_path, processes)
    incident = captured(tmp_path)
    assert codes[0] == 1 and f"captured in {incident.path}" in said[0] and "its process ends" in said[0], said[0]
    assert (incident.manifest.origin, incident.ranks) == (1, [0, 1])


def test_a_loop_that_comes_while_it_is_asked_whether_it_is_stuck_is_not(monkeypatch):
    ranks = Ranks(writer=None, history=None)
    told = Told(path=None, signature=None, step=4, rank=1, stops=True, quiet=True)
    reads = iter([(told, -1e9)])
    taken = property(lambda self: next(reads, None), lambda self, value: pytest.fail("it was heard already"))
    monkeypatch.setattr(Ranks, "_pending", taken, raising=False)
    ranks._end_if_stuck()
    assert not ranks._aborted


def test_a_hang_is_captured_with_all_ranks_and_nobody_stops(tmp_path):
    """One rank waits in a collective for the other, which hangs until the incident is there."""
    codes, said = run(tmp_path, "hang")
    assert codes == [0, 0], said
    incident = reprokit.Incident.open(next((tmp_path / "incidents").glob("*-step4")))
    assert incident.manifest.signature.kind is Kind.HANG
    assert incident.ranks == [0, 1], incident.manifest.left_out
    assert (incident.batch(0)["act"], incident.batch(1)["act"]) == ("", "hang")


def test_healthy_ranks_compute_what_they_would_without_a_recorder(tmp_path):
    assert run(tmp_path, "none")[0] == [0, 0]
    assert run(tmp_path, "bare")[0] == [0, 0]
    assert not (tmp_path / "incidents").exists()
    for rank in (0, 1):
        with_it, without = (torch.load(tmp_path / f"end-{act}-{rank}.pt") for act in ("none", "bare"))
        assert with_it.keys() == without.keys()
        assert all(torch.equal(with_it[name], without[name]) for name in without)
