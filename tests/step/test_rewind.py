"""A case that goes back in history: which steps run, on what, from which state."""

import json
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprokit import tree
from reprokit.capture.recorder import IncidentCaptured, Recorder
from reprokit.cli.main import run as cli
from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.layout import Layout
from reprokit.step import rewind
from reprokit.step.case import Case
from reprokit.step.evaluate import Session
from reprokit.step.load import load_entrypoint
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker

HERE = Path("incident")
LAYOUT = Layout.parse({"x": "b d"})


# --- pure: which step gets which case


def test_the_axis_is_s_unless_the_layout_has_one():
    assert rewind.axis(LAYOUT) == "s"
    assert rewind.axis(Layout.parse({"x": "s b d"})) == "step"
    assert rewind.axis(Layout.parse("s step")) == "history"


@given(st.integers(1, 6).flatmap(lambda r: st.tuples(st.just(r), st.sets(st.integers(0, r - 1)))))
def test_steps_that_are_kept_get_the_rest_of_the_case(case):
    rewound, kept = case
    keep = {"s": (*sorted(kept), rewound), "b": (0, 2)}
    parts = rewind.split(Case(incident=HERE, rewind=rewound, keep=keep), LAYOUT)
    assert [i for i, part in enumerate(parts) if part is not None] == [*sorted(kept), rewound]
    assert all(part.keep == {"b": (0, 2)} and part.rewind == 0 for part in parts if part is not None)


@given(st.integers(1, 6), st.sets(st.integers(0, 6)))
def test_a_cell_heals_the_steps_that_it_names_and_without_the_axis_all(rewound, named):
    named = {i for i in named if i <= rewound}
    cells = ({"s": tuple(named), "b": (1,)}, {"d": (0,)})
    parts = rewind.split(Case(incident=HERE, rewind=rewound, heal=cells), LAYOUT)
    for i, part in enumerate(parts):
        assert part.heal == (({"b": (1,)}, {"d": (0,)}) if i in named else ({"d": (0,)},))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keep": {"s": (0, 1)}}, "axis 's' must keep the failing step, 2"),
        ({"keep": {"s": (1, 0, 2)}}, "and the order"),
        ({"keep": {"s": (1, 1, 2)}}, "and the order"),
        ({"keep": {"s": ()}}, "must keep the failing step"),
        ({"keep": {"s": (2, 3)}}, r"3 is no index of axis 's' \(history steps\); expected 0 to 2"),
        ({"heal": ({"s": (-1,)},)}, "-1 is no index of axis 's'"),
        ({"stack": ({"b": (0,)},)}, "stack without rewinding"),
    ],
)
def test_what_makes_no_case_is_said_in_one_line(change, says):
    with pytest.raises(BadInput, match=says):
        rewind.split(Case(incident=HERE, rewind=2, **change), LAYOUT)


def moment(number, rows):
    return rewind.Moment(number=number, batch=tree.pack({"x": torch.zeros(rows, 2)}), rng={}, micro=0)


def test_steps_of_other_sizes_are_cut_only_along_axes_that_agree():
    moments = [moment(7, 3), moment(8, 4)]
    whole = rewind.steps(Case(incident=HERE, rewind=1), LAYOUT, moments, lambda case, batch: batch)
    assert [len(step.batch["x"]) for step in whole] == [3, 4] and [step.distance for step in whole] == [1, 0]
    rewind.steps(Case(incident=HERE, rewind=1, keep={"x.d": (0,)}), LAYOUT, moments, lambda case, batch: batch)
    for change in ({"keep": {"b": (0,)}}, {"heal": ({"s": (1,), "b": (0,)},)}):
        with pytest.raises(BadInput, match="axis 'b' is 3 long in step 7 and 4 in the failing one"):
            rewind.steps(Case(incident=HERE, rewind=1, **change), LAYOUT, moments, lambda case, batch: batch)
    dropped = Case(incident=HERE, rewind=1, keep={"b": (0,), "s": (1,)})
    assert rewind.steps(dropped, LAYOUT, moments, lambda case, batch: batch)[0].dropped


