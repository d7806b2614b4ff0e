"""The engine's bookkeeping, with homes that are folders: which parent a case gets, and what becomes of each end."""

import json
import os
import subprocess
import sys

import pytest
from docker.errors import NotFound

from reprokit.failure import Kind
from reprokit.replay import homes as homes_of_forks
from reprokit.replay.engines import fork
from reprokit.replay.engines.fork import Fork
from reprokit.step import forks
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status


class Folder:
    """A home that answers each request at once, as it is told to."""

    def __init__(self, folder, answer):
        self.folder, self.answer = folder, answer
        folder.mkdir()
        self.ready, self.closed, self.asked = True, False, []

    def ask(self, line):
        self.asked.append(line)
        verb, number = line.split()
        self.answer(self, verb, self.folder / number)

    def ended(self):
        return None

    def close(self):
        self.closed = True


def told(folder, **ended):
    (folder / forks.ENDED).write_text(json.dumps(ended))


def passes(home, verb, folder):
    (folder / forks.OUTCOME).write_text(json.dumps(Outcome(status=Status.PASS).to_json()))
    (folder / forks.LOG).write_text("said \x1b[2Jso")
    told(folder, code=0, starved=False)


@pytest.fixture
def homes(monkeypatch, tmp_path):
    """homes(answer) makes all homes that are opened from now on answer so; it lists them."""
    opened = []

    def answering(answer):
        def open_one(self, case):
            opened.append(Folder(tmp_path / f"home{len(opened)}", answer))
            return opened[-1]

        monkeypatch.setattr(Fork, "_home", open_one)
        return opened

    return answering


@pytest.fixture
def ask(make_incident):
    """ask(engine, case changes) -> Outcome; `ask.engine(**options)` opens one."""
    incident = make_incident()

    def submit(engine, **changes):
        return engine.submit(Case(incident=incident.path, **changes)).result(timeout=60)

    submit.engine = lambda **options: Fork(incident, jobs=1, **options)
    return submit


def seed(value):
    return Variant(env={"PYTHONHASHSEED": value})


def test_a_parent_serves_all_cases_of_its_environment_and_one_idle_parent_is_kept(homes, ask):
    opened = homes(passes)
    with ask.engine() as engine:
        for variant in (Variant(), seed("1"), seed("1"), seed("2")):
            assert ask(engine, variant=variant).status is Status.PASS
        assert [len(home.asked) for home in opened] == [1, 2, 1]
        assert [home.closed for home in opened] == [True, True, False]
        assert not list(opened[1].folder.iterdir())  # folders of attempts go with them
    assert opened[-1].closed


def test_what_it_printed_and_how_it_ended_is_kept(homes, ask):
    homes(passes)
    with ask.engine() as engine:
        outcome = ask(engine)
    assert outcome.log == "said [2Jso" and outcome.exit_code == 0 and outcome.host


@pytest.mark.parametrize(
    ("ended", "begun", "status", "says"),
    [
        ({"code": 139, "starved": False}, True, Status.OTHER, "SIGSEGV"),
        ({"code": 137, "starved": False}, True, Status.INFRA, "killed from outside"),
        ({"code": 137, "starved": True}, True, Status.INFRA, "out of memory"),
        ({"code": 1, "starved": False}, False, Status.INFRA, "before the step"),
        ({"code": None, "why": "what watched over\x1b[2J it was killed"}, True, Status.INFRA, "over[2J it was killed"),
        ({"code": True}, True, Status.INFRA, "how it ended is not known"),
        ([], True, Status.INFRA, "how it ended is not known"),
    ],
)
def test_each_end_without_an_outcome(homes, ask, ended, begun, status, says):
    def dies(home, verb, folder):
        if begun:
            (folder / "outcome.begun").touch()
        (folder / forks.ENDED).write_text(json.dumps(ended))

    homes(dies)
    with ask.engine() as engine:
        outcome = ask(engine)
    assert outcome.status is status and says in outcome.detail


def test_an_attempt_that_is_overdue_is_killed_or_its_parent_is(homes, ask, monkeypatch):
    monkeypatch.setattr(fork, "_GRACE", 0.3)

    def hangs(home, verb, folder):
        (folder / "outcome.begun").touch()
        if verb == "kill" and home.obeys:
            told(folder, code=137, starved=False)

    monkeypatch.setattr(Folder, "obeys", True, raising=False)
    opened = homes(hangs)
    with ask.engine(timeout=0.2) as engine:
        outcome = ask(engine)
        assert outcome.status is Status.OTHER and outcome.signature.kind is Kind.HANG and outcome.exit_code is None
        assert opened[0].asked == ["run 0", "kill 0"] and not opened[0].closed
        opened[0].obeys = False
        assert ask(engine).signature.kind is Kind.HANG
        assert opened[0].closed
        ask(engine)
    assert len(opened) == 2


def test_a_container_that_cannot_be_found_again_is_given_up(homes, ask, monkeypatch):
    monkeypatch.setattr(fork, "_LOOK_AT_HOME", 0.01)

    def gone():
        raise NotFound("No such container")

    opened = homes(lambda home, verb, folder: None)
    with ask.engine() as engine:
        monkeypatch.setattr(Folder, "ended", lambda self: gone())
        outcome = ask(engine)
        assert outcome.status is Status.INFRA and "No such container" in outcome.detail and opened[0].closed
        homes(passes)
        assert ask(engine).status is Status.PASS
    assert len(opened) == 2


def test_a_parent_that_does_not_come_up_says_why(homes, ask, monkeypatch):
    opened = homes(passes)
    monkeypatch.setattr(Folder, "ended", lambda self: "exited with 1\nNo module named torch")
    with ask.engine() as engine:
        monkeypatch.setattr(Folder, "__init__", unready(Folder.__init__))
        outcome = ask(engine)
    assert outcome.status is Status.INFRA and "No module named torch" in outcome.detail and opened[0].closed


def unready(made):
    def make(self, *arguments):
        made(self, *arguments)
        self.ready = False

    return make


@pytest.mark.slow
def test_a_parent_whose_asker_was_killed_while_it_imported_ends(tmp_path):
    """Nobody has the other end of its FIFO any more when it comes to open it."""
    os.mkfifo(tmp_path / forks.FIFO)
    done = subprocess.run([sys.executable, *forks.COMMAND, str(tmp_path)], timeout=200, stdin=subprocess.DEVNULL)
    assert done.returncode == 0


def test_a_parent_gets_the_time_that_it_may_take_to_end_all():
    """Killed before, it would leave what had left its group: it alone knows of that."""
    assert homes_of_forks._PARTING > 2 * forks.PATIENCE


def test_a_link_in_place_of_an_answer_is_not_followed(homes, ask, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(Outcome(status=Status.PASS).to_json()))
    (tmp_path / "mine.txt").write_text("secret")

    def links(home, verb, folder):
        os.symlink(tmp_path / "mine.json", folder / forks.OUTCOME)
        os.symlink(tmp_path / "mine.txt", folder / forks.LOG)
        os.symlink(tmp_path / "mine.json", folder / forks.ENDED)

    homes(links)
    with ask.engine() as engine:
        outcome = ask(engine)
    assert outcome.status is Status.INFRA and "secret" not in json.dumps(outcome.to_json())
