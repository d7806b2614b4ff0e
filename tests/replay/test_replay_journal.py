import json
import os
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from reprokit import _lines
from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.replay.attempts import Halted, Rules, run
from reprokit.replay.draws import Draws
from reprokit.replay.engines.base import Engine
from reprokit.replay.journal import FILE, LOGS, Journal, opened
from reprokit.replay.strata import Attempt
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

ASKED = {"incident": "a" * 64, "rng": "fresh", "case": {"rewind": 0}}
CASE = Case(incident=Path("incident"))
FAIL = Outcome(
    status=Status.FAIL,
    signature=Signature(kind=Kind.NONFINITE_LOSS, where="loss"),
    losses={"loss": float("inf")},
    fingerprint={"losses": "aa"},
    versions={"torch": "2"},
    host="höst",
)
PASS = Outcome(status=Status.PASS, log="said\n", exit_code=0)


class Deciding(Engine):
    """The seed decides: a third of all fail. Interrupts where it is told to."""

    name = "deciding"

    def __init__(self, stop_after=None):
        self.left = stop_after

    def submit(self, case):
        future = Future()
        if self.left == 0:
            future.set_exception(KeyboardInterrupt())
        else:
            future.set_result(FAIL if case.rng % 3 == 0 else PASS)
        self.left = None if self.left is None else self.left - 1
        return future


def rules(journal, n=30):
    return Rules(n=n, estimate=True, draws=Draws(names=("rng",), base=journal.base))


def journalled(folder, n, stop_after=None, resume=False):
    with Journal.open(folder, ASKED, resume=resume) as journal:
        go = lambda: run(CASE, Deciding(stop_after), rules(journal, n), kept=journal.attempts, keep=journal.keep)
        return journal.ended(go)


def test_what_was_kept_is_there_again_to_the_last_bit(tmp_path):
    replay = journalled(tmp_path / "run", 9)
    with Journal.open(tmp_path / "run", ASKED, resume=True) as journal:
        assert tuple(journal.attempts) == replay.attempts and replay.folder == tmp_path / "run"


@pytest.mark.parametrize("stop_after", range(12))
def test_interrupted_anywhere_it_ends_as_if_it_had_not_been(tmp_path, stop_after):
    folder = tmp_path / "run"
    with pytest.raises(Halted) as halted:
        journalled(folder, 12, stop_after)
    assert halted.value.replay.n == stop_after
    assert halted.value.replay.folder == (folder if stop_after else None)
    if not stop_after:
        return  # nothing was known, so nothing is left
    resumed = journalled(folder, 12, resume=True)
    base = json.loads((folder / FILE).read_text().splitlines()[1])["base"]
    whole = run(CASE, Deciding(), Rules(n=12, estimate=True, draws=Draws(names=("rng",), base=base)))
    assert replace(resumed, folder=None) == whole


def test_interrupted_while_the_disk_is_waited_for_it_loses_nothing(tmp_path, monkeypatch):
    def waits(handle, text, *, sync):
        append(handle, text, sync=sync)
        raise KeyboardInterrupt

    append = _lines.append
    monkeypatch.setattr(_lines, "append", waits)
    with pytest.raises(Halted) as halted:
        journalled(tmp_path / "run", 3)
    assert (halted.value.replay.n, halted.value.replay.folder) == (1, tmp_path / "run")
    with Journal.open(tmp_path / "run", ASKED, resume=True) as journal:
        assert tuple(journal.attempts) == halted.value.replay.attempts


def test_killed_at_any_byte_it_goes_on_with_every_attempt_that_was_whole(tmp_path):
    replay = journalled(tmp_path / "whole", 4)
    data = (tmp_path / "whole" / FILE).read_bytes()
    lines = data.splitlines(keepends=True)
    head = len(lines[0]) + len(lines[1])
    folder = tmp_path / "torn"
    folder.mkdir()
    for end in range(head, len(data) + 1):
        (folder / FILE).write_bytes(data[:end])
        whole = data[head:end].count(b"\n")
        with Journal.open(folder, ASKED, resume=True) as journal:
            assert tuple(journal.attempts) == replay.attempts[:whole]
            if end % 37:
                continue  # each one that is kept waits for the disk
            journal.keep(replay.attempts[whole % 4])  # the torn line is gone: what comes next is whole again
        assert len((folder / FILE).read_bytes().splitlines()) == 2 + whole + 1
        assert _lines.parsed((folder / FILE).read_bytes().splitlines(keepends=True)[-1])["attempt"]


