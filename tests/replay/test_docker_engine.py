"""The engine with tiny workers in place of the real one: what a container can do, and what becomes of each end."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from reprokit.errors import Infrastructure
from reprokit.failure import Kind
from reprokit.replay import daemon
from reprokit.replay.container import Bind, Limits
from reprokit.replay.engines.docker import Docker
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

pytestmark = pytest.mark.slow

NOTHING_FAILED = json.dumps(Outcome(status=Status.PASS).to_json())

Evaluate = Callable[..., Outcome]


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    folder = tmp_path / "incident"
    folder.mkdir()
    (folder / "config.yaml").write_text("depth: 2\n")
    return folder


@pytest.fixture
def evaluate(engine: Callable[..., Docker], containers: Callable[[Docker], list[str]], incident: Path) -> Evaluate:
    def once(script: str, **options) -> Outcome:
        with engine(script, **options) as docker:
            outcome = docker.submit(Case(incident=incident)).result(timeout=120)
        assert not containers(docker)  # whatever became of it
        return outcome

    return once


@pytest.fixture
def seen(tmp_path: Path) -> Bind:
    """A folder in which a container, as /seen, leaves word of how far it came."""
    folder = tmp_path / "seen"
    folder.mkdir()
    folder.chmod(0o777)
    return Bind(source=str(folder), target="/seen", writable=True)


BEGUN = "open('/out/outcome.begun', 'w')"  # as the worker does before the step

LOOK_AROUND = """
    import json, os, pathlib, socket, stat
    def attempt(action):
        try:
            action()
            return "done"
        except OSError as error:
            return error.strerror
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    script = pathlib.Path("/tmp/script"); script.write_text("#!/bin/sh\\nexit 0\\n"); script.chmod(0o755)
    def fill(path):
        with open(path, "wb") as file:
            for _ in range(1024):
                file.write(bytes(1 << 20))
    seen = {
        "uid": os.getuid(), "gid": os.getgid(), "groups": os.getgroups(), "pid": os.getpid(), "ppid": os.getppid(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "connect": attempt(lambda: socket.create_connection(("192.0.2.1", 80), timeout=5)),
        "root": attempt(lambda: open("/opt/new", "w")),
        "incident": attempt(lambda: open("/incident/new", "w")),
        "config": attempt(lambda: os.chmod("/incident/config.yaml", 0o777)),
        "package": attempt(lambda: open("/opt/reprokit/reprokit/new", "w")),
        "read": pathlib.Path("/incident/config.yaml").read_text(),
        "own": pathlib.Path("/opt/reprokit/reprokit/errors.py").exists(),
        "status": {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "NoNewPrivs")},
        "become_root": attempt(lambda: os.setuid(0)),
        "mount": os.system("mount -t tmpfs none /mnt 2>/dev/null") != 0,
        "execute": os.system("/tmp/script") == 0,
        "fill": attempt(lambda: fill("/tmp/large")),
        "case": json.load(open("/out/case.json"))["incident"],
        "environment": {name: os.environ.get(name) for name in ("HOME", "PYTHONHASHSEED", "PYTHONPATH", "USER")},
        "hostname": socket.gethostname(),
        "shm": os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
    }
    os.remove("/tmp/large")
    outcome = json.loads(NOTHING_FAILED)
    outcome["detail"] = json.dumps(seen)
    json.dump(outcome, open("/out/outcome.json", "w"))
