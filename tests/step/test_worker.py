"""A process per incident: the captured environment, deadlines, deaths."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress

import psutil
import pytest

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import Kind, Signature
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Status
from reprokit.step.worker import Worker, _description, child_environment, environment

pytestmark = pytest.mark.slow


def case(incident, **changes):
    return Case(incident=incident.path, **changes)


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def left(pids, within=100.0):
    """Those that still live then; nobody tells when a process ends that is not ours."""
    until = time.monotonic() + within
    while (living := [pid for pid in pids if lives(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return living


def test_one_process_answers_many_cases_and_a_fresh_one_when_asked(make_incident):
    incident = make_incident(body="import os; print('pid', os.getpid())")
    with Worker(incident) as worker:
        outcomes = [worker.evaluate(case(incident)) for _ in range(2)]
        first = worker._process.process.pid
        worker.evaluate(case(incident), "process")
        assert worker._process is None
        worker.evaluate(case(incident))
        assert worker._process.process.pid != first
    assert [o.status for o in outcomes] == [Status.FAIL] * 2 and outcomes[0].fingerprint == outcomes[1].fingerprint
    assert not psutil.pid_exists(first)


def test_the_environment_is_the_captured_one_where_numbers_depend_on_it(make_incident, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("PYTHONHASHSEED", "9")
    monkeypatch.setenv("EDITOR", "ed")
    incident = make_incident(variables={"PYTHONHASHSEED": "3", "EDITOR": "vi"})
    variables = environment(incident, case(incident, variant=Variant(env={"MKL_CBWR": "COMPATIBLE"})))
    assert (variables["PYTHONHASHSEED"], variables["MKL_CBWR"], variables["EDITOR"]) == ("3", "COMPATIBLE", "ed")
    assert "OMP_NUM_THREADS" not in variables
    assert environment(incident, host={}).get("EDITOR") is None


def test_an_environment_variant_starts_a_process_of_its_own(make_incident):
    body = "import os\nif os.environ.get('PYTHONHASHSEED') == '5': raise KeyError('five')"
    incident = make_incident(body=body, variables={"PYTHONHASHSEED": "3"})
    with Worker(incident) as worker:
        seeds = [worker.evaluate(case(incident, variant=Variant(env={"PYTHONHASHSEED": s}))) for s in ("5", "4")]
        seeds.append(worker.evaluate(case(incident)))
    assert [outcome.status for outcome in seeds] == [Status.OTHER, Status.FAIL, Status.FAIL]


def test_one_that_died_between_two_cases_is_started_again(make_incident):
    incident = make_incident()
    with Worker(incident) as worker:
        for _ in range(2):
            assert worker.evaluate(case(incident)).status is Status.FAIL
            worker._process.process.kill()
            worker._process.process.wait()
        assert worker.describe()["modules"]


def test_one_that_dies_before_it_is_asked_says_nothing_and_costs_no_other_case(make_incident, monkeypatch):
    incident, ask = make_incident(), Worker._ask

    def late(worker, kept, *more):
        kept.process.kill()
        kept.process.wait()
        return ask(worker, kept, *more)

    with Worker(incident) as worker:
        with monkeypatch.context() as patch:
            patch.setattr(Worker, "_ask", late)
            outcome = worker.evaluate(case(incident))
            assert outcome.status is Status.INFRA and "before the step" in outcome.detail
            with pytest.raises(Infrastructure, match="the process ended with"):
                worker.describe()
        assert worker.evaluate(case(incident)).status is Status.FAIL


def test_a_deadline_that_passes_is_a_hang_and_kills_the_whole_group(make_incident, tmp_path, overdue_when):
    pids = tmp_path / "pids"
    body = (
        "import os, pathlib, subprocess, time\nif x.isnan().any():\n    child = subprocess.Popen(['sleep', '600'])\n"
        f"    pathlib.Path('pid').write_text(str(child.pid))\n    os.rename('pid', {str(pids)!r})\n    time.sleep(600)"
    )
    overdue_when(pids.exists)
    incident = make_incident(body=body, signature=Signature(kind=Kind.HANG, where="step"))
    with Worker(incident) as worker:
        worker.evaluate(case(incident, content="donor"))
        outcome = worker.evaluate(case(incident), timeout=200)
        assert outcome.status is Status.FAIL and outcome.signature.kind is Kind.HANG
        assert not psutil.pid_exists(int(pids.read_text()))
        assert worker.evaluate(case(incident, content="donor")).status is Status.PASS  # a new process


def test_a_process_that_is_not_in_its_step_by_then_says_nothing_about_it(make_incident):
    incident = make_incident(signature=Signature(kind=Kind.HANG, where="step"))
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident), timeout=0.001)
    assert outcome.status is Status.INFRA and "did not come to its step within 0.001 s" in outcome.detail


def test_a_process_that_dies_is_a_crash_with_its_last_words(make_incident):
    body = "import os, sys\nprint('last words', file=sys.stderr)\nsys.stderr.flush()\nos.kill(os.getpid(), 11)"
    incident = make_incident(body=body)
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident))
        again = worker.evaluate(case(incident))
    assert outcome.status is Status.OTHER and outcome.signature.kind is Kind.CRASH
    assert "SIGSEGV" in outcome.detail and "last words" in outcome.detail and again.signature == outcome.signature


@pytest.mark.parametrize("code", [0, 3])
def test_a_step_that_exits_is_a_crash(make_incident, code):
    body = f"import os, sys\nprint('last words', file=sys.stderr)\nif x.isnan().any(): os._exit({code})"
    incident = make_incident(body=body, signature=Signature(kind=Kind.CRASH, where="step"))
    with Worker(incident) as worker:
        outcomes = [worker.evaluate(case(incident), isolation) for isolation in ("restore", "process")]
        assert worker.evaluate(case(incident, content="donor")).status is Status.PASS
    for outcome in outcomes:
        assert outcome.status is Status.FAIL and outcome.signature == Signature(kind=Kind.CRASH, where="step")
        assert f"exited with {code}" in outcome.detail and "last words" in outcome.detail


@pytest.mark.parametrize("ends", ["os._exit(3)", "os.kill(os.getpid(), 11)"])
@pytest.mark.parametrize(("lowest", "status"), [(1.0, Status.INFRA), (0.5, Status.INVALID)])
def test_a_build_that_ends_the_process_says_nothing_about_the_step(make_incident, monkeypatch, ends, lowest, status):
    """Of the captured harness the machinery is to blame; what a variant changes may be impossible to build."""
    names, seeded = make_incident.__globals__, 'torch.manual_seed(config["seed"])'
    harm = f"{seeded}\n    import os\n    if reprokit.is_replay() and config['dropout'] < {lowest}: {ends}"
    monkeypatch.setitem(names, "SCRIPT", names["SCRIPT"].replace(seeded, harm))
    incident = make_incident(signature=Signature(kind=Kind.CRASH, where="step"))
    variant = Variant() if status is Status.INFRA else Variant(config={"dropout": 0.0})
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident, variant=variant))
    assert outcome.status is status and "before the step" in outcome.detail


def test_what_user_code_prints_is_no_answer(make_incident):
    incident = make_incident(body="import os\nprint('{\"done\": 1}', flush=True)\nos.write(1, b'{\"done\": 2}\\n')")
    with Worker(incident) as worker:
        assert worker.evaluate(case(incident)).status is Status.FAIL


@pytest.mark.parametrize("hangs", [False, True])
def test_a_worker_that_nobody_closes_ends_with_its_parent(make_incident, hangs):
    incident = make_incident(body="import time\nif x.isnan().any(): time.sleep(600)" if hangs else "pass")
    code = (
        "import os, sys\nfrom reprokit.incident import Incident\nfrom reprokit.step.case import Case\n"
        "from reprokit.step.worker import Worker\n"
        "i = Incident.open(sys.argv[1]); w = Worker(i); w.evaluate(Case(incident=i.path, content='donor'))\n"
        "print(w._process.process.pid, flush=True)\n"
        "import threading; threading.Thread(target=w.evaluate, args=(Case(incident=i.path),), daemon=True).start()\n"
        "import time; time.sleep(1); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(incident.path)], capture_output=True, text=True, timeout=180)
    assert done.returncode == -signal.SIGKILL
    assert not left([int(done.stdout)])


def test_a_single_case_by_file(make_incident, tmp_path):
    incident = make_incident()
    (tmp_path / "case.json").write_text(json.dumps(case(incident).to_json()))
    out = tmp_path / "outcome.json"
    subprocess.run(
        [sys.executable, "-m", "reprokit.step.serve", "--case", str(tmp_path / "case.json"), "--out", str(out)],
        check=True, timeout=180, env=child_environment(incident), cwd=tmp_path,
    )  # fmt: skip
    assert json.loads(out.read_text())["status"] == "FAIL"


def test_an_altered_incident_is_infra_in_one_line(make_incident):
    incident = make_incident()
    (incident.path / "config.yaml").write_text("seed: 4\n")
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident))
    assert outcome.status is Status.INFRA and "config.yaml" in outcome.detail and "\n" not in outcome.detail


def test_scratch_files_go_with_the_worker(make_incident):
    incident = make_incident(body="import os; raise KeyError(os.getcwd())")
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident))
        scratch = worker._scratch.name
        assert scratch in outcome.detail and os.path.isdir(scratch)
    assert not os.path.exists(scratch)


def test_a_step_that_closes_every_file_is_still_held_to_its_deadline(make_incident, tmp_path, overdue_when):
    closes = f"os.closerange(3, 1000); open({str(tmp_path / 'closed')!r}, 'w'); time.sleep(600)"
    incident = make_incident(body=f"import os, time\nif x.isnan().any(): {closes}")
    overdue_when((tmp_path / "closed").exists)
    with Worker(incident) as worker:
        worker.evaluate(case(incident, content="donor"))
        assert worker.evaluate(case(incident), timeout=200).signature.kind is Kind.HANG


def test_a_crash_is_one_also_while_a_child_of_the_step_lives_on(make_incident):
    body = "import os, time\nif os.fork() == 0: time.sleep(600)\nos.kill(os.getpid(), 11)"
    incident = make_incident(body=body)
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident), timeout=100)
    assert outcome.signature.kind is Kind.CRASH and outcome.total_seconds < 90


def loose(pids):
    """Starts a process that leaves the step's group, and whose parent ends."""
    return (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        f"        open('pid', 'w').write(str(os.getpid()))\n        os.rename('pid', {str(pids)!r})\n"
        "        os.execvp('sleep', ['sleep', '600'])\n"
        f"    os._exit(0)\nos.wait()\nwhile not os.path.exists({str(pids)!r}): time.sleep(0.01)\n"
    )


