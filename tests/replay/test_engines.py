"""What every engine keeps to, whatever it runs attempts in. A new engine adds itself to PLACES."""

import os
import re
import time
from dataclasses import dataclass, replace

import psutil
import pytest

from reprokit.failure import Kind, Signature, Symptom
from reprokit.replay.choose import open_engine
from reprokit.replay.engines.options import EngineOptions
from reprokit.replay.engines.slurm import Slurm
from reprokit.step.case import Case, Variant
from reprokit.step.outcome import Status

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOBS = 2
DOCKER = pytest.mark.docker


@dataclass(frozen=True)
class Place:
    """An engine as it is asked for, and what can be expected of it."""

    name: str
    inner: str | None = None
    own: bool = True  # attempts are not in this process
    options: tuple[tuple[str, object], ...] = ()

    @property
    def contained(self):
        return "docker" in (self.name, self.inner) or (self.name, self.inner) == ("ray", "fork")

    def open(self, incident, image, **options):
        if self.own:
            options = {"jobs": JOBS, "timeout": 300.0} | options
        image = image() if self.contained else None
        if self.name == "slurm":  # which has no machine of its own to run on here
            there = EngineOptions(engine=self.inner, timeout=options["timeout"])
            return Slurm(incident, cluster="local", jobs=JOBS, there=there)
        more = dict(self.options) | options
        return open_engine(incident, EngineOptions(engine=self.name, inner=self.inner, image=image, **more))


PLACES = [
    pytest.param(Place("docker"), id="docker", marks=DOCKER),
    pytest.param(Place("process"), id="process"),
    pytest.param(Place("fork", "docker"), id="fork-docker", marks=DOCKER),
    pytest.param(Place("fork", "process"), id="fork-process"),
    pytest.param(Place("inline", own=False), id="inline"),
    pytest.param(Place("ray", "process"), id="ray-process"),
    pytest.param(Place("ray", "docker"), id="ray-docker", marks=DOCKER),
    pytest.param(Place("ray", "fork"), id="ray-fork", marks=DOCKER),  # in a container, where Docker answers
    pytest.param(Place("slurm", "process"), id="slurm-process"),
]

BODY = """
import os, signal, subprocess, sys, time
do = config["do"]
def loose(mark):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", mark])
        os._exit(0)
    os.wait()
def above(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
print("begin", time.monotonic(), flush=True)
if do == "exit":
    os._exit(3)
if do == "fault":
    os.kill(os.getpid(), signal.SIGSEGV)
if do == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if do == "kill what forks":
    os.kill(above(above(os.getpid())), signal.SIGKILL)
    time.sleep(600)
if do == "kill what watches":
    loose(config["mark"])
    os.kill(above(os.getpid()), signal.SIGKILL)
    time.sleep(600)
if do == "escape":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for path in ("/incident/new", "/opt/reprokit/new", "/etc/new", "/usr/new"):
        try:
            open(path, "w")
            print("wrote", path)
        except OSError:
            pass
    for _ in range(3):
        loose(config["mark"])
if do in ("hang", "linger"):
    loose(config["mark"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
time.sleep(0.3)
print("end", time.monotonic(), flush=True)
"""


def doing(incident, do, mark="0", **changes):
    return Case(incident=incident.path, variant=Variant(name=do, config={"do": do, "mark": mark}), **changes)


def running(mark):
    """Processes that an attempt left with this mark; those in containers are processes of this machine as well."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cmdline()[:2] == ["sleep", mark] and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def mark():
    """Seconds of a sleep that no other process sleeps."""
    return f"6{time.monotonic_ns() % 10**9:09}.{os.getpid()}"


@pytest.fixture(scope="module")
def small(incidents_in, tmp_path_factory):
    """A loss that is NaN; what its step does besides is what the case's config says."""
    make = incidents_in(tmp_path_factory.mktemp("engines"))
    return make(body=BODY, config={"do": "nothing", "mark": "0"})