@pytest.mark.parametrize(
    ("asked", "held", "says"),
    [(-1, 3, "expected how many steps"), (4, 3, "goes back 3 steps; rewind 3 at most"), (1, 0, "is empty")],
)
def test_how_far_one_can_go_is_said(asked, held, says):
    incident = SimpleNamespace(name="nan-step9", rewindable=lambda: held)
    with pytest.raises(BadInput, match=says):
        rewind.check(incident, asked)


# --- with an incident: a teacher that is poisoned steps before anybody sees it

TEACHER = """
import copy
import torch
from torch import nn
import reprokit


class Center:  # no module: nobody looks for bad values in it
    def __init__(self):
        self.mean = torch.zeros(2)

    def state_dict(self):
        return {"mean": self.mean}

    def load_state_dict(self, state):
        self.mean = state["mean"]


def build(config):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 2))
    teacher = copy.deepcopy(net).requires_grad_(False)
    center = Center()

    def step(batch):
        use = optimizer.param_groups[0]["use"]
        out = net(batch["x"])
        with torch.no_grad():
            target = teacher(batch["x"])
            center.mean.lerp_(target.mean(0), 0.1)
        loss = (out - (center.mean if use else 0.0)).pow(2).mean()
        if not loss.isfinite() and not use:  # the user's guard: the step is skipped, and the center is not
            loss = sum((p * 0.0).sum() for p in net.parameters())
        return {"loss": loss, "size": out.detach().nan_to_num().abs().mean()}

    optimizer = torch.optim.AdamW(net.parameters())
    optimizer.param_groups[0]["use"] = False
    return reprokit.Harness(modules={"net": net, "teacher": teacher}, optimizer=optimizer,
                            step=step, layout={"x": "b d"}, extra_state={"center": center})
"""
FAILS, POISONED = 7, 4


def teaching(step):
    x = torch.rand(5, 3, generator=torch.Generator().manual_seed(step))
    if step == POISONED:
        x[2] = float("nan")
    return {"x": x}


@pytest.fixture(scope="module")
def poisoned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    (folder / "train_teacher.py").write_text(TEACHER)
    build = load_entrypoint("train_teacher:build", folder)
    harness = build({})
    recorder = Recorder(harness, build=build, config={}, out=folder / "out", rehearse=False, history=5)
    for step in range(1, FAILS + 1):
        harness.optimizer.param_groups[0]["use"] = step == FAILS  # the loop's, as a scheduler's rate would be
        with suppress(IncidentCaptured):
            recorder.step(teaching(step))
    return Incident.open(recorder.incidents[0])


@pytest.fixture
def asked(poisoned):
    with Session(poisoned) as session:
        yield lambda **change: session.evaluate(Case(incident=poisoned.path, **change))


def test_the_failure_comes_again_from_every_step_before(poisoned, asked):
    assert poisoned.manifest.step == FAILS and poisoned.rewindable() >= 5
    for back in range(poisoned.rewindable() + 1):
        outcome = asked(rewind=back)
        assert outcome.status is Status.FAIL, outcome.detail
        assert outcome.fingerprint == poisoned.manifest.fingerprint, back
    assert asked(rewind=2, rng=11).status is Status.FAIL  # another seed, the same poison
    assert asked(rewind=2, rng=11).fingerprint == asked(rewind=2, rng=11).fingerprint


def test_the_cause_is_outside_without_rewinding_and_inside_with_it(asked):
    assert asked(heal=({},)).status is Status.FAIL  # the center is poisoned already: nothing in the batch to blame
    assert asked(rewind=2, heal=({},)).status is Status.FAIL
    assert asked(rewind=3, heal=({},)).status is Status.PASS
    assert asked(rewind=3, heal=({"s": (0,)},)).status is Status.PASS
    assert asked(rewind=3, heal=({"s": (1, 2, 3)},)).status is Status.FAIL
    assert asked(rewind=3, heal=({"s": (0,), "b": (2,)},)).status is Status.PASS
    assert asked(rewind=3, heal=({"s": (0,), "b": (0, 1)},)).status is Status.FAIL
    assert asked(rewind=3, heal=({"b": (2,)},)).status is Status.PASS


