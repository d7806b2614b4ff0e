"""Ways to wire the reference model wrongly, each seen by the gate that is there for it; the healthy one passes."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reprokit.capture import rehearsal
from reprokit.smoke.gate import Verdict
from reprokit.smoke.gates.gradients import Gradients
from reprokit.smoke.gates.leakage import Leakage
from reprokit.smoke.gates.numbers import Numbers
from reprokit.smoke.gates.rehearsal import Rehearsal
from reprokit.smoke.gates.shapes import Shapes
from reprokit.smoke.smoke import chosen, smoke
from reprokit.step.load import load_entrypoint
from reprokit.step.worker import child_environment

load_entrypoint("mutants.py:build", Path(__file__).parent)
mutants = sys.modules["mutants"]

SEEDS = 20
_ALL = """
import json, sys
from reprokit.incident import Incident
from reprokit.step.rehearse import rehearse
print(json.dumps([rehearse(Incident.open(path)) for path in sys.argv[1:]]))
"""


def pure():
    """The gates that start no process and look at no clock."""
    return [Shapes(), Numbers(), Gradients(), Leakage()]


@pytest.mark.parametrize("mutant", mutants.CAUGHT_BY, ids=lambda mutant: mutant.__name__)
def test_a_mutant_is_caught_by_its_gate_and_by_no_other(mutant):
    gate, config = mutants.CAUGHT_BY[mutant]
    report = smoke(mutants.subject(mutant, mutants.small(**config)), pure())
    assert report.failed_gates == (gate,)
    assert not report.passed


@pytest.mark.parametrize("mutant", mutants.CAUGHT_BY, ids=lambda mutant: mutant.__name__)
def test_the_config_of_a_mutant_is_healthy_without_it(mutant):
    _, config = mutants.CAUGHT_BY[mutant]
    healthy = mutants.floats if "floats" in mutant.__name__ else mutants.build
    assert smoke(mutants.subject(healthy, mutants.small(**config)), pure()).passed


@pytest.mark.slow
def test_the_healthy_model_passes_all_default_gates_twenty_times(tmp_path, monkeypatch):
    """The rehearsal's fresh process is one for all seeds: it is told each snapshot in turn, as one is each time."""
    held = []

    def later(write):
        held.append(write(tmp_path / f"{len(held)}"))
        return []

    monkeypatch.setattr(rehearsal, "rehearse", later)
    for seed in range(SEEDS):
        subject = mutants.subject(config=mutants.small(seed, drop=0.95 if seed % 2 else 0.0), seed=seed)
        once = replace(subject, batches=subject.batches[: 2 if seed < 2 else 1])  # a snapshot takes a second
        reports = [smoke(once, [Rehearsal()]), smoke(subject, chosen()[1:])]
        findings = [one for report in reports for one in report.findings]
        assert [one for one in findings if one.verdict is not Verdict.PASSED] == [], seed
        assert {one.gate for one in findings} == {gate.name for gate in chosen()}
    assert len(held) == SEEDS + 2
    assert rehearsed(held) == [[]] * len(held)


def rehearsed(paths):
    from reprokit.incident import Incident

    done = subprocess.run(
        [sys.executable, "-c", _ALL, *map(str, paths)],
        env=child_environment(Incident.open(paths[0])),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])