@pytest.fixture(scope="module")
def hanging(incidents_in, tmp_path_factory):
    """A step that was captured when it had hung for a second."""
    make = incidents_in(tmp_path_factory.mktemp("hanging"))
    waited = Symptom(kind=Kind.HANG, where="step", evidence={"hang_after": 1.0})
    captured = Signature(kind=Kind.HANG, where="step")
    return make(body=BODY, config={"do": "hang", "mark": "0"}, signature=captured, symptoms=(waited,))


@pytest.fixture(scope="module")
def image(request):
    """Asked for where a place needs it: others work without Docker."""
    return lambda: request.getfixturevalue("replay_image")


@dataclass
class Seen:
    """One engine's life: many cases at once, an attempt left running, the end."""

    outcomes: dict
    capacity: int
    left: dict  # processes that each attempt had started and that were there after it
    lingering: object  # the future of the attempt that ran when the engine was closed
    after: dict  # the same of that one, before and after the end
    refused: type | None  # what a case met that came after the end


@pytest.fixture(scope="module", params=PLACES)
def place(request, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        if request.param.name in ("ray", "slurm"):
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        if request.param.name == "ray":
            address = request.getfixturevalue("ray_cluster").address
            yield replace(request.param, options=(("ray_address", address),))
        else:
            yield request.param


@pytest.fixture(scope="module")
def seen(place, small, image):
    marks = {"escape": mark(), "linger": mark()}
    lingering, after = None, {}
    with place.open(small, image) as engine:
        cases = {"fail": doing(small, "nothing"), "donor": doing(small, "nothing", content="donor")}
        if place.own:
            cases |= {do: doing(small, do, marks.get(do, "0")) for do in ("exit", "fault", "kill", "escape")}
            cases["unbuildable"] = replace(doing(small, "nothing"), variant=Variant(config={"dropout": 7.0}))
        futures = {what: engine.submit(case) for what, case in cases.items()}
        outcomes = {what: future.result(timeout=250) for what, future in futures.items()}
        left = {what: running(one) for what, one in marks.items()}
        if place.own:
            lingering = engine.submit(doing(small, "linger", marks["linger"]))
            while not lingering.done() and not running(marks["linger"]):
                time.sleep(0.05)
            after["before"] = running(marks["linger"])
    until = time.monotonic() + 60  # a container's processes are gone a moment after it
    while running(marks["linger"]) and time.monotonic() < until:
        time.sleep(0.05)
    after["after"] = running(marks["linger"])
    refused = None
    try:
        engine.submit(doing(small, "nothing"))
    except Exception as error:
        refused = type(error)
    return Seen(outcomes, engine.capacity, left, lingering, after, refused)


def test_the_captured_failure_fails_and_the_donor_passes(seen):
    fail, donor = seen.outcomes["fail"], seen.outcomes["donor"]
    captured = Signature(kind=Kind.NONFINITE_LOSS, where="loss")
    assert (fail.status, fail.signature) == (Status.FAIL, captured), fail.detail
    assert donor.status is Status.PASS, donor.detail
    assert fail.fingerprint and donor.fingerprint and fail.fingerprint != donor.fingerprint
    assert fail.host and fail.total_seconds >= fail.seconds > 0


def test_all_engines_make_the_same_bits(seen, small):
    with open_engine(small, EngineOptions(engine="inline")) as engine:
        here = {what: engine.submit(doing(small, "nothing", content=what)).result() for what in ("batch", "donor")}
    assert seen.outcomes["fail"].fingerprint == here["batch"].fingerprint
    assert seen.outcomes["donor"].fingerprint == here["donor"].fingerprint


def test_a_case_that_cannot_be_built_is_invalid(seen, place):
    if place.own:
        assert seen.outcomes["unbuildable"].status is Status.INVALID, seen.outcomes["unbuildable"].detail


@pytest.mark.parametrize(("do", "says", "code"), [("fault", "SIGSEGV|signal 11", 139), ("exit", "exit.* 3", 3)])
def test_a_step_that_ends_its_process_crashes(seen, place, do, says, code):
    if place.own:
        outcome = seen.outcomes[do]
        assert (outcome.status, outcome.signature.kind) == (Status.OTHER, Kind.CRASH), outcome.detail
        assert re.search(says, outcome.detail) and outcome.exit_code == code


def test_killed_from_outside_says_nothing(seen, place):
    if place.own:
        outcome = seen.outcomes["kill"]
        assert outcome.status is Status.INFRA and "killed from outside" in outcome.detail


def test_what_an_attempt_starts_ends_with_it_and_stays_where_it_may_write(seen, place):
    if place.own:
        outcome = seen.outcomes["escape"]
        assert outcome.status is Status.FAIL and not seen.left["escape"], outcome.detail
    if place.contained:
        assert "wrote" not in outcome.log and "begin" in outcome.log


def test_what_an_attempt_prints_is_kept(seen, place):
    if place.own:
        logs = [outcome.log for what, outcome in seen.outcomes.items() if what != "unbuildable"]
        assert all(log.count("begin") == 1 for log in logs)


def test_never_more_at_once_than_there_is_room_for(seen, place):
    assert seen.capacity == (JOBS if place.own else 1)
    times = [re.findall(r"(?m)^(?:begin|end) ([\d.]+)$", outcome.log) for outcome in seen.outcomes.values()]
    spans = [tuple(map(float, found)) for found in times if len(found) == 2]
    assert len(spans) >= 2 * place.own
    assert all(sum(begin <= one < end for begin, end in spans) <= JOBS for one, _ in spans)


def test_leaving_ends_what_runs_and_takes_no_more(seen, place):
    assert seen.refused is RuntimeError
    if place.own:
        assert seen.after["before"] and not seen.after["after"]
        assert seen.lingering.done()


@pytest.fixture
def hung(place, hanging, image):
    if not place.own:
        pytest.skip("a hang would take this process with it")
    own = mark()
    with place.open(hanging, image) as engine:
        case = doing(hanging, "hang", own)
        outcome = engine.submit(case).result(timeout=250)
    return outcome, running(own)


def test_a_step_that_hangs_is_killed_at_its_deadline(hung):
    outcome, left = hung
    assert (outcome.status, outcome.signature and outcome.signature.kind) == (Status.FAIL, Kind.HANG), outcome.detail
    assert "did not end within 2.5 s" in outcome.detail and outcome.exit_code is None and not left


@pytest.mark.parametrize("inner", [pytest.param("docker", marks=DOCKER), "process"])
def test_what_forks_is_started_again_and_its_attempt_says_nothing(small, image, inner, overdue_when):
    own, lingers = mark(), mark()
    overdue_when(lambda: bool(running(lingers)))
    with Place("fork", inner).open(small, image, jobs=1, timeout=200.0) as engine:
        killed = engine.submit(doing(small, "kill what forks")).result(timeout=250)
        again = engine.submit(doing(small, "nothing")).result(timeout=250)
        unwatched = engine.submit(doing(small, "kill what watches", own)).result(timeout=250)
        left = running(own)
        overdue = engine.submit(doing(small, "linger", lingers)).result(timeout=250)
        left += running(lingers)
        once_more = engine.submit(doing(small, "nothing")).result(timeout=250)
    assert killed.status is Status.INFRA and "the parent of attempts" in killed.detail, killed.detail
    assert unwatched.status is Status.INFRA and "was killed" in unwatched.detail and not left, unwatched.detail
    assert overdue.status is Status.OTHER and "did not end within 200 s" in overdue.detail
    assert (again.status, once_more.status) == (Status.FAIL, Status.FAIL)


def test_threads_of_a_fork_are_its_own(incidents_in, tmp_path):
    """In a parent that had run a matrix product with threads, this one would wait for them for ever."""
    large = "torch.set_num_threads(4); (torch.rand(600, 600) @ torch.rand(600, 600)).sum()"
    incident = incidents_in(tmp_path)(body=large)
    options = EngineOptions(engine="fork", inner="process", jobs=2, timeout=100.0)
    with open_engine(incident, options) as engine:
        outcomes = [engine.submit(Case(incident=incident.path)) for _ in range(3)]
        found = [future.result(timeout=250) for future in outcomes]
    assert [one.status for one in found] == [Status.FAIL] * 3, found[0].detail
    assert len({tuple(one.fingerprint.items()) for one in found}) == 1
