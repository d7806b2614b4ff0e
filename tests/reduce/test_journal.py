import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.reduce.journal import Journal
from reprokit.reduce.search import drive, one_minimal, smallest

HEADER = {"schema": 1, "incident": "f00d", "options": {"budget": None, "axes": ("b", "t")}}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
outcomes = st.dictionaries(st.text(), values, max_size=4)
some_text = st.text(st.characters(), max_size=8)  # lone surrogates as well, as in paths that are not UTF-8


@pytest.fixture(autouse=True, scope="module")
def synced():
    """The handles that were synced. They are not: no test takes the machine down, and it takes its time."""
    handles = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", handles.append)
        yield handles


@pytest.fixture
def path(tmp_path):
    return tmp_path / "reduction.jsonl"


def journal_at(path, header=HEADER, **options):
    """With answers of any kind."""
    return Journal.open(path, header, **{"read": lambda answer, about: True, **options})


def write(path, count, start=0):
    with journal_at(path) as journal:
        for number in range(start, start + count):
            journal.asking(f"key {number}")
            journal.answered(f"key {number}", {"number": number})


def read(path):
    with journal_at(path) as journal:
        return journal.answers


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(some_text | st.sampled_from("ab"), outcomes), max_size=6))
def test_what_was_answered_is_what_is_read_back_in_order(records):
    with tempfile.TemporaryDirectory() as folder:
        path, expected = Path(folder) / "journal", {}
        with journal_at(path) as journal:
            for key, outcome in records:
                journal.asking(key)
                journal.answered(key, outcome)
                expected.setdefault(key, []).append(outcome)
            assert journal.answers == expected and not journal.broken
        assert read(path) == expected
        assert all(json.loads(line) for line in path.read_text("ascii").splitlines())


def test_every_answer_is_recalled_once_and_new_ones_are_not(path):
    with journal_at(path) as journal:
        for number in range(3):
            journal.answered("trial", {"number": number})
        assert journal.recall("trial") is None and len(journal.answers["trial"]) == 3
    with journal_at(path) as journal:
        journal.answered("trial", {"number": 3})
        assert [journal.recall("trial") for _ in range(4)] == [{"number": 0}, {"number": 1}, {"number": 2}, None]
        assert journal.recall("another") is None


def test_one_sync_before_an_evaluation_puts_all_that_came_before_on_the_disk(path, synced):
    with journal_at(path) as journal:
        del synced[:]
        journal.answered("key", {})
        assert not synced
        journal.asking("another")
        assert len(synced) == 1


def test_what_was_asked_and_never_answered_is_known(path):
    for _ in range(2):
        with journal_at(path) as journal:
            journal.asking("kills the machine")
            journal.asking("fine")
            journal.answered("fine", {})
    with journal_at(path) as journal:
        assert journal.unanswered == {"kills the machine": 2}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused_and_leave_no_trace(path, number):
    with journal_at(path) as journal:
        with pytest.raises(ValueError):
            journal.answered("key", {"loss": number})
        assert journal.answers == {}
    assert read(path) == {}


@settings(max_examples=40, deadline=None)
@given(st.floats(0, 1), st.sampled_from([b"", b"\0\0\0", b'"\n', b"\0\n\0\n\0"]))
def test_cut_anywhere_it_holds_all_whole_records_and_can_be_continued(share, garbage):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        write(path, 4)
        content = path.read_bytes()
        first = content.index(b"\n") + 1
        cut = first + int(share * (len(content) - first))
        path.write_bytes(content[:cut] + garbage)
        answers, whole_lines = read(path), content[: content.rindex(b"\n", 0, cut) + 1]
        assert list(answers) == [f"key {number}" for number in range(whole_lines.count(b'"answered"'))]
        assert path.read_bytes() == whole_lines
        write(path, 1, start=9)
        assert read(path) == answers | {"key 9": [{"number": 9}]}