@pytest.mark.parametrize(
    ("ends", "kind"),
    [("pass", Kind.NONFINITE_LOSS), ("os.kill(os.getpid(), 11)", Kind.CRASH), ("time.sleep(600)", Kind.HANG)],
)
def test_what_cut_itself_loose_ends_with_the_step_however_that_ends(make_incident, tmp_path, overdue_when, ends, kind):
    incident = make_incident(body=loose(tmp_path / "pids") + ends)
    overdue_when((tmp_path / "pids").exists)
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident), "process", timeout=200 if kind is Kind.HANG else None)
        assert outcome.signature.kind is kind, outcome.detail
        assert not psutil.pid_exists(int((tmp_path / "pids").read_text()))


def test_user_code_has_no_input_to_wait_for(make_incident):
    outcome = None
    incident = make_incident(body="input()")
    with Worker(incident) as worker:
        outcome = worker.evaluate(case(incident), timeout=100)
    assert outcome.signature.exception == "EOFError"


def test_leaving_an_engine_ends_what_it_runs(make_incident):
    from time import monotonic

    from reprokit.replay.engines.process import Process

    incident = make_incident(body="import time; time.sleep(600)")
    begun = monotonic()
    with Process(incident, jobs=1) as engine:
        futures = [engine.submit(case(incident)) for _ in range(3)]
    assert monotonic() - begun < 60
    assert all(future.done() for future in futures)


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.2, 3.0])
def test_a_worker_is_killed_at_whatever_instant(make_incident, delay):
    incident = make_incident(body="import time; time.sleep(600)")
    with Worker(incident) as worker, ThreadPoolExecutor(1) as pool:
        evaluated = pool.submit(worker.evaluate, case(incident))
        time.sleep(delay)
        worker.kill()
        with suppress(CancelledError):
            assert evaluated.result(timeout=60).status in (Status.INFRA, Status.OTHER)
        with pytest.raises(CancelledError):
            worker.evaluate(case(incident), "process")


