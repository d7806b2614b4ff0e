"""An incident whose code means harm: what it gets at, what outlives it, and what its answer can do.

In real containers, since the question is what an engine and a kernel make of what we asked for. One holds many attacks.
"""

import json
import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from reprokit._scratch import PREFIX
from reprokit.failure import Kind
from reprokit.replay import handover
from reprokit.replay.container import Limits
from reprokit.replay.engines.docker import Docker
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

pytestmark = [pytest.mark.slow, pytest.mark.docker]

GONE = f"86399.{os.getpid()}"  # an argument of `sleep` that nobody else on this machine has

# A step that tries it all, and says in its exception how far it came.
BODY = """
import json, os, pathlib, signal, socket, subprocess, sys
report = {}
def attempt(name, action):
    try:
        report[name] = str(action() or "done")[:80]
    except Exception as error:
        report[name] = getattr(error, "strerror", None) or type(error).__name__
write = lambda path: pathlib.Path(path).write_text("x")
for path in ("/incident/new", "/opt/reprokit/reprokit/new", "/opt/reprokit/reprokit/__init__.py", "/opt/venv/new",
             "/etc/passwd", "/usr/bin/new", "/out/../new", "/new", "/sys/kernel/profiling",
             "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches"):
    attempt("write " + path, lambda: write(path))
attempt("chmod", lambda: os.chmod("/incident/incident.json", 0o777))
attempt("remove", lambda: os.remove("/incident/incident.json"))
attempt("root", lambda: os.setuid(0))
attempt("device", lambda: os.mknod("/tmp/disk", 0o60666, os.makedev(254, 0)))
attempt("chroot", lambda: os.chroot("/tmp"))
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -10))
for family, where in ((socket.AF_INET, ("192.0.2.1", 80)), (socket.AF_INET, ("172.17.0.1", 22)),
                      (socket.AF_INET6, ("2001:db8::1", 80)), (socket.AF_UNIX, "/var/run/docker.sock")):
    def connect():
        with socket.socket(family) as one:
            one.settimeout(5)
            one.connect(where)
    attempt("connect " + str(where), connect)
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("name", lambda: socket.getaddrinfo("example.org", 80))
report["mount"] = subprocess.run(["mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True).returncode != 0
report["unshare"] = subprocess.run(["unshare", "-r", "-n", "true"], capture_output=True).returncode != 0
report["variables"] = sorted(name for name in os.environ if "SECRET" in name or "PROXY" in name.upper())
def fill(path):
    with open(path, "wb") as file:
        for _ in range(10000):
            file.write(bytes(1 << 20))
for path in ("/tmp/large", "/dev/shm/large"):
    attempt("fill " + path, lambda: fill(path))
    os.path.exists(path) and os.remove(path)
children = []
def bomb():
    for _ in range(5000):
        child = os.fork()
        if child == 0:
            signal.pause()
        children.append(child)
attempt("bomb", bomb)
report["children"] = len(children)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
attempt("kill init", lambda: os.kill(1, signal.SIGKILL))
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.execvp("sleep", ["sleep", "GONE"])
here = os.open("/out", os.O_RDONLY)
for _ in range(300):
    os.mkdir("deep", dir_fd=here)
    here = os.open("deep", os.O_RDONLY, dir_fd=here)
os.mkdir("/out/shut")
os.symlink("VICTIM", "/out/shut/link")
os.chmod("/out/shut", 0o555)
os.remove("/out/outcome.begun")
for name in ("outcome.json", "outcome.begun", "again"):
    os.symlink("VICTIM", "/out/" + name)
os.mkfifo("/out/pipe")
print("\\x1b]0;owned\\x07" + "A" * (4 << 20))
raise RuntimeError(json.dumps(report))
"""

NOTHING_FAILED = json.dumps(Outcome(status=Status.PASS).to_json())
MIB = 1 << 20


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim" / "outcome.json"
    path.parent.mkdir()
    path.write_text(NOTHING_FAILED)
    path.chmod(0o604)
    return path


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made: nothing may be left there."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def evaluate(engine, containers, scratch: Path, tmp_path: Path) -> Callable[..., Outcome]:
    """One attempt of a tiny worker; nothing of it is left."""
    (tmp_path / "incident").mkdir()

    def once(script: str, **options) -> Outcome:
        with engine(script, **options) as docker:
            outcome = docker.submit(Case(incident=tmp_path / "incident")).result(timeout=240)
        assert not containers(docker) and not left(scratch)
        return outcome

    return once


def left(scratch: Path) -> list[Path]:
    return list(scratch.glob(f"{PREFIX}*"))


