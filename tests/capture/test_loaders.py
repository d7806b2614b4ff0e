"""A loader that fails between two steps is captured with what can be known: worker, batch, sample."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from reprokit.capture.loaders import blame, interrupts
from reprokit.capture.recorder import Recorder
from reprokit.cli.main import run as cli
from reprokit.failure import Kind
from reprokit.incident import Incident
from reprokit.step.load import load_entrypoint

BAD, COUNT, SIZE = 13, 40, 4
TRAIN = """
import torch
import reprokit


def build(config):
    torch.manual_seed(0)
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return reprokit.Harness(modules={"net": net}, optimizer=optimizer, step=lambda batch: net(batch).square().mean(),
                            layout="b d")
"""


class Clips(Dataset):
    def __init__(self, how, may_die=None):
        self.how, self.may_die = how, may_die

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if index == BAD:
            if self.how == "raise":
                raise ValueError(f"clip {index} has no frames")
            assert self.may_die.wait(60)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor([float(index)])


def failing(**options):
    """What a loop over the clips raises."""
    with pytest.raises((ValueError, RuntimeError)) as raised:
        for _ in DataLoader(Clips("raise"), batch_size=SIZE, **options):
            pass
    return raised.value


def frames_of(thread):
    return [frame for frame, _ in traceback.walk_stack(sys._current_frames()[thread])]


@pytest.mark.parametrize("shuffle", [False, True])
def test_without_workers_the_sample_is_known(shuffle):
    assert blame(failing(shuffle=shuffle)) == {"samples": [BAD]}


@pytest.mark.slow
def test_a_worker_that_raises_is_named_with_its_batch():
    found = blame(failing(num_workers=2))
    assert found == {"workers": [{"worker": 1}], "batches": [BAD // SIZE], "samples": [12, 13, 14, 15]}
    shuffled = blame(failing(num_workers=2, shuffle=True))
    assert "samples" not in shuffled and len(shuffled["batches"]) == len(shuffled["workers"]) == 1


@pytest.mark.slow
def test_a_worker_that_is_killed_is_named_with_what_it_had_not_returned():
    may_die, here = multiprocessing.Event(), threading.get_ident()

    def let_it_die():
        """Once its batch is waited for: torch raises what it hears of such a death wherever this process is."""
        while not any(frame.f_code.co_filename.endswith("/dataloader.py") for frame in frames_of(here)):
            time.sleep(0.01)
        may_die.set()

    loader = iter(DataLoader(Clips("kill", may_die), batch_size=SIZE, num_workers=2))
    for _ in range(BAD // SIZE):
        next(loader)
    waits = threading.Thread(target=let_it_die)
    waits.start()
    with pytest.raises(RuntimeError) as raised:
        next(loader)
    waits.join()
    found = blame(raised.value)
    [worker] = found["workers"]
    assert worker == {"worker": 1, "died_of": "SIGKILL"}
    assert BAD // SIZE in found["batches"] and BAD in found["samples"]


def test_what_is_no_loader_s_is_nobody_s():
    with pytest.raises(ValueError) as raised:
        raise ValueError("of the loop")
    assert blame(raised.value) is None and not interrupts(raised.value)


def test_a_death_that_a_signal_tells_of_in_the_middle_of_something_is_the_worker_s():
    handler = "def handler():\n    raise RuntimeError('DataLoader worker (pid 77) is killed by signal: Killed. ')\n"
    space = {}
    exec(compile(handler, "/x/torch/utils/data/_utils/signal_handling.py", "exec"), space)
    with pytest.raises(RuntimeError) as raised:
        space["handler"]()
    assert interrupts(raised.value)
    assert blame(raised.value) == {"workers": [{"pid": 77, "died_of": "Killed"}]}


# --- as incidents


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loaders")
    (folder / "train_loader.py").write_text(TRAIN)
    load_entrypoint("train_loader:build", folder)
    return sys.modules["train_loader"]


@pytest.fixture
def recorder(train, tmp_path):
    return Recorder(train.build({}), build=train.build, config={}, out=tmp_path / "out", rehearse=False)


def loop(recorder, loader):
    with recorder:
        for batch in loader:
            recorder.step(batch)


def test_it_is_an_incident_without_a_batch(recorder):
    with pytest.raises(ValueError, match="clip 13 has no frames") as raised:
        loop(recorder, DataLoader(Clips("raise"), batch_size=SIZE))
    [path] = recorder.incidents
    assert f"reprokit captured what its loader left in {path}" in "".join(raised.value.__notes__)
    incident = Incident.open(path)
    signature, [symptom] = incident.manifest.signature, incident.manifest.symptoms
    assert (signature.kind, signature.where, signature.exception) == (Kind.EXCEPTION, "loader", "ValueError")
    assert signature.message == "clip # has no frames" and incident.manifest.step == 4
    assert symptom.evidence["samples"] == [BAD]
    assert torch.equal(incident.donor().flatten(), torch.arange(8.0, 12.0)) and incident.state()["parameters"]
    assert not any(name.startswith("ranks/00/batch") for name in incident.manifest.files)
    assert [step["step"] for step in incident.history()] == [1, 2, 3]
    assert "the batch: it never came; the last healthy one is the donor" in incident.manifest.left_out


@pytest.mark.parametrize("verb", ["replay", "reduce"])
def test_what_needs_the_batch_says_that_there_is_none(recorder, tmp_path, capsys, verb):
    with pytest.raises(ValueError):
        loop(recorder, DataLoader(Clips("raise"), batch_size=SIZE))
    more = ["-o", str(tmp_path / "reduced")] if verb == "reduce" else ["--engine", "process"]
    with pytest.raises(SystemExit) as end:
        cli([verb, str(recorder.incidents[0]), *more])
    err = capsys.readouterr().err
    assert end.value.code == 2 and "no batch" in err and len(err.strip().splitlines()) == 1, err


def test_the_first_batch_that_fails_has_no_donor(recorder):
    class Empty(Clips):
        def __getitem__(self, index):
            raise ValueError("no clips")

    with pytest.raises(ValueError):
        loop(recorder, DataLoader(Empty("raise"), batch_size=SIZE))
    incident = Incident.open(recorder.incidents[0])
    assert incident.donor() is None and incident.manifest.step == 1


def test_other_exceptions_of_the_loop_are_left_alone(recorder):
    with pytest.raises(KeyError), recorder:
        raise KeyError("of a logger")
    assert recorder.incidents == []


def test_a_step_that_was_captured_is_not_captured_again(recorder, monkeypatch):
    def step(batch):
        next(iter(DataLoader(Clips("raise"), batch_size=COUNT)))

    recorder._harness.step = step
    with pytest.raises(ValueError), recorder:
        recorder.step(torch.ones(2, 1))
    [path] = recorder.incidents
    assert Incident.open(path).manifest.signature.where == "forward"


def test_a_step_is_not_blamed_for_a_worker_that_died_meanwhile(recorder, monkeypatch):
    monkeypatch.setattr("reprokit.capture.loaders.interrupts", lambda error: isinstance(error, ChildProcessError))
    monkeypatch.setattr("reprokit.capture.loaders.blame", lambda error: {"workers": [{"pid": 77}]})

    def step(batch):
        raise ChildProcessError("DataLoader worker (pid 77) is killed by signal: Killed.")

    recorder._harness.step = step
    with pytest.raises(ChildProcessError), recorder:
        recorder.step(torch.ones(2, 1))
    [path] = recorder.incidents
    assert Incident.open(path).manifest.signature.where == "loader"