def test_a_record_damaged_in_the_middle_is_refused_with_its_line(path):
    write(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:-4] + b"\n"
    path.write_bytes(b"".join(lines))
    with pytest.raises(BadInput, match="line 4 is damaged; delete it to start over, or give another --out"):
        journal_at(path)
    assert path.read_bytes() == b"".join(lines)


def test_circumstances_are_noted_when_they_are_others_and_decide_which_answers_are_good(path):
    for timeout in (9, 9, 30):
        with journal_at(path, about={"timeout": timeout}) as journal:
            journal.answered("key", {"number": timeout})
    assert [json.loads(line).get("about") for line in path.read_text().splitlines()] == [
        None, {"timeout": 9}, None, None, {"timeout": 30}, None
    ]  # fmt: skip
    with journal_at(path, about={"timeout": 30}, read=lambda answer, about: about["timeout"] > 9) as journal:
        assert journal.recall("key") == {"number": 30} and journal.recall("key") is None


def test_an_unfinished_result_is_known_again_and_its_name_leads_nowhere_else(path):
    with journal_at(path) as journal:
        for name in ("x-reduced", "x-reduced-2"):
            journal.published("reduction", {"name": name, "id": "f00d"})
        assert journal.unfinished == {"reduction": {"name": "x-reduced-2", "id": "f00d"}}
    with journal_at(path) as journal:
        assert journal.unfinished == {"reduction": {"name": "x-reduced-2", "id": "f00d"}}
        journal.published("reduction", {"name": "../x", "id": "f00d"})
        journal.answered("key", {})
    with pytest.raises(BadInput, match="line 4 is damaged"):
        journal_at(path)


def test_an_answer_that_is_none_is_refused_with_its_line(path):
    write(path, 2)
    with pytest.raises(BadInput, match="line 3 is damaged; delete it to start over"):
        Journal.open(path, HEADER)


@pytest.mark.parametrize(
    ("changed", "named"),
    [({"incident": "beef"}, "incident"), ({"options": {}}, "options"), ({"schema": 2, "more": 1}, "more, schema")],
)
def test_a_journal_of_another_reduction_is_refused_and_kept(path, changed, named):
    write(path, 2)
    before = path.read_bytes()
    with pytest.raises(BadInput, match=f"not the same {named}; delete it to start over, or give another --out$"):
        journal_at(path, HEADER | changed)
    assert path.read_bytes() == before and len(read(path)) == 2


@pytest.mark.parametrize("content", [b"", b"text", b"text\n", b"[]\n", b'{"journal": 1}\n', b'{"a": 1}\n', b"\xff\n"])
def test_what_is_no_journal_is_refused_and_kept(path, content):
    path.write_bytes(content)
    with pytest.raises(BadInput, match="not a journal; give another --out"):
        journal_at(path)
    assert path.read_bytes() == content


def test_a_folder_a_link_a_pipe_or_a_forbidden_place_is_refused_in_one_line(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "link", "pipe", "file/below"):
        with pytest.raises(BadInput, match="give another --out") as error:
            journal_at(tmp_path / name)
        assert "\n" not in str(error.value) and str(tmp_path / name) in str(error.value)


def test_a_second_reduction_is_refused_while_the_first_is_at_work(path):
    with journal_at(path) as journal:
        with pytest.raises(BadInput, match="another reduction is at work on it"):
            journal_at(path)
        journal.answered("key", {})
    assert read(path) == {"key": [{}]}


def test_of_many_that_start_at_once_one_gets_it(path):
    opened, refused = [], []

    def start():
        try:
            opened.append(journal_at(path))
        except BadInput:
            refused.append(1)

    threads = [Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened) == 1 and len(refused) == 7 and os.listdir(path.parent) == [path.name]
    opened[0].close()


