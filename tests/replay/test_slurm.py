"""Jobs, with the executor of submitit that needs no Slurm."""

import json
import os
import signal

import psutil
import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay.engines import slurm
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.engines.slurm import Slurm
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Outcome, Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def incident(incidents_in, tmp_path_factory, waits):
    return incidents_in(tmp_path_factory.mktemp("slurm"))(body=waits, config={"seen": "nowhere"})


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/reprokit"


@pytest.fixture
def opened(incident):
    def make(**options):
        return Slurm(incident, cluster="local", **{"visible": 1.0, "jobs": 2} | options)

    return make


def job_above(pid):
    """The process that submitit started for the job: the one below its controller."""
    for parent in psutil.Process(pid).parents():
        if any("submitit.core._submit" in word for word in parent.cmdline()):
            return parent
    raise AssertionError


def test_a_job_whose_node_is_lost_is_submitted_again(opened, incident, tmp_path, cache, came, until):
    seen = tmp_path / "seen"
    seen.mkdir()
    case = Case(incident=incident.path, variant=Variant(name="waits", config={"seen": str(seen)}))
    with opened() as engine:
        futures = [engine.submit(case) for _ in range(2)]
        until(lambda: len(came(seen)) == 2)
        lost = min(came(seen))
        os.kill(job_above(lost).pid, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(lost))  # an attempt ends with its job
        (seen / "go").touch()
        outcomes = [future.result(timeout=200) for future in futures]
    assert [outcome.status for outcome in outcomes] == [Status.FAIL] * 2, outcomes[0].detail
    assert len(came(seen)) == 3  # the one that was lost came twice
    assert not list((cache / "slurm").iterdir())
    assert len(list((cache / "incidents").glob("[0-9a-f]*"))) == 1  # fetched once


def test_jobs_that_end_without_an_outcome_say_nothing_in_the_end(opened, incident, monkeypatch):
    with opened() as engine:
        monkeypatch.setattr(engine, "_executor", _Broken(engine._executor))
        outcome = engine.submit(Case(incident=incident.path)).result(timeout=200)
    assert outcome.status is Status.INFRA
    assert "3 jobs ended without an outcome" in outcome.detail


class _Broken:
    """Jobs that end at once."""

    def __init__(self, executor):
        self.executor = executor

    def submit(self, function, request, out):
        return self.executor.submit(os._exit, 7)


class _Slow:
    """Jobs that go on for a few looks after what they do at once."""

    def __init__(self, do):
        self.do, self.jobs = do, []

    def submit(self, function, request, out):
        self.jobs.append(_Job(out))
        self.do(out)
        return self.jobs[-1]


class _Job:
    def __init__(self, out):
        self.out, self.job_id, self.looks = out, "7", 0

    def done(self):
        self.looks += 1
        return self.looks > 3

    def cancel(self, check): ...


def passed(out):
    out.write_text(json.dumps(Outcome(status=Status.PASS).to_json()))


def test_a_job_that_still_writes_keeps_its_folder(opened, incident, monkeypatch, cache):
    with opened() as engine:
        slow = _Slow(passed)
        monkeypatch.setattr(engine, "_executor", slow)
        assert engine.submit(Case(incident=incident.path)).result(timeout=60).status is Status.PASS
    assert slow.jobs[0].looks > 3 and not list((cache / "slurm").iterdir())


def test_an_outcome_that_comes_between_two_looks_counts(opened, incident, monkeypatch):
    """It was not there yet, and then the job had ended."""
    monkeypatch.setattr(_Job, "done", lambda job: passed(job.out) is None)
    with opened(visible=0.0) as engine:
        slow = _Slow(lambda out: None)
        monkeypatch.setattr(engine, "_executor", slow)
        assert engine.submit(Case(incident=incident.path)).result(timeout=60).status is Status.PASS
    assert len(slow.jobs) == 1


def test_what_the_user_can_mend_is_one_line(opened, incident):
    with opened(foreign=True) as engine, pytest.raises(BadInput, match="add --trust"):
        engine.submit(Case(incident=incident.path)).result(timeout=200)


def test_without_slurm_is_one_line(incident, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Infrastructure, match="there is no sbatch here"):
        Slurm(incident)


def test_what_a_job_asks_of_slurm(incident, tmp_path, monkeypatch, until):
    """With an sbatch that only says what it was given."""
    tools = tmp_path / "bin"
    tools.mkdir()
    script = f'#!/bin/sh\ncp "$1" {tmp_path}/asked\necho Submitted batch job 7\n'
    for name in ("sbatch", "srun", "sacct", "scancel"):
        (tools / name).write_text(script if name == "sbatch" else "#!/bin/sh\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "_PARTING", 0.0)
    with Slurm(incident, partition="debug", there=EngineOptions(engine="process", timeout=60.0)) as engine:
        engine.submit(Case(incident=incident.path))
        until((tmp_path / "asked").exists)  # leaving waits until it was submitted
    asked = (tmp_path / "asked").read_text()
    for line in ("--partition=debug", "--time=16", "--cpus-per-task=2", "--mem=3GB", "--job-name=reprokit"):
        assert f"#SBATCH {line}\n" in asked
