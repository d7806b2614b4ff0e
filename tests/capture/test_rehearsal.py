"""What would not replay is named at the first step, in one line each."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import numpy as np
import torch
from torch import nn

import reprokit


class Odd:
    pass


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    hidden = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    other = torch.optim.SGD(hidden.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    numbers = np.random.default_rng(0)
    count = [0]

    def step(batch):
        x = batch["x"]
        {step}
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return reprokit.Harness(modules={{"net": net}}, optimizer=optimizer, step=step, layout={{"x": "b d"}},
                            automatic_optimization=False{fields})


if __name__ == "__main__":
    with reprokit.Recorder(build({{}}), build=build, config={{}}) as recorder:
        for _ in range(3):
            recorder.step({{"x": torch.rand(3, 4){entry}}})
    print("findings", len(recorder.findings))
"""


def trained(folder):
    """The finished process of `train.py`, and its lines about what would not replay."""
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, timeout=180,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done, [line for line in done.stderr.splitlines() if "would not replay" in line]


def rehearsed(folder, step="", fields="", entry=""):
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT).format(step=step, fields=fields, entry=entry))
    done, lines = trained(folder)
    assert done.stdout.split() == ["findings", str(len(lines))]
    assert not (folder / "incidents").exists()
    return lines


def test_a_step_that_replays_has_no_findings(tmp_path):
    assert rehearsed(tmp_path, step="x = x + torch.rand_like(x) + torch.randn(1)") == []


def test_a_generator_that_was_handed_over_is_none(tmp_path):
    assert (
        rehearsed(tmp_path, "x = x + torch.rand(1, generator=generator)", ", extra_state={'generator': generator}")
        == []
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step": "other.step()"}, "an optimizer that the harness does not list took a step: SGD over 2 parameters"),
        ({"step": "x = x + torch.rand(1, generator=generator)"}, "private torch.Generator"),
        ({"step": "x = x + float(numbers.random())"}, "state outside the harness changes"),
        ({"step": "count[0] += 1; x = x * count[0]"}, "state outside the harness changes"),
        ({"entry": ", 'meta': Odd()"}, r"batch['meta'] (Odd) cannot be stored"),
        (
            {"step": "import os; x = x + os.getpid() / 1e6"},
            "a fresh process computes another step: losses differ first",
        ),
    ],
)
def test_what_does_not_replay_is_named_at_the_first_step(tmp_path, change, says):
    [line] = rehearsed(tmp_path, **change)
    assert says in line and line.startswith("step 1 would not replay: ")


def test_a_step_that_a_fresh_process_cannot_run(tmp_path):
    [line] = rehearsed(tmp_path, step="import sys; assert sys.argv[0] == 'train.py', 'only here'")
    assert "a fresh process cannot run the step that was healthy here: exception" in line and "only here" in line


TEACHER = """
import copy
import torch
from torch import nn

import reprokit


def build(config):
    torch.manual_seed(0)
    net = nn.Linear(4, 4)
    build.teacher = teacher = copy.deepcopy(net)

    def step(batch):
        return (net(batch["x"]) - teacher(batch["x"]) + 1).pow(2).mean()

    build.net = net
    extra = {"teacher": teacher} if config["listed"] else {}
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    return reprokit.Harness(
        modules={"net": net}, optimizer=optimizer, step=step, layout={"x": "b d"}, extra_state=extra
    )


if __name__ == "__main__":
    config = {"listed": LISTED}
    with reprokit.Recorder(build(config), build=build, config=config) as recorder:
        for _ in range(4):
            recorder.step({"x": torch.rand(3, 4)})
            with torch.no_grad():
                for ours, theirs in zip(build.net.parameters(), build.teacher.parameters()):
                    theirs.lerp_(ours, 0.5)
"""


@pytest.mark.parametrize("listed", [True, False])
def test_a_teacher_that_moves_after_the_step_is_missed_at_the_second(tmp_path, listed):
    (tmp_path / "train.py").write_text(TEACHER.replace("LISTED", str(listed)))
    _, lines = trained(tmp_path)
    assert len(lines) == (0 if listed else 1)
    assert listed or "step 2 would not replay: a fresh process computes another step: losses differ first" in lines[0]
