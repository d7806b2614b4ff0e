"""The image that an incident's attempts run in, made of its pinned requirements.

Wheels are gathered out here, by the pip of the Python that runs reprokit, with its indexes and its credentials; the
build gets wheels alone, and no network. The tag is the hash of what went in: Dockerfile, base image, wheels. What a
list of requirements came to is remembered, so that asking again costs three questions to the engine.
"""

from __future__ import annotations

import errno
import fcntl
import json
import re
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from docker import DockerClient

from reprokit import _files
from reprokit.errors import BadInput, Infrastructure
from reprokit.incident import Incident
from reprokit.replay import bases, daemon, wheels
from reprokit.replay.bases import Progress
from reprokit.replay.container import LABEL
from reprokit.replay.requirements import Wanted, parse

REPOSITORY = "reprokit/replay"
_STEP = re.compile(r"Step (\d+)/(\d+) : (?:COPY|RUN)")  # those that take time


@dataclass(frozen=True, kw_only=True, slots=True)
class _Base:
    """What an image is built on, and what was asked of it."""

    name: str
    id: str
    compiler: bool


def of(
    incident: Incident,
    *,
    given: str | None = None,
    base: str | None = None,
    wheelhouse: Path | None = None,
    compiler: bool = False,
    trust: bool = True,
    progress: Progress = lambda line: None,
) -> str:
    """The image for an incident: one that is given, the one that training ran in, or one made of its requirements.

    given: a name, or `captured`. The others are those of `ensure`.
    """
    if not given:
        return ensure(
            incident.requirements(),
            base=base,
            wheelhouse=wheelhouse,
            compiler=compiler,
            trust=trust,
            progress=progress,
        )
    name = given
    if given == bases.CAPTURED:
        name = bases.captured(incident.environment(), trust=trust)
        if bases.moves(name):
            progress(f"{name}: a tag, which may be of another image by now; a digest (NAME@sha256:...) is not")
    return bases.given(name, progress)


def ensure(
    requirements: str,
    *,
    base: str | None = None,
    wheelhouse: Path | None = None,
    compiler: bool = False,
    trust: bool = True,
    progress: Progress = lambda line: None,
) -> str:
    """The tag of an image with exactly these requirements on this base; made if it is not there, which takes a minute.

    base: by default the one that `.ci/base-image` makes if it is there, else python:X.Y-slim of this Python's version.
    wheelhouse: a folder of wheels to take instead of asking pip's indexes. compiler: the base must have one, for
    torch.compile; by default it is another base then. trust: False for a list that came from elsewhere: only exact
    pins, only as wheels.
    """
    house = wheels.names_in(wheelhouse) if wheelhouse else None
    wanted = parse(requirements, trust=trust, house=house)
    collection = wheels.Collection(cache() / "wheels")
    with _one_line(), closing(daemon.connect(timeout=600)) as client:  # a build is silent while it writes a layer
        name = base or bases.default(client, compiler=compiler)
        ground = _Base(name=name, id=bases.fetched(client, name, progress), compiler=compiler)
        gathered = collection.remembered(wanted, wheelhouse)
        if gathered is not None and bases.exists(client, tag := _tag(ground, gathered)):
            return tag
        with exclusive(progress):
            bases.check_base(client, name, compiler=compiler)
            return _made(client, ground, collection, wanted, wheelhouse, progress)


def dockerfile() -> str:
    """The Dockerfile, which a wheel carries inside the package and a checkout beside it."""
    package = Path(__file__).resolve().parents[1]
    for path in (package / "templates" / "replay.Dockerfile", package.parent / "Dockerfile"):
        if path.is_file():
            return path.read_text()
    raise Infrastructure(f"{package}: no Dockerfile beside or inside the package; install reprokit again")


def cache() -> Path:
    """Where wheels and what is known of base images are kept. Safe to delete."""
    folder = _files.user_cache()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _made(
    client: DockerClient,
    ground: _Base,
    collection: wheels.Collection,
    wanted: Wanted,
    wheelhouse: Path | None,
    progress: Progress,
) -> str:
    gathered = collection.remembered(wanted, wheelhouse)
    if wanted.folders:
        progress(f"in no index, so not in the image: {', '.join(wanted.folders)}; the incident's source is mounted")
    if gathered is None or not collection.complete(gathered):
        gathered = collection.gather(wanted, wheelhouse, progress)
    tag = _tag(ground, gathered)
    if not bases.exists(client, tag):
        _build(client, ground, tag, collection.paths(gathered), progress)
    return tag


def _tag(ground: _Base, gathered: wheels.Hashes) -> str:
    asked = ["compiler"] if ground.compiler else []  # else an image whose base nobody asked for one would do
    content = json.dumps([dockerfile(), ground.id, sorted(gathered.items()), *asked])
    return f"{REPOSITORY}:{sha256(content.encode()).hexdigest()[:16]}"


def _build(client: DockerClient, ground: _Base, tag: str, files: list[Path], progress: Progress) -> None:
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
                buildargs={"BASE": ground.id, "KEY": key},
                labels=_labels(ground, files),
                network_mode="none",
                use_config_proxy=False,  # a proxy's password would be in the history, and nothing is fetched
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
                _forget(client, f"reprokit.stage={key}")


def _forget(client: DockerClient, label: str) -> None:
    """What has no name, one by one: an engine prunes for one caller at a time, and refuses all others."""
    for about in client.api.images(filters={"dangling": True, "label": label}):
        client.api.remove_image(about["Id"])


def _labels(ground: _Base, files: list[Path]) -> dict[str, str]:
    """What `image ls` says of it."""
    torch = next((file.name.split("-")[1] for file in files if file.name.startswith("torch-")), "")
    return {
        f"{LABEL}.base": ground.name,
        f"{LABEL}.torch": torch,
        f"{LABEL}.wheels": str(len(files)),
        f"{LABEL}.compiler": "yes" if ground.compiler else "",
    }


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
def exclusive(progress: Progress) -> Iterator[None]:
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
        with daemon.in_one_line("image"):
            yield
    except Infrastructure as error:
        why = error.__cause__
        if isinstance(why, OSError) and why.errno == errno.ENOSPC:
            raise Infrastructure(f"{cache()}: disk full; free some, or set XDG_CACHE_HOME to another disk") from why
        raise
