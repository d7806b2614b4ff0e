from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.replay.container import (
    GRACE,
    INCIDENT,
    OUT,
    PACKAGE,
    Bind,
    ContainerSpec,
    End,
    Limits,
    check_jobs,
    conclude,
    container_spec,
    jobs_for,
    limits_for,
    user_for,
)
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

GIB = 1 << 30
LIMITS = Limits(memory=4 * GIB, cpus=2.0, deadline=30.0)
CASE = Case(incident=Path("/data/incident"))


def spec(**changes) -> ContainerSpec:
    given = {"package": "/src/reprokit", "out": "/run/out", "environment": {}} | changes
    return container_spec(CASE, "an/image:tag", LIMITS, **given)


def test_nothing_is_allowed_that_nobody_asked_for():
    asked = spec().arguments()
    assert asked["network_mode"] == "none"
    assert asked["read_only"] is True
    assert asked["user"] == "1000:1000"
    assert asked["cap_drop"] == ["ALL"] and "cap_add" not in asked
    assert asked["security_opt"] == ["no-new-privileges:true"]
    assert "privileged" not in asked and "devices" not in asked and "pid_mode" not in asked and "ipc_mode" not in asked
    assert asked["device_requests"] == []
    assert asked["init"] is True
    assert asked["entrypoint"] == []


def test_everything_has_a_limit():
    asked = spec().arguments()
    assert asked["mem_limit"] == asked["memswap_limit"] == 4 * GIB
    assert asked["nano_cpus"] == 2_000_000_000
    assert asked["pids_limit"] == LIMITS.pids
    assert asked["shm_size"] == LIMITS.shm
    assert f"size={LIMITS.tmp}" in asked["tmpfs"]["/tmp"]
    assert {limit["Name"]: limit["Hard"] for limit in asked["ulimits"]} == {"core": 0, "fsize": LIMITS.tmp}
    assert asked["log_config"]["Config"]["max-size"] == str(LIMITS.log)


def test_compilers_may_run_what_they_cached_in_tmp():
    options = spec().arguments()["tmpfs"]["/tmp"].split(",")
    assert {"rw", "exec", "nosuid", "nodev", "mode=1777"} <= set(options)


def test_only_the_output_folder_can_be_written():
    mounts = spec().arguments()["mounts"]
    assert [(m["Source"], m["Target"], m["ReadOnly"]) for m in mounts] == [
        ("/data/incident", INCIDENT, True),
        ("/src/reprokit", PACKAGE, True),
        ("/run/out", OUT, False),
    ]
    assert {m["Type"] for m in mounts} == {"bind"}  # refused by the engine where the source is missing


def test_what_the_caller_chose_is_added():
    asked = spec(network="bridge", binds=[Bind(source="/data", target="/data")], gpus=True).arguments()
    assert asked["network_mode"] == "bridge"
    assert (asked["mounts"][-1]["Source"], asked["mounts"][-1]["ReadOnly"]) == ("/data", True)
    assert asked["device_requests"][0]["Count"] == -1 and asked["device_requests"][0]["Capabilities"] == [["gpu"]]


def test_it_ends_by_itself_after_its_deadline():
    assert spec().command[:4] == ("timeout", "-s", "KILL", str(30 + GRACE))
    assert spec().command[4:7] == ("python3", "-m", "reprokit.step.serve")


def test_variables_of_this_machine_stay_here_and_those_about_numbers_go_along():
    captured = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7", "PATH": "/home/me/bin", "HOME": "/home/me"}
    environment = spec(environment=captured | {"LD_PRELOAD": "/home/me/hook.so"}).environment
    assert environment["OMP_NUM_THREADS"] == "2" and environment["PYTHONHASHSEED"] == "7"
    assert "PATH" not in environment and "LD_PRELOAD" not in environment
    assert environment["HOME"] == "/tmp"
    assert environment["PYTHONPATH"] == str(Path(PACKAGE).parent)


@given(st.integers(0, 2**31), st.integers(0, 2**31))
def test_never_root_and_otherwise_the_caller(uid, gid):
    assert user_for(uid, gid, rootless=False) == (f"{uid}:{gid}" if uid else "1000:1000")
    assert user_for(uid, gid, rootless=True) == "0:0"  # which is the caller, outside


