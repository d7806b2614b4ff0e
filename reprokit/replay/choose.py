"""Which engine runs an incident: the safest that answers, unless the user says otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from reprokit.errors import BadInput
from reprokit.incident import Incident
from reprokit.replay.engines.base import Engine

ENGINES = ("docker", "process", "inline")


def open_engine(
    incident: Incident,
    name: str | None = None,
    *,
    foreign: bool = False,
    trust: bool = False,
    jobs: int | None = None,
    timeout: float | None = None,
    match: str | None = None,
    image: str | None = None,
    base: str | None = None,
    wheelhouse: Path | None = None,
    network: str = "none",
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """An engine for this incident's cases, to be used as a context manager.

    name: None takes docker where it answers, else process, and says so. foreign: the incident came in a bundle, so its
    code runs only in a container unless `trust`. timeout: seconds for one attempt. image: use it as it is; otherwise
    one is built from the captured requirements on `base`, from `wheelhouse` if given. say: gets lines of news. Raises
    BadInput for an unknown name or untrusted code, Infrastructure where the engine does not answer.
    """
    if name is not None and name not in ENGINES:
        raise BadInput(f"--engine {name}: unknown; one of {', '.join(ENGINES)}")
    chosen = name or _default(say)
    if foreign and not trust and chosen != "docker":
        raise BadInput(
            f"{incident.path.name}: a bundle holds somebody's code, and engine {chosen} runs it unconfined; start "
            "Docker, or add --trust if you trust whoever made it"
        )
    if chosen == "docker":
        from reprokit.replay import image as images
        from reprokit.replay.engines.docker import Docker

        known = trust or not foreign
        tag = image or images.ensure(
            incident.requirements(), base=base, wheelhouse=wheelhouse, trust=known, progress=say
        )
        return Docker(tag, jobs=jobs, deadline=timeout, match=match, network=network)
    if chosen == "process":
        from reprokit.replay.engines.process import Process

        return Process(incident, jobs=jobs, timeout=timeout, match=match)
    from reprokit.replay.engines.inline import Inline

    return Inline(incident, match=match)


def _default(say: Callable[[str], None]) -> str:
    from reprokit.replay import daemon
    from reprokit.replay.engines.process import inside_container

    if daemon.answers():
        return "docker"
    where = "in this container" if inside_container() else "on this machine"
    say(f"Docker does not answer: attempts run as fresh processes {where} instead")
    return "process"
