"""What one attempt asks of a container engine, and what its end means. Pure: nothing here talks to an engine.

An incident carries somebody's code. The container that runs it sees three things of this machine: the incident and
reprokit, both read-only, and one folder that it may write to. It has no network, no capabilities, no root and no way to
get them, and a share of the machine that leaves the rest standing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from docker.types import DeviceRequest, LogConfig, Mount, Ulimit

from reprokit.errors import BadInput
from reprokit.failure import Kind, Signature
from reprokit.step.case import Case
from reprokit.step.outcome import Outcome, Status

INCIDENT, PACKAGE, OUT = "/incident", "/opt/reprokit/reprokit", "/out"
WORKER = ("python3", "-m", "reprokit.step.serve", "--case", f"{OUT}/case.json", "--out", f"{OUT}/outcome.json")
LABEL = "reprokit"  # on every container, so that none is lost: `docker ps -a --filter label=reprokit=1`

GRACE = 15  # seconds after its deadline in which a container ends itself, in case whoever started it is gone
USER = 1000  # nobody in particular, for callers who are root
_GIB = 1 << 30
_LEAST = 256 << 20  # bytes of memory without which torch is not even imported
_SIGKILL = 128 + 9
_NO_COMPILER = ("InvalidCxxCompiler: No working C++ compiler", "Failed to find C compiler")  # inductor, triton
# Of this machine, and meaningless or harmful in a container. Whatever decides about numbers passes.
_HOST_ONLY = {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"} | {
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
}
_CONTAINER = {
    "HOME": "/tmp",  # noqa: S108
    "USER": "reprokit",
    "TMPDIR": "/tmp",  # noqa: S108
    "PYTHONPATH": PACKAGE.rpartition("/")[0],
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What one container may take."""

    memory: int  # bytes, tmpfs and shared memory included; no swap on top
    cpus: float
    deadline: float = 900.0  # seconds from start to kill: building a large model on a busy machine is slow
    pids: int = 1024  # threads count: loaders, OpenMP and autograd together stay far below
    shm: int = 2 * _GIB  # what loaders pass batches through; Docker's own default of 64 MiB kills them
    tmp: int = 8 * _GIB  # compilers' caches; also the largest single file that may be written anywhere
    log: int = 8 << 20  # bytes of output kept on this machine's disk
    out: int = _GIB  # bytes in the output folder, which is on this machine's disk too: an outcome takes one MiB