def test_a_worker_tells_what_variants_can_name(make_incident):
    incident = make_incident()
    with Worker(incident) as worker:
        before = worker.evaluate(case(incident))
        pid = worker._process.process.pid
        found = worker.describe()
        assert worker._process.process.pid == pid and worker.evaluate(case(incident)).fingerprint == before.fingerprint
        with pytest.raises(BadInput, match=r"no key 'depth'"):
            worker.describe(Variant(config={"depth": 1}))
        assert worker.describe(Variant(config={"dropout": 0.0})) == found
    assert found["modules"] == ["net", "net.0", "net.1", "net.2", "net.3"] and found["knobs"] == {}
    assert found["parameters"]["net.0.weight"] == [8, 4] and found["optimizers"]["optimizer"]["kind"] == "AdamW"


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        ("raise KeyError('no\\n weights')", BadInput, "KeyError: .*no.*weights"),
        ("raise SystemExit(3)", BadInput, "SystemExit: 3"),
        ("import os; os._exit(9)", Infrastructure, "the process ended with 9"),
        ("import time; time.sleep(600)", Infrastructure, "no answer within 9 s"),
    ],
)
def test_a_harness_that_cannot_be_described_is_named_in_one_line(make_incident, monkeypatch, build, error, says):
    names = make_incident.__globals__
    seeded = 'torch.manual_seed(config["seed"])'
    stops = f"{seeded}\n    if reprokit.is_replay(): {build}"
    monkeypatch.setitem(names, "SCRIPT", names["SCRIPT"].replace(seeded, stops))
    incident = make_incident()
    with Worker(incident) as worker, pytest.raises(error, match=says) as refusal:
        worker.describe(timeout=9 if "sleep" in build else None)
    assert "\n" not in str(refusal.value) and str(incident.path) in str(refusal.value)