@given(st.integers(1, 512), st.integers(GIB // 2, 4096 * GIB), st.integers(1, 1024 * GIB))
def test_jobs_together_leave_a_fifth_of_the_memory(cpus, memory, need):
    jobs = jobs_for(cpus, memory, need)
    limits = limits_for(cpus, memory, jobs)
    assert 1 <= jobs <= cpus
    assert jobs * limits.memory <= memory * 4 // 5
    assert jobs == 1 or limits.memory >= need
    assert limits.shm <= limits.memory and limits.tmp <= limits.memory


@pytest.mark.parametrize(
    ("end", "captured", "status", "kind"),
    [
        (End(code=137, overdue="late", begun=True), Kind.HANG, Status.FAIL, Kind.HANG),
        (End(code=137, overdue="late", begun=True), Kind.NONFINITE_LOSS, Status.OTHER, Kind.HANG),
        (End(code=137, overdue="late"), Kind.HANG, Status.INFRA, None),
        (End(code=139, begun=True), Kind.CRASH, Status.FAIL, Kind.CRASH),
        (End(code=134, begun=True), Kind.HANG, Status.OTHER, Kind.CRASH),
        (End(code=3, begun=True), Kind.CRASH, Status.FAIL, Kind.CRASH),
        (End(code=0, begun=True), Kind.NONFINITE_LOSS, Status.OTHER, Kind.CRASH),
        (End(code=139), Kind.CRASH, Status.INFRA, None),
        (End(code=137, out_of_memory=True), Kind.OOM, Status.INFRA, None),
        (End(code=137, out_of_memory=True, overdue="late"), Kind.HANG, Status.INFRA, None),
        (End(code=137), Kind.CRASH, Status.INFRA, None),
        (End(code=137, begun=True), Kind.CRASH, Status.INFRA, None),
        (End(code=127), Kind.CRASH, Status.INFRA, None),
        (End(code=0), Kind.CRASH, Status.INFRA, None),
    ],
)
def test_an_end_without_an_outcome(end, captured, status, kind):
    outcome = conclude(end, None, LIMITS, captured)
    assert outcome.status is status
    assert outcome.signature == (Signature(kind=kind, where="step") if kind else None)


def test_an_outcome_counts_however_its_process_ended():
    written = Outcome(status=Status.PASS)
    assert conclude(End(code=139, overdue="late", out_of_memory=True), written, LIMITS, Kind.CRASH) is written


@pytest.mark.parametrize("words", ["InvalidCxxCompiler: No working C++ compiler found", "Failed to find C compiler"])
def test_a_step_that_cannot_be_compiled_has_not_run(words):
    signature = Signature(kind=Kind.EXCEPTION, where="step", exception="InductorError")
    written = Outcome(status=Status.OTHER, signature=signature, detail=f"Traceback\nInductorError: {words}\n\nSet x=1")
    found = conclude(End(code=0), written, LIMITS, Kind.NONFINITE_LOSS)
    assert (found.status, found.signature) == (Status.INFRA, None) and found.detail.endswith("one with --compiler")
    captured = Outcome(status=Status.FAIL, signature=signature, detail=written.detail)
    assert conclude(End(code=0), captured, LIMITS, Kind.EXCEPTION) is captured  # where training had none either


@pytest.mark.parametrize("end", [End(code=137), End(code=137, greedy="killed for x"), End(code=137, overdue="late")])
def test_where_we_know_why_the_detail_is_that_alone(end):
    assert "\n" not in conclude(replace(end, log="two\nlines"), None, LIMITS, None).detail


def test_without_an_outcome_the_last_words_are_kept():
    outcome = conclude(End(code=1, log="ModuleNotFoundError: No module named 'flash_attn'"), None, LIMITS, Kind.CRASH)
    assert "exit code 1" in outcome.detail and "flash_attn" in outcome.detail


def test_more_at_once_than_memory_bears_is_refused_with_a_number_that_it_bears():
    with pytest.raises(BadInput, match=r"--jobs 1000000: leaves too little .*; give at most 51$"):
        check_jobs(1_000_000, 16 * GIB)
    check_jobs(51, 16 * GIB)
    check_jobs(1, GIB // 8)
