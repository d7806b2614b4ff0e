"""A command in place of a harness, in real processes and containers: what fails, what ends, and where it may write."""

import json
import os
import tempfile
import textwrap
import time

import psutil
import pytest
import torch

from reprokit import scripting
from reprokit._scratch import PREFIX
from reprokit.errors import BadInput
from reprokit.incident import Draft, Incident
from reprokit.pipeline import Options, Subject
from reprokit.progress import Silence
from reprokit.replay.choose import open_script
from reprokit.replay.engines import contained_script
from reprokit.replay.engines.script import Script
from reprokit.replay.stage import Stage
from reprokit.replay.verdict import Verdict
from reprokit.step.case import Case
from reprokit.step.outcome import Status

pytestmark = pytest.mark.slow

PROCESS, DOCKER = "process", pytest.param("docker", marks=pytest.mark.docker)


def mark():
    """Seconds of a sleep that no other process sleeps."""
    return f"7{time.monotonic_ns() % 10**9:09}.{os.getpid()}"


def sleeping(own):
    """Processes that a command left with this mark; those in containers are processes of this machine as well."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:2] == ["sleep", own] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """Where temporary folders are made: nothing may be left there."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder whose name is none that a shell would like, in which commands run."""
    folder = tmp_path / "my {config} code's"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def run(here, scratch, request):
    """run(body, engine, ...) -> Replay of a script with this body."""

    def once(body, engine=PROCESS, *, words="", fails_on=(), subject=None, config=None, batch=None, **options):
        if body is not None:
            (here / "train.py").write_text(textwrap.dedent(body))
        if engine == "docker":
            options.setdefault("image", request.getfixturevalue("base_image"))
        asked = scripting.asked(f"python3 train.py {words}", fails_on, config=config, batch=batch)
        options = {"n": 1, "jobs": 2, "timeout": 120.0} | options
        found = scripting.replay(subject, asked, Options(engine=engine, **options), Silence())
        assert not list(scratch.glob(f"{PREFIX}*"))
        return found

    return once


WRITES = """
import json, os, pathlib, sys
pathlib.Path("written").write_text("x")
config, out, seed, attempt = sys.argv[1:5]
print("config", open(config).read(), os.path.basename(config))
print("beside", sorted(os.listdir(".")))
print("words", json.dumps(sys.argv[5:]))
pathlib.Path(out, "metrics.jsonl").write_text(json.dumps({"loss": int(attempt) * 1000}))
"""


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_each_attempt_has_its_places_and_a_copy_of_its_own(run, here, engine):
    file = here / "my {batch} cfg.yaml"
    file.write_text("a: 1")
    words = """'{config}' "{out}" {seed} {attempt} 'two  words' "it's" '{"a": 1}' '$(touch x)' ';' '{{out}}'"""
    found = run(WRITES, engine, words=words, fails_on=["metric=loss>500"], config=file, n=3, jobs=1, estimate=True)
    statuses = [one.outcome.status for one in found.attempts]
    assert statuses == [Status.PASS, Status.FAIL, Status.FAIL], found.attempts[0].outcome.detail
    assert found.verdict is Verdict.FLAKY and found.attempts[2].outcome.losses == {"loss": 2000.0}
    log = found.attempts[2].outcome.log
    assert "config a: 1 my {batch} cfg.yaml" in log
    assert "beside ['my {batch} cfg.yaml', 'train.py', 'written']" in log
    assert json.dumps(["two  words", "it's", '{"a": 1}', "$(touch x)", ";", "{out}"]) in log
    assert sorted(os.listdir(here)) == ["my {batch} cfg.yaml", "train.py"]


ENDS = """
import os, signal, sys
how = sys.argv[1]
print("before", flush=True)
if how == "raise":
    raise ValueError("took 17 s")
if how == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if how == "fault":
    os.kill(os.getpid(), signal.SIGSEGV)
sys.exit(int(how))
"""


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_how_it_ends_decides(run, engine):
    ended = lambda how, *fails_on, **more: run(ENDS, engine, words=how, fails_on=fails_on, **more).attempts[0].outcome
    assert ended("0").status is Status.PASS
    raised = ended("raise")
    assert raised.status is Status.FAIL and raised.signature.exception == "ValueError" and raised.exit_code == 1
    fault = ended("fault", "exit=3")
    assert fault.status is Status.OTHER and fault.exit_code == 139
    assert ended("3", "exit=3").status is Status.FAIL
    with pytest.raises(Exception, match="killed from outside"):
        ended("kill")
    assert ended("kill", "exit=137").status is Status.FAIL


