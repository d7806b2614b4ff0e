"""The images that replays have left here, and their end. All of them can be made again from the kept wheels, or those
from an index, so none is precious; one that a container still uses stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from docker import DockerClient
from docker.errors import APIError, ImageNotFound
from docker.models.images import Image

from reprokit.errors import BadInput
from reprokit.replay import daemon, image
from reprokit.replay.container import LABEL

_OLD = "24h"  # of what has no name: a build that goes on has just made its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """One image. What its build did not say is empty."""

    tag: str  # or the id of one that has lost it to another
    id: str
    bytes: int  # with its base, which others share
    created: str  # ISO 8601
    base: str
    torch: str
    wheels: int
    compiler: bool

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def listed() -> list[Kept]:
    """Newest first."""
    with daemon.in_one_line("image"), closing(daemon.connect()) as client:
        return _listed(client)


def remove(names: Sequence[str], *, every: bool = False) -> list[str]:
    """Remove these images, by tag or by what is behind its colon, or every one; what was removed.

    Raises BadInput for a name that is none of ours before anything is removed, and for what is in use after the rest.
    """
    alone = image.exclusive(lambda line: None) if every else nullcontext()  # or a build that goes on loses its own
    with daemon.in_one_line("image"), closing(daemon.connect(timeout=600)) as client, alone:
        known = _listed(client)
        chosen = known if every else [_named(name, known) for name in names]
        refused = [kept.tag for kept in chosen if not _removed(client, kept)]
        with suppress(APIError):  # somebody else prunes already
            client.images.prune(filters={"dangling": True, "label": f"{LABEL}=1", "until": _OLD})
    if refused:
        raise BadInput(f"{refused[0]}: a container uses it; end that (docker ps -a) and run this again")
    return [kept.tag for kept in chosen]


def wheels() -> tuple[Path, int]:
    """Where gathered wheels are kept, and how many bytes they take."""
    folder, bytes = image.cache() / "wheels", 0
    for where, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # somebody gathers meanwhile
                bytes += os.stat(os.path.join(where, name)).st_size
    return folder, bytes


def remove_wheels() -> int:
    """Remove them; how many bytes that freed. Waits for a build that uses them."""
    with image.exclusive(lambda line: None):
        folder, bytes = wheels()
        shutil.rmtree(folder, ignore_errors=True)
    return bytes


def _listed(client: DockerClient) -> list[Kept]:
    kept: list[Kept] = []
    for about in client.api.images(filters={"label": f"{LABEL}=1"}):
        with suppress(ImageNotFound):  # somebody removes it meanwhile
            kept += _kept(client.images.get(about["Id"]))
    return sorted(kept, key=lambda one: one.created, reverse=True)


def _kept(found: Image) -> list[Kept]:
    labels = found.labels or {}

    def said(what: str) -> str:
        return str(labels.get(f"{LABEL}.{what}", ""))

    return [
        Kept(
            tag=tag,
            id=str(found.id),
            bytes=int(found.attrs["Size"]),
            created=str(found.attrs["Created"]),
            base=said("base"),
            torch=said("torch"),
            wheels=int(said("wheels")) if said("wheels").isdecimal() else 0,
            compiler=bool(said("compiler")),
        )
        for tag in found.tags or [str(found.id)]
    ]


def _named(name: str, known: Collection[Kept]) -> Kept:
    for kept in known:
        if name in (kept.tag, kept.tag.rpartition(":")[2], kept.id):
            return kept
    raise BadInput(f"{name}: no image that reprokit has built here; `reprokit image ls` lists those")


def _removed(client: DockerClient, kept: Kept) -> bool:
    try:
        client.images.remove(kept.tag)
    except APIError as error:
        if error.status_code == 404:  # somebody else was faster
            return True
        if error.status_code == 409:
            return False
        raise
    return True
