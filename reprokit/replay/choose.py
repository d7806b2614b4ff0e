"""Which engine runs an incident: the safest that answers, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import DEADLY
from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine

if TYPE_CHECKING:
    from reprokit.replay.engines.script import Script

ENGINES = ("docker", "process", "fork", "inline", "ray", "slurm")
OUTER = ("fork", "ray", "slurm")  # those that run another one, their inner engine
SCRIPTS = ("docker", "process")  # those that run a command, too
INNERS = ("docker", "process", "fork")


def open_engine(
    incident: Incident,
    name: str | None = None,
    *,
    inner: str | None = None,
    ray_address: str | None = None,
    store: str | None = None,
    partition: str | None = None,
    foreign: bool = False,
    trust: bool = False,
    jobs: int | None = None,
    timeout: float | None = None,
    match: str | None = None,
    image: str | None = None,
    base: str | None = None,
    wheelhouse: Path | None = None,
    compiler: bool = False,
    network: str = "none",
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """An engine for this incident's cases, to be used as a context manager.

    name: None takes docker where it answers, else process, and says so. inner: where an engine around others (fork,
    ray, slurm) runs its attempts; None: docker where it answers, else process. ray_address, store, partition: the
    cluster's, for ray and slurm. foreign: the incident came in a bundle, so its code runs only in a container unless
    `trust`. timeout: seconds for one attempt. image: use it as it is; otherwise one is built from the captured
    requirements on `base`, from `wheelhouse` if given, with a `compiler` if asked. say: gets lines of news. Raises
    BadInput for an unknown name or untrusted code, Infrastructure where the engine does not answer.
    """
    chosen, within = _chosen(name, inner, say)
    if chosen == "fork" and (why := _unforkable(incident)):
        chosen, within = within or "process", None
        say(f"fork: {why}; each attempt is a fresh one in engine {chosen} instead")
    _check(incident, chosen, within or chosen, confined=trust or not foreign)

    def built() -> str:
        from reprokit.replay import image as images

        return images.of(
            incident,
            given=image,
            base=base,
            wheelhouse=wheelhouse,
            compiler=compiler,
            trust=trust or not foreign,
            progress=say,
        )

    if chosen == "docker":
        from reprokit.replay.engines.docker import Docker
        from reprokit.replay.share import need_of

        return Docker(built(), jobs=jobs, need=need_of(incident), deadline=timeout, match=match, network=network)
    if chosen == "process":
        from reprokit.replay.engines.process import Process

        return Process(incident, jobs=jobs, timeout=timeout, match=match)
    if chosen == "inline":
        from reprokit.replay.engines.inline import Inline

        return Inline(incident, match=match)
    if chosen == "fork":
        from reprokit.replay.engines.fork import Fork

        tag = built() if within == "docker" else None
        return Fork(incident, image=tag, jobs=jobs, timeout=timeout, match=match, network=network)
    # What a node needs to open the inner engine of one attempt, with `open_engine` again.
    there = {
        "foreign": foreign,
        "trust": trust,
        "timeout": timeout,
        "match": match,
        "image": image,
        "base": base,
        "wheelhouse": wheelhouse,
        "compiler": compiler,
        "network": network,
    }
    module = import_module(f"reprokit.replay.engines.{chosen}")
    around = {"inner": within, "store": store, "jobs": jobs, "there": there}
    if chosen == "ray":
        return cast(Engine, module.Ray(incident, address=ray_address, say=say, **around))
    return cast(Engine, module.Slurm(incident, partition=partition, **around))


def open_script(
    script: Script,
    incident: Incident | None,
    name: str | None = None,
    *,
    inner: str | None = None,
    foreign: bool = False,
    trust: bool = False,
    jobs: int | None = None,
    timeout: float | None = None,
    image: str | None = None,
    base: str | None = None,
    wheelhouse: Path | None = None,
    compiler: bool = False,
    network: str = "none",
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """An engine for attempts at a command; see `open_engine`. incident: None runs in the current folder, whose code is
    the user's own, so a process will do where no image is given."""
    if name is not None and name not in ENGINES:
        raise BadInput(f"--engine {name}: unknown; one of {', '.join(SCRIPTS)}")
    if inner or name not in (None, *SCRIPTS):
        raise BadInput(f"--engine {name}: runs steps of a harness, not a command; use {' or '.join(SCRIPTS)}")
    own = incident is None and image is None
    chosen = name or ("process" if own else _default(say))
    if chosen == "process":
        if incident and foreign and not trust:
            raise _unconfined(incident, chosen)
        if why := _no_gpu(incident):
            raise Infrastructure(why)
        from reprokit.replay.engines.script import ScriptProcess

        return ScriptProcess(script, incident, jobs=jobs, timeout=timeout)
    if own:
        raise BadInput("--engine docker: without an INCIDENT nothing says which image; add --image NAME")
    from reprokit.replay.engines.contained_script import ContainedScript

    build: dict[str, Any] = {"base": base, "wheelhouse": wheelhouse, "compiler": compiler}
    tag = _script_image(incident, image, trust=trust or not foreign, say=say, **build)
    return ContainedScript(script, incident, tag, jobs=jobs, timeout=timeout, network=network)


def _no_gpu(incident: Incident | None) -> str:
    """Why a command cannot run here as it did: a CPU would run another one."""
    device = str(incident.flags().get("device", "")) if incident else ""
    if not device.startswith("cuda"):
        return ""
    import torch

    return "" if torch.cuda.is_available() else f"captured on {device}, and this machine has no CUDA device"


def _script_image(incident: Incident | None, given: str | None, *, say: Callable[[str], None], **build: Any) -> str:
    """A given one need not have what a step needs."""
    from reprokit.replay import bases, daemon
    from reprokit.replay import image as images

    if incident is None or given not in (None, bases.CAPTURED):
        with daemon.in_one_line("image"), closing(daemon.connect(timeout=600)) as client:
            bases.fetched(client, str(given), say, "check the name")
        return str(given)
    return images.of(incident, given=given, progress=say, **build)


def _chosen(name: str | None, inner: str | None, say: Callable[[str], None]) -> tuple[str, str | None]:
    """The engine and, of one around others, the inner one."""
    if name is not None and name not in ENGINES:
        raise BadInput(f"--engine {name}: unknown; one of {', '.join(ENGINES)}")
    if inner is not None and (name not in OUTER or inner not in INNERS or name == inner):
        those = ", ".join(one for one in INNERS if one not in OUTER or one != name)
        raise BadInput(f"--inner {inner}: goes with --engine {', '.join(OUTER)}, and is one of {those}")
    if name in OUTER:
        return name, inner or _default(say)
    return name or _default(say), None


def _unforkable(incident: Incident) -> str:
    """Why its attempts cannot be forks; empty where they can."""
    if str(incident.flags().get("device", "")).startswith("cuda"):
        return "this ran on a GPU, and no fork can use one"
    ranks = incident.manifest.world_size
    return f"this ran in {ranks} ranks, and a fork is one process" if ranks > 1 else ""


def _check(incident: Incident, chosen: str, within: str, *, confined: bool) -> None:
    """Whether this engine may and can run it."""
    if not confined and within != "docker":
        raise _unconfined(incident, within)
    signature = incident.manifest.signature
    if chosen == "inline" and signature and signature.kind in DEADLY:
        raise BadInput(
            f"{incident.name}: a {signature.kind} would take this process with it; choose engine process or docker"
        )
    if chosen == "inline" and incident.manifest.world_size > 1:
        ranks = f"{incident.manifest.world_size} ranks"
        raise BadInput(f"{incident.name}: inline is one process, and this ran in {ranks}; choose process or docker")


def _unconfined(incident: Incident, engine: str) -> BadInput:
    return BadInput(
        f"{incident.name}: a bundle holds somebody's code, and engine {engine} runs it unconfined; start "
        "Docker, or add --trust if you trust whoever made it"
    )


def _default(say: Callable[[str], None]) -> str:
    from reprokit.replay import daemon
    from reprokit.replay.engines.process import inside_container

    if daemon.answers():
        return "docker"
    where = "in this container" if inside_container() else "on this machine"
    say(f"Docker does not answer: attempts run as fresh processes {where} instead")
    return "process"
