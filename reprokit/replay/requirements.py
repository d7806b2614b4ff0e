"""A list of requirements, taken apart. Pure: no index, no pip.

The list is that of a captured environment, or one that somebody has mended by hand. What pip installed from an index is
a pin. What came from elsewhere says so (PEP 610): a commit and an address are requirements that name their place, a
folder and a file are comments, since their place was one of that machine.

Builds with a local version (+cu130) are in no general index. PyTorch has one for each, and so have its companions: the
pin itself says which, so nothing of it need be captured, and a stranger's list can name no place of a stranger's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from reprokit.capture import redact
from reprokit.capture.packages import TORCH_BUILD, torch_index
from reprokit.errors import BadInput

_INDEX_OPTIONS = re.compile(
    r"(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)[ =]\S+|--no-index|--pre|--prefer-binary"
)
_EXACT = re.compile(r"[\w.-]+(\[[\w,.-]+\])?==[\w.+!]+")  # what an index has under this name, and nothing else
_LOCAL = re.compile(rf"[\w.-]+(\[[\w,.-]+\])?===?[\w.!]+\+{TORCH_BUILD}(\s|;|$)")
_FOLDER = re.compile(r"#\s*(\S+==\S+): from a folder")
_FILE = re.compile(r"#\s*(\S+): installed from a file, (\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What pip is asked for, and what is known of it beside that."""

    pins: tuple[str, ...]
    indexes: tuple[str, ...] = ()  # options of pip: where to look for what its own indexes here do not have
    built: bool = True  # what is only published as source is built, by code of its own
    folders: tuple[str, ...] = ()  # pins of what was installed from a folder: in no index, and not in the image
    files: Mapping[str, str] = field(default_factory=dict)  # name -> wheel that it was installed from


def parse(requirements: str, *, trust: bool = True, house: Collection[str] | None = None) -> Wanted:
    """Pins and index options. reprokit and editable packages are left out: they are mounted, with the source.

    trust: whoever wrote the list may name places to fetch from, and packages that run their code when they are built.
    Without it only exact pins are taken, as wheels, from the indexes that this machine asks anyway.
    house: canonical names of what a folder of wheels has, where one is all that may be asked.
    """
    pins, indexes, folders = [], [], []
    files: dict[str, str] = {}
    for line in requirements.replace("\\\n", " ").splitlines():
        if note := _FOLDER.match(line.strip()):
            folders.append(note[1])
        if note := _FILE.match(line.strip()):
            files[canonicalize_name(note[1])] = note[2]
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line or re.match(r"(-e|--editable)\b", line):
            continue
        if "${" in line:  # pip would put our environment there, and send it to whom the line names
            raise BadInput(f"requirements: {shown(line)}: names a variable of this machine; write what is meant")
        if _INDEX_OPTIONS.fullmatch(line):
            indexes.append(line)
        elif pin := _pin(line, trust=trust, house=house):
            pins.append(pin)
    return Wanted(
        pins=tuple(sorted(pins, key=str.lower)),
        indexes=(*(indexes if trust else ()), *_torch_indexes(pins)),
        built=trust,
        folders=tuple(folders),
        files=files,
    )


def shown(line: str) -> str:
    """A line as an error may repeat it: a private index's password is not for a CI's log."""
    return re.sub(r"[\w.+-]+://\S+", lambda found: redact.url(found[0])[0], line)


def _pin(line: str, *, trust: bool, house: Collection[str] | None) -> str | None:
    """What pip is asked for by this line; None for what is mounted."""
    pin = re.split(r"\s--", line)[0].strip()  # without --hash: what we gather is hashed anyway
    try:
        requirement = Requirement(pin)
    except InvalidRequirement as error:
        raise BadInput(
            f"requirements: {shown(line)}: not a requirement that can be pinned; mend or remove it"
        ) from error
    name = canonicalize_name(requirement.name)
    if name == "reprokit":
        return None
    if house is not None and requirement.url:
        if name not in house:
            raise BadInput(
                f"{requirement.name}: comes from {redact.url(requirement.url)[0]}, which a wheelhouse stands in for; "
                "put its wheel into the folder of --wheelhouse"
            )
        return requirement.name + (f" ; {requirement.marker}" if requirement.marker else "")
    if not trust and not _EXACT.fullmatch(pin.partition(";")[0].strip()):
        raise BadInput(
            f"requirements: {shown(line)}: would run or fetch what a stranger chose, on this machine; add --trust if "
            "you trust whoever made this bundle, or give its wheel with --wheelhouse, or an --image"
        )
    return pin


def _torch_indexes(pins: Collection[str]) -> list[str]:
    builds = {match["build"]: None for pin in sorted(pins) if (match := _LOCAL.match(pin))}
    return [f"--extra-index-url {torch_index(build, os.environ)}" for build in builds]
