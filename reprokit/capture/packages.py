"""What is installed, where it came from, and which of it this process has in use.

A replay needs what the process has imported, not all that happens to be installed: a lock of two hundred packages
fails on one that nobody needed. So the pins are the distributions that own the imported modules, and what those
require in turn, by their own metadata with its markers evaluated here. What an index cannot give again (an editable
folder, a commit, a wheel from an address) says so in place of a pin that would bring something else.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from reprokit.capture import redact

ALWAYS = ("torch", "numpy", "safetensors", "pyyaml")  # what an attempt imports by itself
NEVER = ("reprokit", "detect-secrets")  # mounted into the attempt, in the version that replays; a tool of capture
TOOLS = ("pip", "setuptools", "wheel")  # imported by accident of start-up: only where something requires them
TORCH_BUILD = r"(?P<build>cpu|cu\d{2,3}|rocm\d+(\.\d+)+|xpu)"  # local versions that have an index of PyTorch's own
_TORCH_INDEX = "https://download.pytorch.org/whl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Package:
    """One installed distribution."""

    name: str
    version: str
    requires: tuple[str, ...]
    origin: dict[str, Any] | None  # PEP 610's direct_url.json without credentials; None: from an index
    distribution: Distribution = field(repr=False, compare=False)

    @property
    def editable(self) -> bool:
        return bool(self.origin and self.origin.get("dir_info", {}).get("editable"))

    @property
    def folder(self) -> Path | None:
        """Of a package that was installed from a folder which is still there."""
        parts = urlsplit(self.origin["url"]) if self.origin and "dir_info" in self.origin else None
        folder = Path(unquote(parts.path)) if parts and parts.scheme == "file" else None
        return folder if folder is not None and folder.is_dir() else None

    @property
    def local(self) -> bool:
        """Whether no index has it: installed from a folder, which an image's build may have removed since. conda says
        the same of what it has built, and that an index has, too."""
        if not self.origin or "dir_info" not in self.origin:
            return False
        return self.folder is not None or self.distribution.read_text("INSTALLER") not in (None, "", "conda", "conda\n")

    def to_json(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"name": self.name, "version": self.version}
        return plain | ({"origin": self.origin} if self.origin else {}) | ({"editable": True} if self.editable else {})


Packages = dict[str, Package]


def search_path() -> tuple[str, ...]:
    """Where Python looks for modules: it passes over whatever else somebody put into `sys.path`."""
    return tuple(entry for entry in sys.path if isinstance(entry, str) and "\0" not in entry)


def installed() -> Packages:
    """By canonical name, in order. Of two versions the one that an import finds."""
    return _installed(search_path())


def requirements(modules: Mapping[str, Any] | None = None, archived: Collection[str] = ()) -> str:
    """requirements.txt: exact pins for what these modules (by default, those of this process) come from.

    archived: distributions whose code is in the incident.
    """
    known = installed()
    used = in_use(known, sys.modules.copy() if modules is None else modules)
    wanted = (set(ALWAYS) & known.keys()) | (used - set(TOOLS))
    names = _closure(wanted - set(NEVER), known) - set(NEVER)
    return "".join(line + "\n" for name in sorted(names) for line in _lines(known[name], archived))


def in_use(known: Packages, modules: Mapping[str, Any]) -> set[str]:
    """Distributions that own a module of this process."""
    files = {name: file_of(module) for name, module in modules.items()}
    return set(owners(known, {name: file for name, file in files.items() if file is not None}).values())


def file_of(module: object) -> str | None:
    """Where a module was imported from: one that answers for itself may raise anything."""
    try:
        file = getattr(module, "__file__", None)
    except Exception:
        return None
    return file if isinstance(file, str) else None


def owners(known: Packages, files: Mapping[str, str]) -> dict[str, str]:
    """Modules to distributions: by the file, since many may share a namespace package."""
    editable = {str(package.folder): name for name, package in known.items() if package.editable and package.folder}
    places = editable | _owners(search_path())
    found: dict[str, str] = {}
    for name, file in files.items():
        above = (places.get(place) for place in (file, *map(str, Path(file).parents)))
        if owner := next(filter(None, above), None):
            found[name] = owner
    return found


def _closure(names: Iterable[str], known: Packages) -> set[str]:
    """These and all that they require, with the extras that are asked for."""
    todo: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in names]
    seen = set(todo)
    while todo:
        name, extras = todo.pop()
        for requirement in _requires(known[name], extras):
            following = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if following[0] in known and following not in seen:
                seen.add(following)
                todo.append(following)
    return {name for name, _ in seen}


def _requires(package: Package, extras: frozenset[str]) -> Iterator[Requirement]:
    for line in package.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:  # of an old distribution: pip ignores it as well
            continue
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield requirement


def _lines(package: Package, archived: Collection[str]) -> list[str]:
    """One pin, with a comment where an index may not have it."""
    pin = f"{package.name}=={package.version}"
    if package.name in archived:
        return [f"# {pin}: in the incident, below source/packages"]
    origin = package.origin or {}
    address = origin.get("url", "")
    if package.local:  # of the source in the incident, if it was below its root
        return [f"# {pin}: from a folder{' (editable)' if package.editable else ''}, so no index has it"]
    if vcs := origin.get("vcs_info"):
        version = vcs.get("commit_id") or vcs.get("requested_revision") or ""
        sub = f"#subdirectory={origin['subdirectory']}" if origin.get("subdirectory") else ""
        return [f"{package.name} @ {vcs.get('vcs', 'git')}+{address}@{version}{sub}"]
    if address and not address.startswith("file:"):
        return [f"{package.name} @ {address}"]
    if address:
        return [f"# {package.name}: installed from a file, {Path(unquote(urlsplit(address).path)).name}", pin]
    if build := package.version.partition("+")[2]:
        where = f", {torch_index(build)}" if re.fullmatch(TORCH_BUILD, build) else ""
        return [f"# {package.name}: needs the index of the +{build} builds{where}", pin]
    return [pin]


def torch_index(build: str, variables: Mapping[str, str] = MappingProxyType({})) -> str:
    """Where PyTorch has its wheels of one build. variables: of the environment, which may name a mirror."""
    return f"{(variables.get('REPROKIT_TORCH_INDEX') or _TORCH_INDEX).rstrip('/')}/{build}"


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> Packages:
    found: Packages = {}
    for distribution in distributions(path=list(path)):
        metadata = distribution.metadata
        name, version = metadata["Name"], metadata["Version"]
        if name and version and canonicalize_name(name) not in found:  # or a folder that a broken uninstall has left
            found[canonicalize_name(name)] = Package(
                name=name,
                version=version,
                requires=tuple(metadata.get_all("Requires-Dist") or ()),
                origin=_origin(distribution),
                distribution=distribution,
            )
    return dict(sorted(found.items()))


@lru_cache(maxsize=4)
def _owners(path: tuple[str, ...]) -> dict[str, str]:
    """Files of modules, and folders that are one distribution's alone, to the distribution."""
    owners: dict[str, str] = {}
    for name, package in _installed(path).items():
        record = package.distribution.read_text("RECORD")  # read by hand: `files` takes a second for torch alone
        listed = [line.rsplit(",", 2)[0].strip('"') for line in (record or "").splitlines()]
        if record is None:  # of a distribution that something other than pip has installed
            tops = (package.distribution.read_text("top_level.txt") or "").split()
            listed = [form for top in tops for form in (top, f"{top}.py")]
        base = str(package.distribution.locate_file(""))
        for file in listed:
            if record is None or file.endswith((".py", ".so", ".pyd")):
                owners[os.path.join(base, file)] = name
    return owners


def _origin(distribution: Distribution) -> dict[str, Any] | None:
    try:
        data = json.loads(distribution.read_text("direct_url.json") or "null")
        return data | {"url": redact.url(data["url"])[0]} if data else None
    except (ValueError, TypeError, KeyError, OSError):
        return None