def test_threads_may_share_it(path):
    def work(journal, name):
        for number in range(20):
            journal.asking(name)
            journal.answered(name, {"number": number})

    with journal_at(path) as journal:
        threads = [Thread(target=work, args=(journal, name)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert read(path) == {name: [{"number": number} for number in range(20)] for name in "abcd"}


def test_one_that_is_removed_or_closed_is_free_again(path):
    journal = journal_at(path)
    journal.answered("key", {})
    journal.remove()
    journal.close()
    assert not path.exists() and read(path) == {}


def test_folders_are_made_and_no_draft_stays(tmp_path):
    path = tmp_path / "new" / "folder" / "journal"
    assert read(path) == {} and os.listdir(path.parent) == ["journal"]


@contextmanager
def no_file_larger_than(size):
    """As on a full disk: the write that crosses it is cut short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_journal_and_not_the_reduction(path):
    write(path, 2)
    size = path.stat().st_size
    with journal_at(path) as journal:
        with no_file_larger_than(size + 20):
            journal.answered("a key that is too long for what is left", {})
            journal.answered("short", {})
        journal.answered("later", {})
        assert journal.broken.startswith(f"{path}: ") and "\n" not in journal.broken
        assert {"a key that is too long for what is left", "short", "later"} <= journal.answers.keys()
    assert path.stat().st_size == size and list(read(path)) == ["key 0", "key 1"]


def test_a_full_disk_at_the_start_is_said_in_one_line(path):
    with no_file_larger_than(3), pytest.raises(BadInput, match="no journal can be kept there: File too large"):
        journal_at(path)
    assert os.listdir(path.parent) == []


class Killed(Exception):
    pass


def reduction(path, evaluate):
    """A search whose questions are answered from the journal first."""
    with journal_at(path) as journal:

        def fails(kept):
            key = json.dumps(kept)
            if (answer := journal.recall(key)) is None:
                journal.asking(key)
                answer = {"failed": evaluate(kept)}
                journal.answered(key, answer)
            return answer["failed"]

        found = drive(smallest(range(40)), fails)
        return drive(one_minimal(found), fails)


@settings(max_examples=12, deadline=None)
@given(st.sets(st.integers(0, 39), min_size=1, max_size=4), st.integers(1, 7), st.integers(0, 99))
def test_however_often_it_is_interrupted_the_result_is_the_same_and_nothing_is_asked_twice(needed, patience, seed):
    """Answers are those of a noisy predicate: asked again they would differ, and so would the result."""

    def evaluate(kept):
        evaluated.append(kept)
        return needed <= set(kept) or Random(f"{seed} {len(evaluated)}").random() < 0.1

    def impatient(kept):
        nonlocal left
        if not left:
            raise Killed
        left -= 1
        return evaluate(kept)

    with tempfile.TemporaryDirectory() as folder:
        evaluated = []
        expected, once = reduction(Path(folder) / "in one go", evaluate), evaluated
        evaluated, found = [], None
        while found is None:
            left = patience
            try:
                found = reduction(Path(folder) / "in pieces", impatient)
            except Killed:
                continue
        assert found == expected and evaluated == once


WRITER = """
import sys
from pathlib import Path
from reprokit.reduce.journal import Journal

with Journal.open(Path(sys.argv[1]), {"incident": "f00d"}, read=lambda answer, about: True) as journal:
    print("ready", flush=True)
    for number in range(2000):
        key = str(number)
        if journal.recall(key) is None:
            journal.asking(key)
            journal.answered(key, {"number": number, "padding": "x" * (number * 7919 % 60_000)})
"""


@pytest.mark.slow
def test_killed_at_any_instant_it_leaves_a_readable_prefix_and_is_continued(path):
    random, held = Random("kill"), 0
    for kills in range(1, 51):
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE) as writer:
            if random.random() < 0.9:
                writer.stdout.readline()
                enough = path.stat().st_size + random.randrange(200_000)  # bytes: how long a disk takes for them varies
                while path.stat().st_size < enough and writer.poll() is None:
                    pass
            time.sleep(random.random() * 0.005)
            writer.kill()
        with journal_at(path, {"incident": "f00d"}) as journal:
            answers = journal.answers
            assert journal.unanswered.total() <= kills
        assert [outcome["number"] for (outcome,) in answers.values()] == list(range(len(answers)))
        assert len(answers) >= held
        held = len(answers)
    assert held > 50
