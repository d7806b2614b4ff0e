"""One file with an incident and what a person needs to run and read it.

A bundle runs where reprokit is not installed: the part of reprokit that an attempt needs is inside, beside scripts that
find Docker or Python. All but the incident is rendered from `templates/`. What comes out of a bundle is code from
elsewhere until somebody says otherwise, hence `open_any` tells whether an incident is foreign.
"""

from __future__ import annotations

import atexit
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import reprokit
from reprokit._scratch import Scratch
from reprokit.errors import BadInput
from reprokit.incident import SCHEMA, FileEntry, Incident, Manifest
from reprokit.report import archive, escape, pages, templates
from reprokit.report.checksums import MANIFEST, Index

INCIDENT = "incident"
SUFFIX = ".tar.zst"
PACKAGE = (
    *("_*.py", "anatomy.py", "checkpoint.py", "errors.py", "failure.py"),
    *("harness.py", "incident.py", "layout.py", "tree.py", "works.py"),
    "step/**/*.py",
    *("capture/**/*.py", "video/**/*.py"),  # what a training script may import
    *("replay/__init__.py", "replay/verdict.py"),
)
"""What of reprokit a bundle holds; anything else is for whoever writes bundles, not for whoever runs them."""
RENDERED = ("README.md", "bug_report.md", "run.sh", "Dockerfile")
PICTURES = ("batch.png", "curve.png")
ALWAYS = (*RENDERED, "reproduce.py", "requirements.txt", "incident/incident.json")
LONGEST_INCIDENT = 1 << 26  # bytes of incident.json that are held in memory


def write(
    incident: Incident,
    out: Path,
    *,
    replay: Mapping[str, Any] | None = None,
    reduction: Mapping[str, Any] | None = None,
    image: str | None = None,
    pictures: Mapping[str, Path] | None = None,
) -> Path:
    """Write the bundle of an incident. Equal arguments give equal bytes.

    replay, reduction: the JSON of those verbs, for the texts. image: the tag that run.sh tries before it builds one.
    pictures: files by the names of PICTURES, for the bug report.
    """
    if not out.name.endswith(SUFFIX):
        raise BadInput(f"{out}: a bundle's name ends in {SUFFIX}; choose one that does")
    top = folder_of(incident)
    drawn = {name: file for name, file in (pictures or {}).items() if name in PICTURES}
    values = pages.values(incident, name=top, file=out.name, replay=replay, reduction=reduction, image=image)
    values["pictures"] = sorted(drawn)
    files: dict[str, archive.Content] = {
        name: templates.render(f"bundle/{name}.j2", values).encode() for name in RENDERED
    }
    files["reproduce.py"] = templates.static("bundle/reproduce.py")
    files["requirements.txt"] = incident.requirements().encode()
    files |= drawn
    files |= {f"{INCIDENT}/{path}": incident.path / path for path in ("incident.json", *incident.manifest.files)}
    package = Path(reprokit.__file__).parent
    files |= {f"reprokit/{path.relative_to(package)}": path for pattern in PACKAGE for path in package.glob(pattern)}
    archive.pack(files, top=top, incident=incident.manifest.id, out=out)
    return out


def folder_of(incident: Incident) -> str:
    """The one folder that a bundle unpacks to."""
    return _plain(incident.name)


def _plain(name: str) -> str:
    """A name that means nothing to a shell or a terminal."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or INCIDENT


def verify(file: Path) -> Manifest:
    """Check every byte of a bundle, without unpacking it; returns what its incident says about itself."""
    kept = bytearray()
    sizes: Counter[str] = Counter()

    def look(path: str, chunk: bytes) -> None:
        sizes[path] += len(chunk)
        if path == f"{INCIDENT}/incident.json" and len(kept) < LONGEST_INCIDENT:
            kept.extend(chunk)

    index = archive.read(file, look)
    _check_complete(file, index)
    manifest = _manifest(file, bytes(kept))
    _check_id(file, index, manifest)
    held = {path: FileEntry(sha256=digest, bytes=sizes[path]) for path, digest in index.files.items()}
    _check_incident(file, manifest, {p.partition("/")[2]: e for p, e in held.items() if p.startswith(f"{INCIDENT}/")})
    return manifest


def unpack(file: Path, folder: Path) -> Incident:
    """Unpack a bundle into a folder that does not exist yet: checked and whole, or absent."""


    def accept(unpacked: Path, index: Index) -> None:
        _check_complete(file, index)
        _check_id(file, index, Incident.open(unpacked / INCIDENT).manifest)

    archive.extract(file, folder, accept)
    return Incident.open(folder / INCIDENT, verify=False)


def _check_complete(file: Path, index: Index) -> None:
    if absent := [name for name in ALWAYS if name not in index.files]:
        raise BadInput(f"{file}: an archive without {absent[0]} is no bundle; `reprokit bundle` makes one")


def _check_id(file: Path, index: Index, manifest: Manifest) -> None:
    if manifest.id != index.incident:
        raise BadInput(f"{file}: the incident inside has another id than the bundle; fetch it again")


def _manifest(file: Path, data: bytes) -> Manifest:
    try:
        plain = json.loads(data)
        if plain["schema"] > SCHEMA:
            raise BadInput(f"{file}: a newer reprokit wrote the incident (schema {plain['schema']}); upgrade reprokit")
        return Manifest.from_json(plain)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file}: incident.json in it was altered; fetch it again from whoever made it") from error


def _check_incident(file: Path, manifest: Manifest, held: dict[str, FileEntry]) -> None:
    """The incident's manifest and the bundle's must agree about every file."""
    del held["incident.json"]
    for path in sorted(held.keys() | manifest.files.keys()):
        if held.get(path) != manifest.files.get(path):
            raise BadInput(f"{file}: {escape.line(path)} is not as the incident lists it; fetch it again")


def open_any(path: Path) -> tuple[Incident, bool]:
    """An incident from its folder, from a bundle or from an unpacked bundle; and whether it came in a bundle, that is,
    holds code from elsewhere. A bundle is unpacked into a temporary folder that lasts as long as this process."""
    if path.is_dir():
        if (path / MANIFEST).is_file():
            return Incident.open(path / INCIDENT), True
        return Incident.open(path), (path.resolve().parent / MANIFEST).is_file()
    if not path.exists():
        raise BadInput(f"{path}: there is nothing; give an incident's folder or a bundle")
    scratch = Scratch("bundle")
    atexit.register(scratch.cleanup)
    return unpack(path, Path(scratch.name) / _plain(archive.top(path))), True