@dataclass(frozen=True, kw_only=True, slots=True)
class Bind:
    """A folder of this machine that the caller chose to show to the container."""

    source: str
    target: str
    writable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ContainerSpec:
    """Everything that is asked of the engine for one container."""

    image: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    user: str
    binds: tuple[Bind, ...]
    limits: Limits
    network: str
    gpus: bool
    run: str  # which engine object started it
    workdir: str = "/tmp"  # noqa: S108

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for docker-py's `containers.create`."""
        limits = self.limits
        return {
            "image": self.image,
            "entrypoint": [],  # the image's own may do anything
            "command": list(self.command),
            "environment": dict(self.environment),
            "user": self.user,
            "working_dir": self.workdir,
            "hostname": "reprokit",  # the default is random, and programs seed themselves with it
            "labels": {LABEL: "1", f"{LABEL}.run": self.run},
            "network_mode": self.network,
            "read_only": True,
            "tmpfs": {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={limits.tmp}"},  # noqa: S108
            "mounts": [Mount(b.target, b.source, type="bind", read_only=not b.writable) for b in self.binds],
            "use_config_proxy": False,  # it has no network, and a proxy's password is not for it
            "cap_drop": ["ALL"],
            "security_opt": ["no-new-privileges:true"],
            "init": True,
            "shm_size": limits.shm,
            "mem_limit": limits.memory,
            "memswap_limit": limits.memory,
            "nano_cpus": int(limits.cpus * 1e9),
            "pids_limit": limits.pids,
            "ulimits": [Ulimit(name="core", soft=0, hard=0), Ulimit(name="fsize", soft=limits.tmp, hard=limits.tmp)],
            "device_requests": [DeviceRequest(count=-1, capabilities=[["gpu"]])] if self.gpus else [],
            "log_config": LogConfig(type="json-file", config={"max-size": str(limits.log), "max-file": "1"}),
        }


def container_spec(
    case: Case,
    image: str,
    limits: Limits,
    *,
    package: str,  # reprokit's own folder
    out: str,  # the one folder that the container may write to
    environment: Mapping[str, str],
    user: str = f"{USER}:{USER}",
    gpus: bool = False,
    network: str = "none",
    binds: Sequence[Bind] = (),
    command: Sequence[str] = WORKER,
    run: str = "",
) -> ContainerSpec:
    """The container for one attempt at a case. It ends by itself soon after its deadline, whoever still watches."""
    own_deadline = ("timeout", "-s", "KILL", str(ceil(limits.deadline) + GRACE))
    return ContainerSpec(
        image=image,
        command=(*own_deadline, *command),
        environment={k: v for k, v in environment.items() if k not in _HOST_ONLY} | _CONTAINER,
        user=user,
        binds=(
            Bind(source=str(case.incident), target=INCIDENT),
            Bind(source=package, target=PACKAGE),
            Bind(source=out, target=OUT, writable=True),
            *binds,
        ),
        limits=limits,
        network=network,
        gpus=gpus,
        run=run,
    )


def user_for(uid: int, gid: int, *, rootless: bool) -> str:
    """Who the container runs as: the caller, so that its files are the caller's, but never root."""
    if rootless:  # root in there is the caller out here; any other number is nobody
        return "0:0"
    return f"{uid}:{gid}" if uid else f"{USER}:{USER}"


def jobs_for(cpus: int, memory: int, need: int) -> int:
    """How many containers at once: one a core, if each gets the memory that it needs out of four fifths of all."""
    return max(1, min(cpus, memory * 4 // 5 // max(need, 1)))


def check_jobs(jobs: int, memory: int) -> None:
    """Raises BadInput for so many at once that none of them could run."""
    most = max(1, memory * 4 // 5 // _LEAST)
    if jobs > most:
        raise BadInput(f"--jobs {jobs}: leaves too little of this machine's memory to each; give at most {most}")


def limits_for(cpus: int, memory: int, jobs: int) -> Limits:
    """An equal share of the memory, all cores for each: a quota would stall threads that wait for each other."""
    share = memory * 4 // 5 // jobs
    return Limits(memory=share, cpus=float(cpus), shm=min(2 * _GIB, share // 2), tmp=min(8 * _GIB, share // 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """How a container ended."""

    code: int  # exit status; 128 + n for signal n
    out_of_memory: bool = False  # the kernel killed a process in it for its memory limit
    overdue: str = ""  # killed at its deadline: at which
    greedy: str = ""  # killed for what it took of this machine's disk: how much
    begun: bool = False  # in its step; otherwise it had not come that far
    log: str = ""  # the last lines that it printed


def conclude(end: End, written: Outcome | None, limits: Limits, captured: Kind | None) -> Outcome:
    """The outcome of an attempt. One that was written counts, however its process ended after that."""
    if written is not None:
        return without_compiler(written)
    if end.out_of_memory:  # our limit, not the failure's: says nothing about the case
        return _infra(f"killed at its memory limit of {limits.memory / _GIB:.1f} GiB; run fewer jobs at once")
    if end.greedy:
        return _infra(end.greedy)
    if end.overdue:
        why = end.overdue
        return _died(Kind.HANG, captured, why, end) if end.begun else _infra(f"{why}; give it longer (--timeout)")
    if end.code == _SIGKILL:
        return _infra("killed from outside")
    how = f"died of signal {end.code - 128}" if end.code > 128 else f"ended with exit code {end.code} and no outcome"
    if end.begun:
        return _died(Kind.CRASH, captured, f"{how} in the step", end)
    return _infra(f"{how}, before the step\n{end.log}".strip())  # what it printed last says why


def without_compiler(written: Outcome) -> Outcome:
    """A step that wanted to compile and could not has not run: that is the image's, and no other failure."""
    if written.status is Status.OTHER and any(words in written.detail for words in _NO_COMPILER):
        why = "the step is compiled (torch.compile), and its image has no compiler; build one with --compiler"
        return replace(written, status=Status.INFRA, signature=None, symptoms=(), detail=why)
    return written


def _died(kind: Kind, captured: Kind | None, why: str, end: End) -> Outcome:
    status = Status.FAIL if captured is kind else Status.OTHER
    return Outcome(status=status, signature=Signature(kind=kind, where="step"), detail=f"{why}\n{end.log}".strip())


def _infra(why: str) -> Outcome:
    return Outcome(status=Status.INFRA, detail=why)