def test_an_answer_that_is_no_description_is_infra(make_incident):
    good = {"knobs": {}, "modules": ["net"], "parameters": {"net.weight": [2]}, "optimizers": {}, "harness": {}}
    assert _description(good | {"more": 1}, "here") == good
    for bad in ([], good | {"modules": "net"}, good | {"knobs": {"depth": 3}}, {"knobs": {}}):
        with pytest.raises(Infrastructure, match="here: the answer is not a description"):
            _description(bad, "here")


def test_a_step_that_never_gives_the_interpreter_back_ends_with_whoever_asked(make_incident, tmp_path):
    """One C call that takes for ever: no thread of the worker runs any more."""
    pids = tmp_path / "pids"
    body = (
        "import os, pathlib, re, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        f"pathlib.Path({str(pids)!r}).write_text(f'{{os.getpid()}} {{child.pid}}\\n')\n"
        "re.match('(a+)+$', 'a' * 60 + '!')"
    )
    code = (
        "import sys; from reprokit.incident import Incident; from reprokit.step.case import Case\n"
        "from reprokit.step.worker import Worker\n"
        "incident = Incident.open(sys.argv[1]); Worker(incident).evaluate(Case(incident=incident.path))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(make_incident(body).path)]) as asker:
        while not (pids.exists() and pids.read_text().endswith("\n")):
            assert asker.poll() is None
            time.sleep(0.02)
        asker.kill()
    alive = left([int(pid) for pid in pids.read_text().split()])
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive
