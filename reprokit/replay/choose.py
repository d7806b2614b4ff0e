"""Which engine runs an incident: the safest that answers, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, cast

from reprokit.errors import BadInput, Infrastructure
from reprokit.failure import DEADLY
from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine
from reprokit.replay.engines.options import EngineOptions

if TYPE_CHECKING:
    from reprokit.replay.engines.script import Script

ENGINES = ("docker", "process", "fork", "inline", "ray", "slurm")
OUTER = ("fork", "ray", "slurm")  # those that run another one, their inner engine
SCRIPTS = ("docker", "process")  # those that run a command, too
INNERS = ("docker", "process", "fork")


def open_engine(
    incident: Incident,
    options: EngineOptions | None = None,
    *,
    foreign: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """An engine for this incident's cases, to be used as a context manager.

    foreign: the incident came in a bundle, so its code runs only in a container unless `options.trust`. say: gets lines
    of news. Raises BadInput for an unknown name or untrusted code, Infrastructure where the engine does not answer.
    """
    options = options or EngineOptions()
    chosen, within = _chosen(options.engine, options.inner, say)
    if chosen == "fork" and (why := _unforkable(incident)):
        chosen, within = within or "process", None
        say(f"fork: {why}; each attempt is a fresh one in engine {chosen} instead")
    _check(incident, chosen, within or chosen, confined=options.trust or not foreign)
    if chosen in ("ray", "slurm"):
        return _on_a_cluster(chosen, within or "process", incident, options, foreign, say)
    jobs, timeout, match, network = options.jobs, options.timeout, options.match, options.network
    tag = image_of(incident, options, foreign=foreign, say=say) if "docker" in (chosen, within) else None
    if chosen == "docker":
        from reprokit.replay.engines.docker import Docker
        from reprokit.replay.share import need_of

        return Docker(str(tag), jobs=jobs, need=need_of(incident), deadline=timeout, match=match, network=network)
    if chosen == "process":
        from reprokit.replay.engines.process import Process

        return Process(incident, jobs=jobs, timeout=timeout, match=match)
    if chosen == "fork":
        from reprokit.replay.engines.fork import Fork

        return Fork(incident, image=tag, jobs=jobs, timeout=timeout, match=match, network=network)
    from reprokit.replay.engines.inline import Inline

    return Inline(incident, match=match)


def _on_a_cluster(
    chosen: str,
    within: str,
    incident: Incident,
    options: EngineOptions,
    foreign: bool,
    say: Callable[[str], None],
) -> Engine:
    module = import_module(f"reprokit.replay.engines.{chosen}")
    around = {"there": options.there(within), "foreign": foreign, "store": options.store, "jobs": options.jobs}
    if chosen == "ray":
        return cast(Engine, module.Ray(incident, address=options.ray_address, say=say, **around))
    return cast(Engine, module.Slurm(incident, partition=options.partition, **around))


def image_of(
    incident: Incident, options: EngineOptions, *, foreign: bool = False, say: Callable[[str], None] = lambda line: None
) -> str:
    """The tag of the image in which the incident runs; built where it is missing."""
    from reprokit.replay import image  # talks to Docker: not for those who never do

    return image.of(
        incident,
        given=options.image,
        base=options.base,
        wheelhouse=options.wheelhouse,
        compiler=options.compiler,
        trust=options.trust or not foreign,
        progress=say,
    )


def open_script(
    script: Script,
    incident: Incident | None,
    options: EngineOptions,
    *,
    foreign: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """An engine for attempts at a command; see `open_engine`. incident: None runs in the current folder, whose code is
    the user's own, so a process will do where no image is given."""
    name, jobs, timeout = options.engine, options.jobs, options.timeout
    if name is not None and name not in ENGINES:
        raise BadInput(f"--engine {name}: unknown; one of {', '.join(SCRIPTS)}")
    if options.inner or name not in (None, *SCRIPTS):
        raise BadInput(f"--engine {name}: runs steps of a harness, not a command; use {' or '.join(SCRIPTS)}")
    own = incident is None and options.image is None
    chosen = name or ("process" if own else _default(say))
    if chosen == "process":
        if incident and foreign and not options.trust:
            raise _unconfined(incident, chosen)
        if why := _no_gpu(incident):
            raise Infrastructure(why)
        from reprokit.replay.engines.script import ScriptProcess

        return ScriptProcess(script, incident, jobs=jobs, timeout=timeout)
    if own:
        raise BadInput("--engine docker: without an INCIDENT nothing says which image; add --image NAME")
    from reprokit.replay.engines.contained_script import ContainedScript

    tag = _script_image(incident, options, foreign=foreign, say=say)
    return ContainedScript(script, incident, tag, jobs=jobs, timeout=timeout, network=options.network)


def _no_gpu(incident: Incident | None) -> str:
    """Why a command cannot run here as it did: a CPU would run another one."""
    device = str(incident.flags().get("device", "")) if incident else ""
    if not device.startswith("cuda"):
        return ""
    import torch

    return "" if torch.cuda.is_available() else f"captured on {device}, and this machine has no CUDA device"


def _script_image(
    incident: Incident | None, options: EngineOptions, *, foreign: bool, say: Callable[[str], None]
) -> str:
    """A given one need not have what a step needs."""
    from reprokit.replay import bases, daemon

    if incident is None or options.image not in (None, bases.CAPTURED):
        with daemon.in_one_line("image"), closing(daemon.connect(timeout=600)) as client:
            bases.fetched(client, str(options.image), say, "check the name")
        return str(options.image)
    return image_of(incident, options, foreign=foreign, say=say)


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