DEAF = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
print("loss: nan", flush=True)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", sys.argv[1]])
        os._exit(0)
if sys.argv[2] == "end":
    sys.exit(0)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_what_is_deaf_and_forks_ends_with_its_attempt(run, engine, overdue_when):
    own, ending = mark(), mark()
    overdue_when(lambda: len(sleeping(own)) == 3)
    found = run(DEAF, engine, words=f"{own} hang", fails_on=["hang"])
    assert found.attempts[0].outcome.status is Status.FAIL and not sleeping(own)
    assert "did not end within 120 s" in found.attempts[0].outcome.detail
    assert found.attempts[0].outcome.exit_code is None
    seen = run(DEAF, engine, words=f"{own} hang", fails_on=["output=loss: nan"])
    assert seen.attempts[0].outcome.status is Status.FAIL and not sleeping(own)
    other = run(DEAF, engine, words=f"{own} hang")
    assert other.attempts[0].outcome.status is Status.OTHER
    ended = run(DEAF, engine, words=f"{ending} end")
    assert ended.attempts[0].outcome.status is Status.PASS and not sleeping(ending)


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_who_leaves_does_not_wait_for_what_runs(here, scratch, engine, request, until, monkeypatch):
    monkeypatch.setattr(contained_script, "_PARTING", 1e6)  # for output, of which no more would come
    own, image = mark(), request.getfixturevalue("base_image") if engine == "docker" else None
    (here / "train.py").write_text(DEAF)
    asked = scripting.asked(f"python3 train.py {own} hang")
    with Stage(None, asked.command.places, asked.given) as stage:
        script = Script(command=asked.command, fails_on=asked.fails_on, stage=stage)
        with open_script(script, None, Options(engine=engine, image=image, jobs=1)) as opened:
            future = opened.submit(Case(incident=here))
            until(lambda: len(sleeping(own)) == 3)
        assert future.result().detail == "interrupted" and not sleeping(own)
    assert not list(scratch.glob(f"{PREFIX}*"))


def test_one_that_kills_what_keeps_it_ends_too(run):
    body = "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(600)"
    with pytest.raises(Exception, match="killed from outside"):
        run(body)


LOUD = """
import sys
print("loss: nan")
block = "x" * 65535 + "\\n"
for _ in range(1600):
    sys.stdout.write(block)
print("the end")
"""


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_a_hundred_megabytes_of_output_hide_nothing(run, engine):
    outcome = run(LOUD, engine, fails_on=["output=loss: nan"]).attempts[0].outcome
    assert outcome.status is Status.FAIL and outcome.log.endswith("the end") and len(outcome.log) < 100_000


ESCAPES = """
import os, pathlib, socket
def attempt(what, action):
    try:
        action()
        print("did", what)
    except OSError as error:
        print("refused", what, error.strerror)
for path in ("/incident/new", "/incident/incident.json", "/inputs/new", "/inputs/config.yaml", "/etc/passwd", "/new",
             "/out/../new", "/work/../new", "/opt/reprokit/new"):
    attempt("write " + path, lambda: pathlib.Path(path).write_text("x"))
def connect():
    with socket.socket() as one:
        one.settimeout(5)
        one.connect(("192.0.2.1", 80))
attempt("connect", connect)
attempt("root", lambda: os.setuid(0))
os.symlink("/etc/passwd", "/out/metrics.jsonl")
print("wrote", [pathlib.Path(path, "x").write_text("x") for path in ("/work", "/out", "/tmp")])
raise SystemExit(7)
"""


@pytest.mark.docker
def test_a_hostile_script_writes_nowhere_else_and_reaches_nothing(run, make_incident, here):
    (here / "train.py").write_text("")
    words = "{incident} {config} {batch}"
    asked_of = Subject(incident=changed(make_incident(), ESCAPES), foreign=True)
    found = run(None, "docker", words=words, subject=asked_of, fails_on=["exit=7", "metric=loss"])
    log = found.attempts[0].outcome.log
    assert found.attempts[0].outcome.status is Status.FAIL and found.attempts[0].outcome.exit_code == 7, log
    assert "did" not in log and log.count("refused") == 11 and "wrote [1, 1, 1]" in log
    with pytest.raises(BadInput, match="runs it unconfined"):
        run(None, PROCESS, words=words, subject=asked_of)


