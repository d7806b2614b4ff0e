"""Code that training imported from beside its source: editable installs, and folders on PYTHONPATH or `sys.path`.

No index has it, and tomorrow its folder holds something else. What to take is read off the modules of this process:
those that come neither from the source root nor from a folder of installed packages, and those that pip installed from
a folder, which the build of an image may have removed since. The unit is the outermost regular package or module, so of
a namespace package only the parts that were imported. Each keeps its dotted place below `source/packages/`: modules
that were imported, wherever they lie (behind links, in a second `__path__` entry, built into `site-packages`), and what
lies beside them.

Whatever is archived hides the live package from a replay. So a package whose imported modules do not all fit is not
taken at all: half of it would be worse than none.
"""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate
from os.path import basename, dirname
from pathlib import Path
from typing import Any

from reprokit.capture import listing as listings
from reprokit.capture import packages
from reprokit.capture.listing import Caps, Found, Listing, is_too_much
from reprokit.capture.packages import Package, Packages
from reprokit.capture.repository import GitError, Repository, shown

FOLDER = "packages"  # below `source/`
_OWN = {*packages.ALWAYS, *packages.NEVER, "yaml"}  # an attempt has imported these before anything archived


@dataclass(frozen=True, kw_only=True, slots=True)
class Siblings:
    """What to copy into `source/`, and what to say of it."""

    listing: Listing
    kept: list[Found]
    packages: list[dict[str, Any]]  # of packages.json
    distributions: list[str]  # by name: those that the copies make superfluous


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sibling:
    """A package or module that was imported."""

    name: str
    place: str  # below `source/`
    file: str
    folders: tuple[Path, ...]  # of a package
    modules: Mapping[str, str] = field(repr=False)  # imported: place -> file
    version: str | None
    owner: Package | None

    def holds(self, path: str) -> bool:
        return path == self.place or path.startswith(f"{self.place}/")


def take(root: Path, exclude: Sequence[Path], caps: Caps, modules: Mapping[str, Any]) -> Siblings:
    """The siblings of a root (resolved) among these modules, within caps of their own. Does not raise."""
    listing = Listing(root=Path(root.anchor), exclude=[])
    try:
        found = list(_found(root, modules, packages.installed(), listing.left_out))
        return _chosen(root, found, listing, exclude, caps)
    except Exception as error:  # the tree alone is worth having, and modules can be anything
        listing.left_out.append(f"{FOLDER}: {type(error).__name__}: {error}")
        return Siblings(listing=listing, kept=[], packages=[], distributions=[])


def _chosen(
    root: Path, found: Sequence[_Sibling], listing: Listing, exclude: Sequence[Path], caps: Caps
) -> Siblings:
    for sibling in found:
        _add(listing, sibling, exclude)
    kept, refused = listing.choose(caps)
    whole = []
    for sibling in found:
        lacking = sorted(refused & sibling.modules.keys())
        if not lacking:
            whole.append(sibling)
        elif sibling.folders:
            listing.left_out.append(f"{sibling.place}: nothing of it, since {lacking[0]} was imported and is left out")
    commits = _Commits()
    return Siblings(
        listing=listing,
        kept=[one for one in kept if any(sibling.holds(one.path) for sibling in whole)],
        packages=[_described(sibling, root, commits) for sibling in whole],
        distributions=sorted({sibling.owner.name for sibling in whole if sibling.owner}),
    )


def _found(root: Path, modules: Mapping[str, Any], known: Packages, left_out: list[str]) -> Iterator[_Sibling]:
    units = _units({name: module for name, module in modules.items() if isinstance(name, str)})
    owners = packages.owners(known, {name: files[name] for name, files in units.items()})
    for name, files in sorted(units.items()):
        file, owner = files[name], known.get(owners.get(name, ""))
        if name.partition(".")[0] in _OWN or not _is_sibling(file, root, owner):
            continue
        place = _place(name, file)
        if place is None or not os.path.isfile(file):
            reason = "loaded by its path, not imported by its name" if place is None else "deleted, or in an archive"
            left_out.append(f"{FOLDER}/{shown(name)}: {reason}")
            continue
        variables = _variables(modules[name])
        version = variables.get("__version__")
        yield _Sibling(
            name=name,
            place=dirname(place) if basename(place).startswith("__init__.") else place,
            file=file,
            folders=tuple(_folders(file, variables.get("__path__"), root, owner)),
            modules={where: one for part, one in files.items() if (where := _place(part, one)) and os.path.isfile(one)},
            version=owner.version if owner else version if isinstance(version, str) else None,
            owner=owner,
        )


