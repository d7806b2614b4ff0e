"""The image that an incident's attempts run in, made of its pinned requirements.

Wheels are gathered out here, by the pip of the Python that runs reprokit, with its indexes and its credentials; the
build gets wheels alone, and no network. The tag is the hash of what went in: Dockerfile, base image, wheels. What a
list of requirements came to is remembered, so that asking again costs three questions to the engine.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import ImageNotFound

from reprokit.errors import BadInput, Infrastructure
from reprokit.replay import daemon, wheels
from reprokit.replay.container import LABEL

Progress = Callable[[str], None]  # gets one short line each time that there is news

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
OWN_BASE = "reprokit-base:bookworm-py3.11"  # what `.ci/base-image` makes, where no registry is in reach
REPOSITORY = "reprokit/replay"
_STEP = re.compile(r"Step (\d+)/(\d+) : (?:COPY|RUN)")  # those that take time
_FACTS = """
import json, pip, platform, venv
print(json.dumps([*platform.python_version_tuple()[:2], platform.machine(), platform.libc_ver()[0]]))
"""


def ensure(
    requirements: str,
    *,
    base: str | None = None,
    wheelhouse: Path | None = None,
    trust: bool = True,
    progress: Progress = lambda line: None,
) -> str:
    """The tag of an image with exactly these requirements on this base; made if it is not there, which takes a minute.

    base: by default the one that `.ci/base-image` makes if it is there, else python:X.Y-slim of this Python's version.
    wheelhouse: a folder of wheels to take instead of asking pip's indexes. trust: False for a list that came from
    elsewhere: only exact pins, only as wheels.
    """
    wanted = wheels.parse(requirements, trust=trust)
    collection = wheels.Collection(cache() / "wheels")
    with _one_line(), closing(daemon.connect(timeout=600)) as client:  # a build is silent while it writes a layer
        name, identity = _base(client, base, progress)
        gathered = collection.remembered(wanted, wheelhouse)
        if gathered is not None and _exists(client, tag := _tag(identity, gathered)):
            return tag
        with _exclusive(progress):
            _check_fits(client, name)
            return _made(client, identity, collection, wanted, wheelhouse, progress)


def dockerfile() -> str:
    """The Dockerfile, which a wheel carries inside the package and a checkout beside it."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / "templates" / "replay.Dockerfile", package.parent / "Dockerfile"):
        if path.is_file():
            return path.read_text()
    raise Infrastructure(f"{package}: no Dockerfile beside or inside the package; install reprokit again")


def cache() -> Path:
    """Where wheels and what is known of base images are kept. Safe to delete."""
    home = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(home) if home else Path.home() / ".cache") / "reprokit"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _made(
    client: DockerClient,
    base: str,
    collection: wheels.Collection,
    wanted: wheels.Wanted,
    wheelhouse: Path | None,
    progress: Progress,
) -> str:
    gathered = collection.remembered(wanted, wheelhouse)
    if gathered is None or not collection.complete(gathered):
        gathered = collection.gather(wanted, wheelhouse, progress)
    tag = _tag(base, gathered)
    if not _exists(client, tag):
        _build(client, base, tag, collection.paths(gathered), progress)
    return tag


def _tag(base: str, gathered: wheels.Hashes) -> str:
    content = json.dumps([dockerfile(), base, sorted(gathered.items())])
    return f"{REPOSITORY}:{sha256(content.encode()).hexdigest()[:16]}"


def _exists(client: DockerClient, tag: str) -> bool:
    try:
        client.images.get(tag)
    except ImageNotFound:
        return False
    return True


def _base(client: DockerClient, base: str | None, progress: Progress) -> tuple[str, str]:
    """Name and id of the base image, pulled where it is missing."""
    name = base or (OWN_BASE if _exists(client, OWN_BASE) else f"python:{MINOR}-slim")
    if not _exists(client, name):
        progress(f"pulling {name}")
        try:
            repository, _, tag = name.rpartition(":") if ":" in name.rpartition("/")[2] else (name, "", "latest")
            client.images.pull(repository, tag=tag)
        except daemon.Silent as error:
            raise Infrastructure(
                f"{name}: not on this machine and not to be pulled ({daemon.one_line(error)}); without a registry, "
                f"reprokit's .ci/base-image makes {OWN_BASE}"
            ) from error
    return name, str(client.images.get(name).id)