def test_steps_are_dropped_and_samples_cut(asked):
    assert asked(rewind=3, keep={"s": (0, 3)}).status is Status.FAIL
    assert asked(rewind=3, keep={"s": (1, 2, 3)}).status is Status.PASS
    smallest = asked(rewind=3, keep={"s": (0, 3), "b": (2,)}, thorough=False)
    assert smallest.status is Status.FAIL and list(smallest.fingerprint) == ["losses"]
    assert asked(rewind=3, keep={"s": (0, 3), "b": (0, 1)}).status is Status.PASS


def test_the_donor_is_from_before_all_steps(poisoned, asked):
    assert asked(rewind=3, content="donor").status is Status.PASS
    assert torch.equal(poisoned.donor()["x"], teaching(FAILS - 1)["x"])
    assert asked(rewind=2, content="donor").status is Status.FAIL  # the donor is healed into poisoned state
    oldest = poisoned.rewindable()
    first = FAILS - oldest
    if first > 1:
        assert torch.equal(poisoned.donor_before()["x"], teaching(first - 1)["x"])


def test_a_step_that_is_under_suspicion_is_no_donor():
    about = {"micro": 0, "rng": {}, "after": [], "dropped": False}
    held = [{**about, "step": i, "donor": i != 6, "batch": {"x": i}} for i in (5, 6, 7)]
    incident = SimpleNamespace(history=lambda: held, donor_before=lambda: {"x": 4}, rewindable=lambda: 3)
    history = rewind.History(incident, moment(8, 1), tree.pack({"x": 7}), {})
    assert [tree.unpack(history.donor(back))["x"] for back in (0, 1, 2, 3)] == [7, 5, 5, 4]


def test_what_cannot_be_rewound_is_invalid(poisoned, asked):
    outcome = asked(rewind=poisoned.rewindable() + 1)
    assert outcome.status is Status.INVALID and "at most" in outcome.detail and "\n" not in outcome.detail
    assert asked(keep={"s": (0,)}).status is Status.INVALID  # the axis is there only where one goes back


def test_one_session_answers_the_same_whatever_was_asked_before(poisoned, asked):
    cases = [{"rewind": 3}, {"rewind": 3, "heal": ({"s": (0,)},)}, {}, {"rewind": 2, "keep": {"s": (1, 2)}}]
    twice = [[asked(**case).fingerprint for case in order] for order in (cases, cases[::-1])]
    assert twice[0] == twice[1][::-1]
    with Session(poisoned) as fresh:
        again = fresh.evaluate(Case(incident=poisoned.path, rewind=2, keep={"s": (1, 2)}), "rebuild")
    assert again.fingerprint == twice[0][3]


def test_a_step_that_fails_before_its_time_is_the_outcome(asked):
    outcome = asked(rewind=3, keep={"s": (0, 1, 2, 3), "x.d": (0, 1)})  # no step can run without a column
    assert outcome.status is Status.OTHER and outcome.signature.exception == "RuntimeError"
    assert "mat1 and mat2" in outcome.detail


# --- the verb


def replay(capsys, *words):
    """Exit code, stdout, stderr."""
    with pytest.raises(SystemExit) as end:
        cli(["replay", *map(str, words)])
    said = capsys.readouterr()
    return end.value.code, said.out, said.err


@pytest.mark.parametrize(("steps", "says"), [("0", "--rewind"), ("-1", "--rewind"), ("99", "rewind 99: the history")])
def test_a_rewind_that_cannot_be_is_one_line_and_exit_2(capsys, poisoned, steps, says):
    code, _, err = replay(capsys, poisoned.path, f"--rewind={steps}", "--engine", "inline")
    assert (code, len(err.strip().splitlines())) == (2, 1)
    assert says in err and "Traceback" not in err


def test_replay_goes_back(capsys, poisoned):
    code, out, _ = replay(capsys, poisoned.path, "--rewind", 3, "-n", 2, "--engine", "inline", "--json")
    found = json.loads(out)
    assert (code, found["verdict"], found["fail"]) == (0, "REPRODUCIBLE", 2)


@pytest.mark.slow
def test_a_fresh_process_goes_back_as_well(poisoned):
    with Worker(poisoned) as worker:
        outcome = worker.evaluate(Case(incident=poisoned.path, rewind=3), "process", timeout=120)
    assert outcome.status is Status.FAIL and outcome.fingerprint == poisoned.manifest.fingerprint