def _units(modules: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Outermost packages and modules that have a file, with the files of all modules in them."""
    files = {name: file for name, module in modules.items() if not name.startswith("__") and (file := _file(module))}
    units: dict[str, dict[str, str]] = {}
    for name, file in files.items():
        above = accumulate(name.split("."), lambda outer, part: f"{outer}.{part}")
        units.setdefault(next(outer for outer in above if outer in files), {})[name] = file
    return units


def _file(module: Any) -> str | None:
    file = _variables(module).get("__file__")
    return os.path.normpath(file) if isinstance(file, str) and os.path.isabs(file) else None


def _variables(module: Any) -> Mapping[str, Any]:
    """Not by getattr: some modules make up whatever they are asked for, or import it."""
    try:
        variables: Mapping[str, Any] = vars(module)
    except TypeError:  # no module, and not even an object with variables
        return {}
    return variables


def _place(name: str, file: str) -> str | None:
    """Where an import by this name finds a copy of this file; None if it would not."""
    *parents, last = name.split(".")
    stem = basename(file).partition(".")[0]
    if stem not in ("__init__", last) or not all(part.isidentifier() for part in (*parents, last)):
        return None
    return "/".join((FOLDER, *parents, *([last] if stem == "__init__" else []), basename(file)))


def _is_sibling(file: str, root: Path, owner: Package | None) -> bool:
    """Whether neither the archived tree nor an index has this file."""
    real = os.path.realpath(file)
    if real.startswith(f"{root}{os.sep}") and not (is_too_much(root) and dirname(real) != str(root)):
        return False
    if owner is not None and owner.local:
        return not (owner.editable and _is_installed(file))  # else of an editable install the hook that leads to it
    if _is_installed(file) or _is_installed(real):
        return False
    return owner is None or owner.distribution.read_text("RECORD") is None  # else of `pip install --target`


def _is_installed(file: str) -> bool:
    return bool({"site-packages", "dist-packages"} & set(file.split(os.sep))) or file.startswith(_library())


@lru_cache(maxsize=1)
def _library() -> tuple[str, ...]:
    """Folders of this Python's own library, and of what is installed into it."""
    paths = sysconfig.get_paths()
    folders = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(sorted({f"{path}{os.sep}" for folder in folders for path in (folder, os.path.realpath(folder))}))


def _folders(file: str, path: Any, root: Path, owner: Package | None) -> Iterator[Path]:
    """Of a package, with those that it has added to its `__path__`; none of a module."""
    if not basename(file).startswith("__init__."):
        return
    entries = [entry for entry in path if isinstance(entry, str)] if isinstance(path, Iterable) else []
    for folder in dict.fromkeys(map(os.path.normpath, (dirname(file), *entries))):
        if os.path.isdir(folder) and _is_sibling(os.path.join(folder, "__init__.py"), root, owner):
            yield Path(folder).resolve()


def _add(listing: Listing, sibling: _Sibling, exclude: Sequence[Path]) -> None:
    """What was imported, and then what lies beside it, as far as the walk goes. The first of a name is the one."""
    known = dict(sibling.modules)
    for path, file in known.items():
        size = os.stat(file).st_size
        listing.files.append(Found(path=path, file=os.path.realpath(file), size=size, tracked=True))
    for folder in sibling.folders:
        beside = listings.walk(folder, exclude, max(0, listings.LOOKED_AT - listing.looked_at))
        listing.looked_at += beside.looked_at
        for found in beside.files:
            path, file = f"{sibling.place}/{found.path}", str(folder / found.file)
            if path not in known:
                known[path] = file
                listing.files.append(replace(found, path=path, file=file))
        notes = (f"{sibling.place}/{note}".replace("/.:", ":") for note in beside.left_out)
        listing.left_out += [note for note in notes if note.partition(": ")[0] not in sibling.modules]


class _Commits:
    """Of the repositories that siblings lie in; each is asked once."""

    def __init__(self) -> None:
        self._known: dict[Path | None, str | None] = {None: None}

    def of(self, file: Path) -> str | None:
        top = next((folder for folder in file.parents if (folder / ".git").exists()), None)
        if top not in self._known:
            try:
                repository = Repository.find(file.parent)
                self._known[top] = repository.commit() if repository is not None else None
            except GitError:
                self._known[top] = None
        return self._known[top]


def _described(sibling: _Sibling, root: Path, commits: _Commits) -> dict[str, Any]:
    owner = sibling.owner
    origin = dict(owner.origin) if owner and owner.origin else None
    if origin and "dir_info" in origin:
        del origin["url"]  # a folder of this machine, which `from` has
    return {
        "name": sibling.name,
        "place": sibling.place,
        "from": shown(_nameless(Path(sibling.file), root)),
        "distribution": owner.name if owner else None,
        "version": sibling.version,
        "origin": origin,
        "commit": commits.of(Path(os.path.realpath(sibling.file))),
    }


def _nameless(file: Path, root: Path) -> str:
    """A path without its user's name: from the source root where it is near, or from home."""
    home = Path.home()
    if root.parent in file.parents and not is_too_much(root.parent):
        return Path(os.path.relpath(file, root)).as_posix()
    if home in file.parents and home != Path(home.anchor):
        return f"~/{file.relative_to(home).as_posix()}"
    return "/".join("~" if part == home.name else part for part in file.as_posix().split("/"))
