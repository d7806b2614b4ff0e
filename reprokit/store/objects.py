"""Incidents by id: every file an object under the hash of its content, and the manifest that lists them.

The manifest is written last, so an incident is there when all of it is. A second incident of the same run shares what
did not change, since the same content has the same name. Nothing that is read is believed: a manifest must have the
digest that was asked for, and each object the hash that the manifest lists.

    objects/ab/abcd...     content
    incidents/ID.json      manifest
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reprokit import _files
from reprokit.errors import BadInput, Infrastructure
from reprokit.incident import MANIFEST, FileEntry, Incident, Manifest, read_manifest
from reprokit.store.places import Place, open_place

_ID = re.compile("[0-9a-f]{64}")
_FETCHED = ".fetched-"  # hidden: what is not all there yet


class Store:
    """A place of incidents: a folder, or a URL that fsspec knows."""

    def __init__(self, url: str) -> None:
        self._place: Place = open_place(url)
        self.url = self._place.url

    def put(self, incident: Incident) -> str:
        """Store what is not there yet; the id. Raises BadInput where a file is not what the manifest says."""
        manifest = incident.manifest
        files = {entry.sha256: (name, entry) for name, entry in manifest.files.items()}  # the same content goes once
        _files.each(lambda file: self._put(incident.path / file[0], file[1]), files.values())
        self._place.write(incident.path / MANIFEST, _manifest(manifest.id))
        return manifest.id

    def get(self, id: str, cache: Path) -> Incident:
        """The incident, below a folder of incidents that is made where it is missing, and fetched only where it is not
        in there already; of several processes that ask for one at once, one fetches it. Every byte is verified."""
        if not _ID.fullmatch(id):
            raise BadInput(f"{_files.shown(id)}: not the id of an incident, which is 64 hexadecimal digits")
        with _disk(cache):
            cache.mkdir(parents=True, exist_ok=True)
            with _alone(cache / f".{id}.lock"):
                held = cache / id
                with suppress(BadInput):
                    return Incident.open(held)
                shutil.rmtree(held, ignore_errors=True)  # somebody altered it, or it was never there
                self._fetch(id, held)
                return Incident.open(held, verify=False)

    def _put(self, path: Path, entry: FileEntry) -> None:
        name = _object(entry.sha256)
        if self._place.size(name) == entry.bytes:
            return
        try:
            found = self._place.write(path, name)
        except FileNotFoundError as error:
            raise BadInput(f"{path}: missing; fetch or capture the incident again") from error
        if found != entry.sha256:
            raise BadInput(f"{path}: does not match its hash, it was altered; fetch or capture the incident again")

    def _fetch(self, id: str, held: Path) -> None:
        """Into a folder that is not named yet."""
        _files.sweep(held.parent, _FETCHED)
        part = held.with_name(f"{_FETCHED}{secrets.token_hex(8)}")
        part.mkdir()
        claim = _files.claim(part)
        try:
            manifest = self._manifest(id, part)
            _files.each(lambda file: self._get(part / file[0], file[1]), manifest.files.items())
            _files.seal(part, [*manifest.files, MANIFEST])
            part.rename(held)
        finally:
            shutil.rmtree(part, ignore_errors=True)
            if claim is not None:
                os.close(claim)

    def _manifest(self, id: str, folder: Path) -> Manifest:
        try:
            self._place.read(_manifest(id), folder / MANIFEST)
        except FileNotFoundError as error:
            raise BadInput(f"{id}: not in the store {self.url}; check the id, or --store") from error
        try:
            manifest = read_manifest(folder)
        except BadInput as error:
            raise self._bad(_manifest(id)) from error
        if manifest.id != id or not all(_files.is_inside(name) and name != MANIFEST for name in manifest.files):
            raise self._bad(_manifest(id))
        return manifest

    def _get(self, path: Path, entry: FileEntry) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        name = _object(entry.sha256)
        try:
            found = self._place.read(name, path)
        except FileNotFoundError as error:
            raise BadInput(f"{self.url}/{name}: missing; put the incident there again") from error
        if found != entry.sha256:
            raise self._bad(name)

    def _bad(self, name: str) -> BadInput:
        return BadInput(f"{self.url}/{name}: not what was stored there; delete it, and put the incident there again")


def _object(sha256: str) -> str:
    return f"objects/{sha256[:2]}/{sha256}"


def _manifest(id: str) -> str:
    return f"incidents/{id}.json"


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process at a time. The lock ends with its holder, however that ends; its file stays, and is empty."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _disk(where: Path) -> Iterator[None]:
    """What a disk of this machine says, in one line."""
    try:
        yield
    except OSError as error:
        said = error.strerror or str(error)
        raise Infrastructure(f"{error.filename or where}: {said}; free some space, or choose another folder") from error
