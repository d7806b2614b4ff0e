"""A triage that was interrupted goes on with every attempt that it made, and comes to the same end."""

from concurrent.futures import Future

import pytest

from reprokit.errors import BadInput
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.inline import Inline
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status
from reprokit.triage.kept import FILE, Kept, opened
from reprokit.triage.triage import triage

ASKED = {"incident": "a" * 64, "timeout": 900.0}
CASES = [Case(incident="incident", rng=seed) for seed in (None, 1, 2)]
ORDER = [CASES[i] for i in (0, 1, 0, 2, 1, 0)]


class Counting(Engine):
    """Another loss for each attempt. breaks: the attempts that the machinery spoils."""

    name = "counting"

    def __init__(self, breaks=()):
        self.made, self.breaks = 0, breaks

    def submit(self, case):
        self.made += 1
        future = Future()
        status = Status.INFRA if self.made in self.breaks else Status.PASS
        future.set_result(Outcome(status=status, losses={"loss": float(self.made)}))
        return future


def ask(folder, engine, cases, *, resume=False, said=None, stop=None):
    """The outcomes of these cases, one after the other; interrupted by `stop`."""
    say = (said if said is not None else []).append
    with Kept.open(folder, ASKED, say, resume=resume, passing=False) as kept:
        around = kept.around(engine)
        found = [around.submit(case).result() for case in cases]
        if stop:
            raise stop
    return found


@pytest.mark.parametrize("cut", range(len(ORDER) + 1))
def test_cut_anywhere_it_goes_on_with_what_is_kept(tmp_path, cut):
    said = []
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path / "run", Counting(), ORDER[:cut], said=said, stop=KeyboardInterrupt())
    assert bool(said) == bool(cut) and all(f"{cut} attempts kept" in line and "--resume" in line for line in said)
    engine = Counting()
    found = ask(tmp_path / "run", engine, ORDER, resume=True)
    assert engine.made == len(ORDER) - cut
    assert [one.losses["loss"] for one in found[:cut]] == list(range(1, cut + 1))


def test_what_the_machinery_spoiled_is_made_again(tmp_path):
    first = ask(tmp_path / "run", Counting(breaks={2}), ORDER[:3])
    assert [one.status for one in first] == [Status.PASS, Status.INFRA, Status.PASS]
    engine = Counting()
    again = ask(tmp_path / "run", engine, ORDER[:3], resume=True)
    assert engine.made == 1 and {one.status for one in again} == {Status.PASS}


def test_torn_at_any_byte_it_keeps_what_is_whole(tmp_path):
    ask(tmp_path / "run", Counting(), ORDER[:2])
    path = tmp_path / "run" / FILE
    data = path.read_bytes()
    head = data.splitlines(keepends=True)[0]
    for end in range(len(head), len(data)):
        path.write_bytes(data[:end])
        engine = Counting()
        ask(tmp_path / "run", engine, ORDER[:2], resume=True)
        assert engine.made == 2 - data[len(head) : end].count(b"\n")
        assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [lines[0], b"{}\n", *lines[2:]], "line 2 is damaged"),
        (lambda lines: [lines[0], lines[1].replace(b'"PASS"', b'"FINE"'), *lines[2:]], "line 2 is damaged"),
        (lambda lines: [b"[]\n", *lines[1:]], "not a journal of a triage"),
        (lambda lines: [], "not a journal of a triage"),
        (lambda lines: [lines[0].replace(b"900.0", b"5.0"), *lines[1:]], "not the same timeout"),
    ],
)
def test_damage_and_another_triage_are_refused(tmp_path, change, says):
    ask(tmp_path / "run", Counting(), ORDER[:2])
    path = tmp_path / "run" / FILE
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(BadInput, match=says):
        ask(tmp_path / "run", Counting(), ORDER, resume=True)


def test_a_folder_is_neither_written_over_nor_gone_on_with_where_there_is_nothing(tmp_path):
    with pytest.raises(BadInput, match="no attempts of an earlier triage"):
        ask(tmp_path / "run", Counting(), ORDER, resume=True)
    ask(tmp_path / "run", Counting(), ORDER)
    with pytest.raises(BadInput, match="--resume it"):
        ask(tmp_path / "run", Counting(), ORDER)
    with pytest.raises(BadInput, match="leave out --out"):
        opened(tmp_path / "a", tmp_path / "run", ASKED, keep=True, say=print)


def test_without_a_place_it_lies_in_the_cache_until_it_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    lies = lambda: list(tmp_path.rglob(FILE))
    with opened(None, None, ASKED, keep=True, say=print) as kept:
        kept.around(Counting()).submit(CASES[0]).result()
        assert len(lies()) == 1
    assert not lies()
    with opened(None, None, ASKED, keep=False, say=print) as kept:
        assert kept.around(Counting()).submit(CASES[0]).result().status is Status.PASS and not lies()


def test_one_error_says_where_to_go_on(tmp_path):
    with pytest.raises(BadInput, match="no more; 2 attempts kept, to go on from there: --resume"):
        ask(tmp_path / "run", Counting(), ORDER[:2], stop=BadInput("no more"))


class Breaking(Engine):
    """Around an engine, interrupted at the nth case."""

    def __init__(self, inner, at):
        self.inner, self.left = inner, at
        self.name, self.capacity = inner.name, inner.capacity

    def submit(self, case):
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.inner.submit(case)


def test_a_whole_triage_that_was_interrupted_comes_to_the_same_end(make_incident, tmp_path):
    incident = make_incident("x = x * (float('nan') if torch.rand(1) > 0.5 else 1.0)")
    case, only = Case(incident=incident.path), ("rng", "threads", "clock")

    def ended(at, resume):
        with Inline(incident) as engine, Kept.open(tmp_path, ASKED, print, resume=resume, passing=False) as kept:
            breaking = Breaking(engine, at)
            return triage(incident, case, kept.around(breaking), only=only), at - breaking.left

    with Inline(incident) as engine:
        whole = triage(incident, case, engine, only=only)
    counts = lambda found: [(one.factor.name, [tally.to_json() for tally in one.tallies]) for one in found.findings]
    resume = False
    for at in (4, 3):
        with pytest.raises(KeyboardInterrupt):
            ended(at, resume)
        resume = True
    again, made = ended(1000, resume)
    assert (again.answer(), counts(again)) == (whole.answer(), counts(whole)) and made > 0
    _, made = ended(1000, True)
    assert made == 0
