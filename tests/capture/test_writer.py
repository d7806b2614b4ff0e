"""What is written, what is not, and who waits for it: limits, modes, counts, and writes that take too long."""

import json
import logging
import signal
import threading
from contextlib import suppress

import pytest
import torch
from torch import nn

import reprokit
from reprokit import tree
from reprokit.capture import counts, disk, snapshot, writer
from reprokit.capture.disk import REST, Disk
from reprokit.errors import BadInput
from reprokit.incident import DRAFT_PREFIX, Incident
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.works import works

TRAIN = """
import torch
from torch import nn
import reprokit

def build(config):
    torch.manual_seed(0)
    net = nn.ModuleDict({"frozen": nn.Linear(512, 64).requires_grad_(False), "head": nn.Linear(64, 1)})
    def step(batch):
        if "raise" in batch:
            raise ValueError(batch["raise"])
        return net["head"](net["frozen"](batch["x"])).pow(2).mean()
    return reprokit.Harness(modules={"net": net}, step=step, layout={"x": "b d", "path": "b"},
                            optimizer=torch.optim.SGD(net["head"].parameters(), lr=0.1, momentum=0.9))
"""
BAD = float("nan")


def batch(value=1.0, **more):
    return {"x": torch.full((4, 512), value), "path": [f"{i}.mp4" for i in range(4)], "id": torch.arange(4), **more}