def alive() -> list[int]:
    """Processes of the attack that are still there; those in containers are this machine's as well."""
    with_it = (process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", GONE])
    return [process.pid for process in with_it]


def test_a_step_that_tries_it_all_gets_nowhere(
    make_incident, replay_image, containers, victim, scratch, tmp_path, monkeypatch
):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    proxies = {"default": {"httpProxy": "http://me:s3cret@proxy.example:3128"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("A_SECRET", "s3cret")
    body = BODY.replace("VICTIM", str(victim)).replace("GONE", GONE)
    incident = make_incident(body)
    room = Limits(memory=2 << 30, cpus=2.0, deadline=240.0, pids=64, shm=32 * MIB, tmp=128 * MIB, out=64 * MIB)
    with Docker(replay_image, limits=room, jobs=1) as docker:
        outcome = docker.submit(Case(incident=incident.path)).result(timeout=290)
        assert not alive()
    assert outcome.signature and outcome.signature.exception == "RuntimeError", outcome
    report = json.loads(outcome.detail[outcome.detail.index("{") :].splitlines()[0])
    forbidden = "Operation not permitted"
    refusals = {name: said for name, said in report.items() if name.split()[0] in ("write", "chmod", "remove")}
    assert len(refusals) == 13 and set(refusals.values()) <= {"Read-only file system", "Permission denied", forbidden}
    assert {report[name] for name in ("root", "device", "chroot", "raw")} == {forbidden}
    assert report["priority"] in ("Permission denied", forbidden)
    assert report["mount"] and report["unshare"] and report["variables"] == []
    reached = {said for name, said in report.items() if name.startswith("connect")}
    assert reached <= {"Network is unreachable", "No such file or directory", "Cannot assign requested address"}
    assert report["name"] in ("Temporary failure in name resolution", "Name or service not known")
    assert report["fill /tmp/large"] in ("No space left on device", "File too large")
    assert report["fill /dev/shm/large"] == "No space left on device"
    assert report["bomb"] == "Resource temporarily unavailable" and 0 < report["children"] < 64
    assert victim.read_text() == NOTHING_FAILED and victim.stat().st_mode & 0o777 == 0o604
    assert "\x1b" not in outcome.log and len(outcome.log) < 100_000
    assert not containers(docker) and not left(scratch)


BEGUN = "open('/out/outcome.begun', 'w').close()"


def test_what_left_its_group_and_is_deaf_ends_at_the_deadline(evaluate, overdue_when):
    script = f"""
        import os, signal, time
        {BEGUN}
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.execvp("sleep", ["sleep", {GONE!r}])
        while True:
            time.sleep(1)
    """
    overdue_when(alive)
    outcome = evaluate(script, kind=Kind.HANG, deadline=200.0)
    assert outcome.status is Status.FAIL and not alive()


def test_a_forged_answer_is_one_outcome_and_of_this_machine(evaluate):
    forged = json.dumps(json.loads(NOTHING_FAILED) | {"host": "elsewhere", "total_seconds": 1e9, "log": "\x1b[2J"})
    outcome = evaluate(f"open('/out/outcome.json', 'w').write({forged!r}); print('all is well')")
    assert outcome.status is Status.PASS  # what code says of itself cannot be checked; what we add to it is ours
    assert outcome.host == platform.node() and outcome.total_seconds < 1e6 and outcome.log == "all is well"


@pytest.mark.parametrize(
    "script",
    [
        "json.dump(outcome | {'detail': 'x' * (20 << 20)}, open('/out/outcome.json', 'w'))",
        "os.truncate(os.open('/out/outcome.json', os.O_CREAT | os.O_RDWR), 60 << 20)",
        "os.mkdir('/out/outcome.json')",
    ],
    ids=["huge", "sparse", "folder"],
)
def test_an_answer_that_is_none_is_not_read(evaluate, script):
    outcome = evaluate(f"import json, os\noutcome = json.loads({NOTHING_FAILED!r})\n{script}\n{BEGUN}")
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (Status.OTHER, Kind.CRASH)
    assert len(outcome.detail) < 10_000


@pytest.mark.parametrize(
    ("do", "says"),
    [
        ("[open(f'/out/{n}', 'wb').write(bytes(1 << 20)) for n in range(32)]", "MiB, of 16 that it may take"),
        ("[open(f'/out/{n}', 'w') for n in range(12000)]", "more than 10000 entries"),
        ("[(os.mkdir('deep'), os.chdir('deep')) for n in range(3000)]", "cannot be looked at"),
    ],
    ids=["bytes", "files", "depth"],
)
def test_an_output_folder_that_is_filled_ends_its_container(evaluate, limits, do, says):
    script = f"import os, time\nos.chdir('/out')\n{do}\ntime.sleep(600)"
    outcome = evaluate(script, limits=replace(limits, out=16 * MIB))
    assert outcome.status is Status.INFRA and says in outcome.detail


def test_a_disk_that_nears_its_end_ends_what_may_fill_it(evaluate, monkeypatch):
    """As by a file that has no name any more, which nobody can count."""
    free = iter([100 << 30, 100 << 30])
    monkeypatch.setattr(handover, "_free", lambda folder: next(free, 1 << 30))
    outcome = evaluate("import time; time.sleep(600)")
    assert outcome.status is Status.INFRA and "disk of its output folder is nearly full" in outcome.detail