def _check_fits(client: DockerClient, name: str) -> None:
    """Wheels are gathered for the Python, the machine and the libc of out here: those of the base must be the same."""
    major, minor, machine, libc = _facts(client, name)
    if f"{major}.{minor}" != MINOR:
        raise BadInput(
            f"{name}: has Python {major}.{minor}, and wheels are gathered here for {MINOR}; choose a base image with "
            f"{MINOR}, such as python:{MINOR}-slim, or run reprokit with Python {major}.{minor}"
        )
    theirs, ours = f"{libc or 'another libc'} on {machine}", f"{platform.libc_ver()[0]} on {platform.machine()}"
    if theirs != ours:
        raise BadInput(f"{name}: is {theirs}, and this machine {ours}; choose a base image like python:{MINOR}-slim")


def _facts(client: DockerClient, name: str) -> tuple[str, str, str, str]:
    container = client.containers.create(
        name, entrypoint=["python3", "-c", _FACTS], network_mode="none", labels={LABEL: "1"}
    )
    said = b""
    try:
        container.start()
        container.wait()
        said = container.logs()
        major, minor, machine, libc = json.loads(said)
        return str(major), str(minor), str(machine), str(libc)
    except (*daemon.Silent, ValueError) as error:
        why = (said.decode(errors="replace").strip() or daemon.one_line(error)).splitlines()[-1][-200:]
        raise BadInput(
            f"{name}: no base for replays: its python3, with venv and pip, does not run ({why}); "
            f"choose one like python:{MINOR}-slim"
        ) from error
    finally:
        container.remove(force=True)


def _build(client: DockerClient, base: str, tag: str, files: list[Path], progress: Progress) -> None:
    key = tag.rpartition(":")[2]
    progress(f"building {tag}: {len(files)} wheels, {sum(file.stat().st_size for file in files) >> 20} MiB")
    with tempfile.TemporaryFile(dir=cache()) as context:  # beside the wheels, since /tmp may be memory
        _pack(context, files)
        context.seek(0)
        said: list[str] = []
        try:
            answers = client.api.build(
                fileobj=context,
                custom_context=True,
                tag=tag,
                buildargs={"BASE": base, "KEY": key},
                network_mode="none",
                rm=True,
                forcerm=True,
                decode=True,
            )
            for answer in answers:
                if "error" in answer:
                    raise _failed_build(tag, [*said, answer["error"]])
                said += str(answer.get("stream", "")).splitlines()
                if step := _STEP.match(str(answer.get("stream", ""))):
                    progress(f"building: step {step[1]} of {step[2]}")
        finally:  # the stage that holds the wheels is of no further use
            with suppress(*daemon.Silent):
                client.images.prune(filters={"dangling": True, "label": f"reprokit.stage={key}"})


def _pack(target: Any, files: list[Path]) -> None:
    with tarfile.open(fileobj=target, mode="w") as tar:
        with tempfile.NamedTemporaryFile("w") as text:
            text.write(dockerfile())
            text.flush()
            tar.add(text.name, "Dockerfile")
        for file in files:
            tar.add(file, f"wheels/{file.name}")


def _failed_build(tag: str, said: list[str]) -> BadInput | Infrastructure:
    text = "\n".join(said)
    if "no space left on device" in text.lower():
        return Infrastructure(f"{tag}: Docker's disk is full; `docker system prune` frees some")
    errors = [line.strip() for line in said if line.startswith("ERROR: ")]
    if errors:
        return BadInput(f"{tag}: requirements do not install: {errors[0].removeprefix('ERROR: ')}")
    return Infrastructure(f"{tag}: does not build: {' '.join(said[-1].split())}")


@contextmanager
def _exclusive(progress: Progress) -> Iterator[None]:
    """One build at a time: two would gather the same wheels twice."""
    with (cache() / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another reprokit that builds an image")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except daemon.Silent as error:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise Infrastructure(f"{cache()}: disk full; free some, or set XDG_CACHE_HOME to another disk") from error
        raise Infrastructure(f"image: {daemon.one_line(error)}") from error