def changed(incident, text):
    """The incident with a script of this text beside its own, called train.py."""
    with Draft(incident.path.parent) as draft:
        incident.copy_into(draft)
        draft.write_text("source/tree/train.py", text)
        manifest = incident.manifest
        return Incident.open(
            draft.publish(
                "changed",
                signature=manifest.signature,
                step=1,
                entrypoint=manifest.entrypoint,
                layout=manifest.layout,
            ).path
        )


READS = """
import sys
from safetensors.torch import load_file
batch = load_file(sys.argv[1])
print("seed", sys.argv[3])
print({"loss": float(batch["x"].mean())})
assert open(sys.argv[2]).read().startswith("seed: 3")
"""


@pytest.mark.parametrize("engine", [PROCESS, DOCKER])
def test_an_incident_gives_its_batch_its_config_and_its_source(run, make_incident, request, engine):
    transposed = torch.full((4, 4), float("nan")).t()
    incident = changed(make_incident(batch={"x": transposed}), READS)
    image = request.getfixturevalue("replay_image") if engine == "docker" else None
    found = run(
        None, engine, words="{batch} {config} {seed}", subject=Subject(incident=incident), fails_on=["metric=loss"],
        image=image,
    )  # fmt: skip
    outcome = found.attempts[0].outcome
    assert outcome.status is Status.FAIL, outcome.log
    assert f"seed {incident.rng()['initial_seeds']['torch']}" in outcome.log


def test_attempts_are_kept_and_gone_on_with(run, tmp_path):
    out = tmp_path / "kept"
    first = run("print('x')", n=2, out=out)
    assert first.verdict is Verdict.NOT_REPRODUCED and (out / "logs/0001.txt").read_text() == "exit code 0\nx\n"
    more = run("print('x')", n=4, resume=out)
    assert more.n == 4 and len(more.attempts) == 4
    with pytest.raises(BadInput, match="not the same files"):
        run("print('y')", n=4, resume=out)
    with pytest.raises(BadInput, match="not the same fails_on"):
        run("print('x')", n=4, resume=out, fails_on=["hang"])


def test_a_seed_for_each_attempt_is_an_input(run):
    body = "import sys; sys.exit(int(sys.argv[1]) % 2)"
    found = run(body, words="{seed}", n=59, rng="fresh")
    assert found.verdict is Verdict.FLAKY and found.depends_on == ("rng",)


@pytest.mark.parametrize(
    ("words", "options", "says"),
    [
        ("nowhere-to-be-found x", {}, "nowhere-to-be-found: no such program here"),
        ("./train.py", {}, "./train.py: not to be run"),
        ("python3 absent.py", {}, "absent.py: not in the source"),
        ("python3 train.py {batch}", {}, "{batch} needs an INCIDENT, or --batch FILE"),
        ("python3 train.py {incident}", {}, "{incident} needs an INCIDENT"),
        ("python3 train.py", {"engine": "fork"}, "--engine fork: runs steps of a harness"),
        ("python3 train.py", {"engine": "inline"}, "--engine inline: runs steps of a harness"),
        ("python3 train.py", {"engine": "docker"}, "add --image NAME"),
        ("python3 train.py", {"vary": ("threads",)}, "--vary threads: a switch inside of a step"),
        ("python3 train.py", {"rng": "fresh"}, "has no {seed}"),
        ("python3 train.py", {"match": "x"}, "--match: is about the step"),
        ("python3 train.py", {"deterministic": True}, "--deterministic: is about the step"),
    ],
)
def test_what_cannot_be_is_one_line(here, scratch, words, options, says):
    (here / "train.py").write_text("")
    with pytest.raises(BadInput) as refused:
        scripting.replay(None, scripting.asked(words), Options(n=1, **options), Silence())
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert not list(scratch.glob(f"{PREFIX}*"))


@pytest.mark.docker
def test_a_program_that_the_image_lacks_is_one_line(here, scratch, base_image):
    asked = scripting.asked("nowhere-to-be-found x")
    with pytest.raises(BadInput, match="nowhere-to-be-found: does not start in"):
        scripting.replay(None, asked, Options(n=1, engine="docker", image=base_image), Silence())