""".replace("NOTHING_FAILED", repr(NOTHING_FAILED))


@pytest.mark.docker
def test_what_an_attempt_sees_and_may_do(evaluate: Evaluate, limits: Limits, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("os.getuid", lambda: 0)  # whoever runs these tests: that of root is the hard case
    outcome = evaluate(LOOK_AROUND)
    assert outcome.status is Status.PASS, outcome.detail
    seen = json.loads(outcome.detail)
    assert (seen["uid"], seen["gid"]) == (1000, 1000) and set(seen["groups"]) <= {1000}
    assert seen["pid"] > 1  # an init reaps what it leaves behind
    assert seen["interfaces"] == ["lo"] and seen["connect"] == "Network is unreachable"
    assert seen["root"] == seen["incident"] == seen["package"] == seen["config"] == "Read-only file system"
    assert seen["read"] == "depth: 2\n" and seen["own"]
    assert seen["status"] == {"CapEff": 0, "CapPrm": 0, "CapBnd": 0, "CapAmb": 0, "NoNewPrivs": 1}
    assert seen["become_root"] == "Operation not permitted" and seen["mount"]
    assert seen["execute"] and seen["fill"] in ("No space left on device", "File too large")
    assert seen["case"] == "/incident"
    assert seen["environment"] == {
        "HOME": "/tmp", "PYTHONHASHSEED": "7", "PYTHONPATH": "/opt/reprokit", "USER": "reprokit"
    }  # fmt: skip
    assert seen["hostname"] == "reprokit" and seen["shm"] == limits.shm
    assert outcome.host not in ("", "reprokit") and outcome.total_seconds > 0


@pytest.mark.docker
@pytest.mark.parametrize(("kind", "status"), [(Kind.HANG, Status.FAIL), (Kind.NONFINITE_LOSS, Status.OTHER)])
def test_a_deadline_ends_what_will_not_end(evaluate: Evaluate, seen: Bind, overdue_when, kind: Kind, status: Status):
    script = f"""
        import signal, time
        {BEGUN}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("asleep")
        open("/seen/asleep", "w")
        time.sleep(600)
    """
    overdue_when((Path(seen.source) / "asleep").exists)
    outcome = evaluate(script, kind=kind, deadline=200.0, binds=[seen])
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (status, Kind.HANG)
    assert "within 200 s" in outcome.detail and "asleep" in outcome.detail


@pytest.mark.docker
def test_a_container_ends_by_itself_where_nobody_watches(engine, incident, monkeypatch):
    monkeypatch.setattr("reprokit.replay.container.GRACE", -57)
    with engine("import time; time.sleep(600)") as docker:
        outcome = docker.submit(Case(incident=incident)).result(timeout=120)
    assert outcome.status is Status.INFRA and "killed from outside" in outcome.detail


@pytest.mark.docker
def test_killed_for_memory_is_told_from_failed(evaluate: Evaluate):
    outcome = evaluate("held = [bytearray(b'x' * (16 << 20)) for _ in range(100)]", kind=Kind.OOM)
    assert outcome.status is Status.INFRA
    assert "memory limit of 0.2 GiB" in outcome.detail


@pytest.mark.docker
@pytest.mark.parametrize(("kind", "status"), [(Kind.CRASH, Status.FAIL), (Kind.NONFINITE_LOSS, Status.OTHER)])
def test_a_process_that_dies_of_a_signal_crashed(evaluate: Evaluate, kind: Kind, status: Status):
    outcome = evaluate(f"{BEGUN}; import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", kind=kind)
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (status, Kind.CRASH)
    assert "signal 11" in outcome.detail


@pytest.mark.docker
def test_last_words_are_kept_when_there_is_no_outcome(evaluate: Evaluate):
    outcome = evaluate("import sys; print('\\x1b[2Jinteresting'); sys.exit('no module flash_attn')")
    assert outcome.status is Status.INFRA
    assert all(words in outcome.detail for words in ("exit code 1", "no module flash_attn", "interesting"))
    assert "\x1b" not in outcome.detail


@pytest.mark.docker
def test_processes_are_counted(evaluate: Evaluate):
    script = """
        import json, os, threading
        started, stop = 0, threading.Event()
        try:
            for _ in range(500):
                threading.Thread(target=stop.wait, daemon=True).start()
                started += 1
        except RuntimeError:
            pass
        print("started", started)
        os._exit(0 if started < 64 else 9)
    """
    outcome = evaluate(script)
    assert "exit code 0" in outcome.detail, outcome.detail


@pytest.mark.docker
def test_a_link_in_the_output_folder_is_not_followed(evaluate: Evaluate, tmp_path: Path):
    mine = tmp_path / "mine.json"
    mine.write_text(NOTHING_FAILED)
    outcome = evaluate(f"import os; os.symlink({str(mine)!r}, '/out/outcome.json')")
    assert outcome.status is Status.INFRA and "no outcome" in outcome.detail


@pytest.mark.docker
def test_an_incident_that_only_root_can_read_is_replayed(evaluate: Evaluate, incident: Path):
    (incident / "config.yaml").chmod(0o600)
    incident.chmod(0o700)
    outcome = evaluate("print(open('/incident/config.yaml').read())")
    assert "depth: 2" in outcome.detail


@pytest.mark.docker
def test_leaving_early_ends_and_removes_what_runs(engine, containers, incident: Path):
    before = time.monotonic()
    with engine("import time; time.sleep(600)", deadline=600.0) as docker:
        running, waiting = docker.submit(Case(incident=incident)), docker.submit(Case(incident=incident))
        while not containers(docker):
            time.sleep(0.05)
    assert time.monotonic() - before < 300
    assert running.result(timeout=1).detail == "interrupted" and waiting.cancelled()
    assert not containers(docker)


@pytest.mark.docker
def test_as_many_at_once_as_there_is_capacity(engine, incident: Path, seen: Bind):
    """Each waits to see the other, so one after the other would never end."""
    script = f"""
        import json, os, time
        open(f"/seen/{{os.getpid()}}-{{time.monotonic_ns()}}", "w")
        while len(os.listdir("/seen")) < 2:
            time.sleep(0.05)
        open("/out/outcome.json", "w").write({NOTHING_FAILED!r})
    """
    with engine(script, jobs=2, binds=[seen]) as docker:
        assert docker.capacity == 2
        outcomes = [future.result(timeout=120) for future in [docker.submit(Case(incident=incident)) for _ in range(2)]]
    assert [outcome.status for outcome in outcomes] == [Status.PASS] * 2


@pytest.mark.docker
def test_a_gpu_that_is_not_there_is_no_silent_cpu_replay(evaluate: Evaluate):
    if "nvidia" in daemon.connect().info()["Runtimes"]:
        pytest.skip("this engine has GPUs to give")
    outcome = evaluate("print('on the CPU')", gpus=True)
    assert outcome.status is Status.INFRA and "offers none" in outcome.detail


@pytest.mark.docker
def test_an_image_that_is_not_there_is_named():
    with pytest.raises(Infrastructure, match="reprokit/never:built: Docker has no such image"):
        Docker("reprokit/never:built")


def test_an_engine_that_does_not_answer_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
    assert not daemon.answers()
    with pytest.raises(Infrastructure, match=r"does not answer at unix://.*; start it, or use --engine process$"):
        Docker("any/image")