def test_a_file_that_is_torn_before_its_first_attempt_is_said_to_be_none(tmp_path):
    journalled(tmp_path / "run", 1)
    data = (tmp_path / "run" / FILE).read_bytes()
    head = sum(map(len, data.splitlines(keepends=True)[:2]))
    for end in (0, 1, head // 2, head - 1):
        (tmp_path / "run" / FILE).write_bytes(data[:end])
        with pytest.raises(BadInput, match=r"not a journal|damaged"):
            Journal.open(tmp_path / "run", ASKED, resume=True)


def test_damage_in_the_middle_is_refused_and_named(tmp_path):
    journalled(tmp_path / "run", 3)
    path = tmp_path / "run" / FILE
    lines = path.read_bytes().splitlines(keepends=True)
    for bad in (b"{}\n", b'{"attempt":{}}\n', lines[3].replace(b'"PASS"', b'"FINE"').replace(b'"FAIL"', b'"FINE"')):
        path.write_bytes(b"".join([*lines[:3], bad, *lines[4:]]))
        with pytest.raises(BadInput, match="line 4 is damaged"):
            Journal.open(tmp_path / "run", ASKED, resume=True)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"rng": "captured"}, "not the same rng"), ({"incident": "b" * 64, "case": {}}, "not the same case, incident")],
)
def test_attempts_of_another_replay_are_not_mixed_in(tmp_path, changed, says):
    journalled(tmp_path / "run", 1)
    with pytest.raises(BadInput, match=says) as refused:
        Journal.open(tmp_path / "run", ASKED | changed, resume=True)
    assert "\n" not in str(refused.value)


def test_a_folder_with_attempts_is_not_written_over_and_one_without_none_is_not_resumed(tmp_path):
    journalled(tmp_path / "run", 1)
    with pytest.raises(BadInput, match="has the attempts of an earlier replay"):
        Journal.open(tmp_path / "run", ASKED)
    with pytest.raises(BadInput, match="no attempts of an earlier replay there"):
        Journal.open(tmp_path / "empty", ASKED, resume=True)
    assert not (tmp_path / "empty").exists()


def test_two_at_once_are_kept_apart(tmp_path):
    with Journal.open(tmp_path / "run", ASKED), pytest.raises(BadInput, match="another replay is at work on it"):
        Journal.open(tmp_path / "run", ASKED, resume=True)


def test_a_folder_that_cannot_be_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="attempts cannot be kept there"):
        Journal.open(tmp_path / "file" / "run", ASKED)


def test_what_cannot_be_written_any_more_costs_no_attempt(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    with Journal.open(tmp_path / "run", ASKED) as journal:
        monkeypatch.setattr(_lines, "append", full)
        replay = run(CASE, Deciding(), rules(journal, 5), keep=journal.keep)
        assert replay.n == 5 and "No space left on device; attempts go on" in journal.broken


def test_logs_lie_beside_it_with_exit_codes_and_without_repeating_themselves(tmp_path):
    died = Outcome(status=Status.OTHER, detail="killed by SIGSEGV", log="last words", exit_code=139)
    with Journal.open(tmp_path / "run", ASKED) as journal:
        for index, outcome in enumerate([died, replace(PASS, detail="said\n"), FAIL]):
            journal.keep(Attempt(index=index, outcome=outcome))
    logs = tmp_path / "run" / LOGS
    assert (logs / "0000.txt").read_text() == "exit code 139\nkilled by SIGSEGV\nlast words\n"
    assert (logs / "0001.txt").read_text() == "exit code 0\nsaid\n\n"
    assert not (logs / "0002.txt").exists()


class Breaking(Engine):
    name = "breaking"

    def __init__(self, error, after=2):
        self.error, self.after = error, after

    def submit(self, case):
        if self.after == 0:
            raise self.error
        self.after -= 1
        future = Deciding().submit(replace(case, rng=0))
        return future


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "reprokit" / "replays"


def places(home):
    return list(home.iterdir()) if home.exists() else []


def test_without_a_place_it_is_kept_in_the_cache_until_it_is_over(home):
    with opened(None, None, ASKED, keep=True, say=pytest.fail) as journal:
        (place,) = places(home)
        replay = journal.ended(lambda: run(CASE, Deciding(), rules(journal, 3), keep=journal.keep))
    assert place.name.startswith("a" * 12) and replay.folder is None and places(home) == []


def test_one_that_did_not_end_can_be_gone_on_with_from_there_and_then_goes(home):
    with opened(None, None, ASKED, keep=True, say=pytest.fail) as journal:
        engine = Breaking(Infrastructure("gone"))
        replay = journal.ended(lambda: run(CASE, engine, rules(journal, 9), keep=journal.keep))
    assert replay.stopped == "infrastructure" and [replay.folder] == places(home)
    with opened(None, replay.folder, ASKED, keep=True, say=pytest.fail) as journal:
        again = journal.ended(lambda: run(CASE, Deciding(), rules(journal, 9), kept=journal.attempts))
    assert again.n == 9 and again.folder is None and places(home) == []


def test_an_error_in_the_middle_says_where_its_attempts_are(home):
    class Refused(Engine):
        name, calls = "refused", 0

        def submit(self, case):
            self.calls += 1
            future = Deciding().submit(replace(case, rng=0))
            if self.calls == 3:
                future = Future()
                future.set_exception(BadInput("incident: changed meanwhile"))
            return future

    with opened(None, None, ASKED, keep=True, say=pytest.fail) as journal, pytest.raises(BadInput) as raised:
        journal.ended(lambda: run(CASE, Refused(), rules(journal, 9), keep=journal.keep))
    (place,) = places(home)
    says = f"incident: changed meanwhile; 2 attempts kept, to go on from there: --resume {place}"
    assert str(raised.value) == says


def test_where_not_one_attempt_ran_nothing_is_left(home):
    engine = Breaking(Infrastructure("no disk"), after=0)
    with opened(None, None, ASKED, keep=True, say=pytest.fail) as journal, pytest.raises(Infrastructure) as raised:
        journal.ended(lambda: run(CASE, engine, rules(journal, 9), keep=journal.keep))
    assert places(home) == [] and "--resume" not in str(raised.value)


def test_a_cache_that_cannot_be_costs_no_replay(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = []
    with opened(None, None, ASKED, keep=True, say=said.append) as journal:
        assert journal.ended(lambda: run(CASE, Deciding(), rules(journal, 3), keep=journal.keep)).n == 3
    assert len(said) == 1 and "this cannot be resumed" in said[0]


def test_what_nobody_came_back_to_goes_after_a_month(home):
    old, new = home / "old", home / "new"
    old.mkdir(parents=True)
    new.mkdir()
    os.utime(old, (time.time() - 31 * 24 * 3600,) * 2)
    opened(None, None, ASKED, keep=True, say=pytest.fail).close()
    assert not old.exists() and new.exists()


def test_one_place_is_enough(tmp_path):
    with pytest.raises(BadInput, match="leave out --out"):
        opened(tmp_path / "a", tmp_path / "b", ASKED, keep=True, say=pytest.fail)


def test_nothing_of_the_users_goes_with_attempts_that_nobody_can_go_on_from(tmp_path):
    """The folder of --out may be one that is there, with logs of training in it."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/train.txt").write_text("precious")
    with Journal.open(tmp_path, ASKED) as journal:
        broke = Attempt(index=0, outcome=Outcome(status=Status.INFRA, detail="lost"), inputs={}, number=0)
        with pytest.raises(ZeroDivisionError):
            journal.ended(lambda: (journal.keep(broke), 1 / 0))
    assert [path.name for path in tmp_path.rglob("*")] == ["logs", "train.txt"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda lines: [*lines[:4], lines[3], *lines[4:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [*lines[:2], *lines[3:]],
        lambda lines: [*lines[:2], *lines[:1:-1]],
        lambda lines: [*lines[:3], lines[3].replace('"number":1', '"number":-1'), *lines[4:]],
        lambda lines: [*lines[:3], lines[3].replace('"inputs":{"rng":', '"inputs":{"rng":[1],"more":'), *lines[4:]],
        lambda lines: [*lines[:3], lines[3].replace('"peak_memory":0', f'"peak_memory":{10**400}'), *lines[4:]],
    ],
    ids=["twice", "the last twice", "one taken out", "another order", "number", "inputs", "beyond all floats"],
)
def test_no_attempt_is_counted_twice_or_from_a_line_that_nobody_wrote(tmp_path, edit):
    journalled(tmp_path / "run", 5)
    file = tmp_path / "run" / FILE
    edited = edit(file.read_text().splitlines(keepends=True))
    assert edited != file.read_text().splitlines(keepends=True)
    file.write_text("".join(edited))
    with pytest.raises(BadInput, match=r"line \d is (damaged|not of attempt \d); give another folder"):
        journalled(tmp_path / "run", 5, resume=True)


def test_a_number_that_is_far_off_costs_nothing(tmp_path):
    journalled(tmp_path / "run", 3)
    file = tmp_path / "run" / FILE
    file.write_text(file.read_text().replace('"number":1', f'"number":{10**15}'))
    assert journalled(tmp_path / "run", 5, resume=True).n == 5