@pytest.fixture
def recorder(tmp_path):
    """recorder(**options) of a tiny model whose code is a folder of its own."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(TRAIN)
    build = load_entrypoint("train.py:build", tmp_path / "code")
    opened = []

    def make(**options):
        given = {"config": {}, "out": tmp_path / "out", "rehearse": False, "entrypoint": "train.py:build"} | options
        recorder = reprokit.Recorder(build({}), build=build, **given)
        opened.append(recorder.__enter__())
        return recorder

    yield make
    for one in opened:
        one.__exit__(None, None, None)


def run(recorder, *batches):
    """All of them, whatever becomes of it; the incidents that were told of."""
    told = []
    for one in batches:
        try:
            recorder.step(one)
        except reprokit.IncidentCaptured as found:
            told.append(found.path)
        except ValueError:
            told.append(None)
    return told


def incidents(folder):
    return sorted(path for path in (folder / "out").iterdir() if not path.name.startswith("."))


def lines(caplog, *words):
    return [r.message for r in caplog.records if r.levelno >= logging.WARNING and all(w in r.message for w in words)]


def test_a_failure_is_captured_once_and_then_counted(recorder, tmp_path):
    train = recorder()
    told = run(train, batch(), *[batch(BAD)] * 4, batch(**{"raise": "no"}), batch(**{"raise": "no"}))
    first, second = incidents(tmp_path)
    assert told == [first if "nonfinite" in first.name else second] * 4 + [None] * 2
    assert sorted(train.incidents) == [first, second]
    train.__exit__(None, None, None)
    assert counts.seen(Incident.open(told[0])) == {"times": 4, "last": 5}
    other = next(path for path in train.incidents if path != told[0])
    assert counts.seen(Incident.open(other)) == {"times": 2, "last": 7}


def test_another_failure_is_another_incident(recorder, tmp_path):
    run(recorder(), batch(**{"raise": "a"}), batch(**{"raise": "quite another thing"}), batch(BAD))
    assert len(incidents(tmp_path)) == 3


def test_recapture_writes_each(recorder, tmp_path):
    run(recorder(recapture=True), batch(BAD), batch(BAD))
    assert len(incidents(tmp_path)) == 2 and not (tmp_path / "out" / counts.FILE).exists()


def test_past_the_most_incidents_training_goes_on_and_one_line_says_so(recorder, tmp_path, caplog):
    train = recorder(disk=Disk(max_incidents=1), recapture=True)
    assert len(run(train, batch(), *[batch(BAD)] * 4)) == 1 and train.steps == 5
    [line] = lines(caplog, "no further incidents")
    assert "max_incidents" in line


SIZES = {"all": 10**9, "no history": 150_000, "no donor": 143_500, "no state": 20_000, "nothing": 1000}


@pytest.mark.parametrize("room", SIZES)
def test_less_is_written_where_there_is_less_room(recorder, tmp_path, caplog, monkeypatch, room):
    """State 131 kB, batch and donor 8 kB each, anchor 131 kB and more: what is left out follows the order."""
    monkeypatch.setattr(disk, "REST", 0)
    run(recorder(disk=Disk(max_incident_bytes=SIZES[room])), batch(), batch(), batch(BAD))
    said = lines(caplog, "left out, since only")
    assert len(said) == (room != "all") and all("max_incident_bytes" in line for line in said)
    [path] = incidents(tmp_path)
    found = Incident.open(path)
    held = {
        "all": {"history", "donor", "state", "batch"}, "no history": {"donor", "state", "batch"},
        "no donor": {"state", "batch"}, "no state": {"batch"}, "nothing": set(),
    }[room]  # fmt: skip
    assert (found.rewindable() > 0) == ("history" in held)
    assert (found.donor() is not None) == ("donor" in held)
    assert ("state/state.json" in found.manifest.files) == ("state" in held)
    assert ("ranks/00/batch.json" in found.manifest.files) == ("batch" in held)
    assert sum("left out, since only" in line for line in found.manifest.left_out) == (room != "all")
    assert all(works(found)[verb] is None for verb in ("show", "verify"))
    assert (works(found)["replay"] is None) == ({"state", "batch"} <= held)


def test_where_not_even_the_rest_fits_nothing_is_written_and_training_goes_on(recorder, tmp_path, caplog):
    train = recorder(disk=Disk(max_incident_bytes=REST - 1))
    assert run(train, batch(), batch(BAD), batch(BAD), batch()) == [] and train.steps == 4
    assert not (tmp_path / "out").exists() and len(lines(caplog, "no incident of step")) == 1


def test_a_run_has_one_allowance(recorder, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(disk, "REST", 0)
    [one] = run(recorder(out=tmp_path / "measured"), batch(), batch(BAD))
    allowed = int(3.5 * Incident.open(one).size)  # the code in it counts, which is larger on some machines
    run(recorder(disk=Disk(max_run_bytes=allowed), recapture=True), batch(), *[batch(BAD)] * 30)
    found = [Incident.open(path) for path in incidents(tmp_path)]
    assert 1 < len(found) < 30
    assert lines(caplog, "max_run_bytes")
    assert sum(one.size for one in found) < allowed + max(one.size for one in found)


@pytest.mark.parametrize("options", [{"state": "none"}, {"batch": "pointers"}, {"state": "none", "batch": "pointers"}])
def test_less_is_written_where_less_is_asked_for(recorder, tmp_path, capsys, options):
    run(recorder(**options), batch(), batch(BAD))
    [path] = incidents(tmp_path)
    found = Incident.open(path)
    assert {verb for verb, reason in works(found).items() if reason} == {"replay", "reduce", "locate", "triage"}
    assert found.manifest.left_out[0].startswith("replay, reduce, locate, triage do not work here: it holds no ")
    assert found.rewindable() == 0
    if "batch" in options:
        names = tree.load(path / "ranks/00", "pointers")
        assert names == {"x": tree.MISSING, "path": batch()["path"], "id": names["id"]}
        assert names["id"].tolist() == [0, 1, 2, 3]
    assert json.loads((path / "ranks/00/inputs.json").read_text())  # evidence stays
    assert (path / "logs/traceback.txt").exists() and (path / "source/tree/train.py").exists()


@pytest.mark.parametrize("option", ["state", "batch"])
def test_unknown_modes_are_refused(recorder, option):
    with pytest.raises(BadInput, match=f"{option}='some'; expected one of full, "):
        recorder(**{option: "some"})


def test_what_a_checkpoint_holds_is_not_written_again_and_replays_bit_for_bit(recorder, tmp_path):
    train = recorder(state="checkpoint", history=0)
    run(train, batch())
    path = tmp_path / "last.pt"
    torch.save({"model": train._harness.modules["net"].state_dict()}, path)
    train.checkpoint(path)
    [found] = map(Incident.open, run(train, batch(), batch(BAD)))
    held = found.checkpoint()
    assert (held.path, held.step, list(held.trees["state"])) == (str(path), 1, ["parameters.net.frozen.weight"])
    assert (found.path / "state/state.safetensors").stat().st_size < 10_000
    with Session(found) as session:
        outcome = session.evaluate(Case(incident=found.path))
    assert outcome.status is Status.FAIL, outcome.detail
    assert outcome.fingerprint == found.manifest.fingerprint
    torch.save({"model": nn.Linear(512, 64).state_dict()}, path)
    with pytest.raises(BadInput, match="not the checkpoint of step 1"):
        Session(found)
    assert "not the checkpoint of step 1" in works(found)["replay"]


@pytest.mark.parametrize("named", [None, "gone.pt"])
def test_without_a_checkpoint_the_state_is_whole(recorder, tmp_path, caplog, named):
    train = recorder(state="checkpoint")
    if named:
        train.checkpoint(tmp_path / named)
    [path] = run(train, batch(BAD))
    assert Incident.open(path).state()["parameters"]["net.frozen.weight"].shape == (64, 512)
    assert len(lines(caplog, "the state is written whole")) == 1


class Holder:
    """Takes a state that has no form on disk."""

    def state_dict(self):
        return {"n": 1, "lock": Odd()}

    def load_state_dict(self, state): ...


class Odd:
    def __deepcopy__(self, memo):
        return self


def test_a_state_that_has_no_form_is_left_out_and_named(recorder, tmp_path, caplog):
    train = recorder()
    train._harness.extra_state = {"odd": Holder()}
    [path] = run(train, batch(BAD))
    assert len(lines(caplog, "its state is left out", "['odd']['lock']")) == 1
    found = Incident.open(path)
    assert "no state" in works(found)["replay"]
    assert any("Odd cannot be stored" in one for one in found.manifest.left_out)


@pytest.fixture
def held(monkeypatch):
    """held(name) -> an event: the first write stands still before that part until it is set. When it has come there,
    its time is over."""
    events = []

    def hold(name):
        go, there, part, wait = threading.Event(), threading.Event(), getattr(snapshot, name), writer._is_over

        def held(*args):
            there.set()
            assert go.wait(60)
            return part(*args)

        def waits(over, *within):
            return wait(over, 60) if go.is_set() or not within else not there.wait(60)

        monkeypatch.setattr(snapshot, name, held)
        monkeypatch.setattr(writer, "_is_over", waits)
        events.append(go)
        return go

    yield hold
    for one in events:
        one.set()


def test_a_write_that_takes_too_long_goes_on_beside_training(recorder, tmp_path, caplog, held):
    go = held("_write_state")
    train, bad = recorder(disk=Disk(write_within=0.5)), batch(BAD)
    assert run(train, batch(), bad) == []  # training goes on
    assert len(lines(caplog, "takes over 0.5 s")) == 1
    bad["x"].fill_(7)
    assert run(train, batch(**{"raise": "no"})) == [None]
    assert len(lines(caplog, "is still being written")) == 1
    assert train.incidents == []
    go.set()
    train._writer.finish()
    [path] = incidents(tmp_path)
    assert train.incidents == [path]
    found = Incident.open(path)
    assert found.manifest.step == 2 and found.batch()["x"].isnan().all()
    assert run(train, batch(BAD)) == [path]  # and now it is known


def test_a_write_that_still_shares_batches_when_its_time_is_over_leaves_nothing(recorder, tmp_path, caplog, held):
    go = held("write_batches")
    train = recorder(disk=Disk(write_within=0.2))
    assert run(train, batch(), batch(BAD)) == []
    go.set()
    train._writer.finish()
    assert list((tmp_path / "out").iterdir()) == [] and train.incidents == []
    assert len(lines(caplog, "no incident of step 2", "write_within")) == 1
    assert len(run(train, batch(BAD))) == 1  # the next one may be in time


def test_a_write_that_fails_beside_training_is_one_line(recorder, tmp_path, caplog, held, monkeypatch):
    go = held("_write_state")
    train = recorder(disk=Disk(write_within=0.2))
    run(train, batch(BAD))

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot.source, "archive", full)
    go.set()
    train._writer.finish()
    assert list((tmp_path / "out").iterdir()) == []
    assert len(lines(caplog, "no incident could be written", "No space left")) == 1
    assert run(train, batch(**{"raise": "no"}), batch()) == [None]
    assert len(lines(caplog, "no incident could be written")) == 1


def test_who_has_waited_for_a_write_knows_of_it_and_a_signal_that_waits_is_not_kept_by_a_tracker(recorder, held):
    go, asked, answer = held("_write_state"), threading.Event(), threading.Event()

    def slow(incident):
        asked.set()
        assert answer.wait(60)

    train = recorder(disk=Disk(write_within=0.2), on_incident=slow)
    assert run(train, batch(BAD)) == []
    go.set()
    assert asked.wait(60)
    train._writer.wait()  # it is written
    waits = threading.Thread(target=train._writer.finish)
    waits.start()
    waits.join(0.5)
    assert waits.is_alive()  # and not known to all
    answer.set()
    waits.join(60)
    assert not waits.is_alive() and len(train.incidents) == 1


def test_training_is_over_when_its_incident_is_written(recorder, tmp_path, held):
    go = held("_write_state")
    train = recorder(disk=Disk(write_within=0.1))
    run(train, batch(BAD))
    threading.Timer(0.3, go.set).start()
    train.__exit__(None, None, None)
    assert len(incidents(tmp_path)) == 1


def test_an_incident_has_telemetry(recorder, tmp_path):
    train = recorder()
    [path] = run(train, batch(BAD))
    text = (path / "telemetry.jsonl").read_text()
    assert all(json.loads(line)["rss"] > 0 for line in text.splitlines())


def test_drafts_of_the_dead_are_swept_when_a_run_begins(recorder, tmp_path):
    import os

    left = tmp_path / "out" / f"{DRAFT_PREFIX}left"
    left.mkdir(parents=True)
    (left / "state").mkdir()
    os.utime(left, (1, 1))
    recorder()
    assert not left.exists()


@pytest.mark.parametrize("verb", [("replay",), ("locate",), ("reduce", "-o", "there")])
def test_verbs_that_cannot_work_say_so_in_one_line(recorder, tmp_path, cli, verb):
    [path] = run(recorder(batch="pointers"), batch(BAD))
    code, _, err = cli(verb[0], path, *verb[1:])
    assert code == 2 and f"{verb[0]} does not work here: it holds no batch" in err and err.count("\n") == 1


def test_show_says_what_works_and_how_often_it_was_seen(recorder, tmp_path, cli, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    train = recorder(state="none")
    [path, *_] = run(train, batch(), batch(BAD), batch(BAD), batch(BAD))
    train.__exit__(None, None, None)
    capsys.readouterr()
    code, out, _ = cli("show", path)
    assert code == 0 and "3 times, last at step 4" in out and "reduce: it holds no state of the model" in out
    assert "next: reprokit bundle" in out
    found = json.loads(cli("show", path, "--json")[1])
    assert found["seen"] == {"times": 3, "last": 4} and found["works"]["show"] is None and found["works"]["replay"]
    assert cli("bundle", path, "-o", tmp_path / "bundle.tar.zst")[0] == 0
    assert cli("verify", tmp_path / "bundle.tar.zst")[0] == 0


def test_a_signal_that_waits_for_a_write_may_come_at_any_instant_of_it(recorder, tmp_path):
    """Also while the step that waits for the write holds what its waiting needs."""
    train = recorder(recapture=True)
    heard, inside = [], []

    def finish(number, frame):
        if not inside:
            inside.append(number)
            train._writer.finish()
            heard.append(inside.pop())

    before = signal.signal(signal.SIGALRM, finish)
    try:
        with train:
            train.step(batch())
            signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
            for _ in range(10):
                with suppress(reprokit.IncidentCaptured):
                    train.step(batch(BAD))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard and len(train.incidents) == 10


@pytest.mark.parametrize("instant", ["before it begins", "when it has begun"])
def test_a_signal_that_comes_while_a_write_begins_waits_for_it_and_for_nothing_that_waits_for_the_signal(
    recorder, monkeypatch, instant
):
    train, start, seen = recorder(), threading.Thread.start, []

    def starting(thread):
        writes = thread.name == "reprokit writer"
        if instant == "before it begins" and writes:
            train._writer.wait()  # as a handler would
        start(thread)
        if instant == "when it has begun" and writes:
            assert there.wait(60)
            threading.Timer(0.2, go.set).start()
            train._writer.wait()
            seen.append([path.name[0] for path in train._writer._run.out.iterdir()])

    there, part, go = threading.Event(), snapshot._write_state, threading.Event()
    monkeypatch.setattr(snapshot, "_write_state", lambda *args: (there.set(), go.wait(60), part(*args))[2])
    if instant == "before it begins":
        go.set()
    monkeypatch.setattr(threading.Thread, "start", starting)
    assert len(run(train, batch(BAD))) == 1
    assert not seen or seen == [["2"]]  # it is whole, and no draft


def test_where_no_thread_can_be_started_nothing_is_written_and_training_goes_on(recorder, caplog, monkeypatch):
    def none(thread):
        raise RuntimeError("can't start new thread")

    train = recorder()
    with train:
        train.step(batch())
        monkeypatch.setattr(threading.Thread, "start", none)
        train.step(batch(BAD))
        monkeypatch.undo()
    assert train.incidents == [] and not train._writer.busy()
    assert "no incident could be written" in caplog.text and "can't start new thread" in caplog.text
