"""The code that was training: where it came from, what had been changed, and a copy of it.

In `source/`, `git.json` says which commit this was and what was not taken; `patch.diff` leads from that commit to the
working tree (`git checkout COMMIT && git apply patch.diff`); `tree/` is a copy that needs no repository: tracked files
as they are, and untracked ones that are not ignored. Secrets are taken out of both in the same way. Links become what
they lead to, since a copy has no outside. Whatever cannot be had is named with its reason, and never stops training.
Code that was imported from beside the root is in `packages/`, and `packages.json` says where it came from.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reprokit.capture import patch, redact, siblings
from reprokit.capture.listing import Caps, Found, Listing, is_too_much, seen_from, take
from reprokit.capture.repository import GitError, Repository, shown
from reprokit.incident import Draft

NAMED = 2_000  # names listed in git.json before the rest is only counted
NAMED_IN_MANIFEST = 20  # and in the manifest, which people read


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRecord:
    """For the manifest."""

    commit: str | None  # None outside a repository and before the first commit
    left_out: list[str]  # "path: reason"
    redacted: list[str]  # "source/tree/train.py:12: github token"
    distributions: list[str]  # whose code is in `packages/`


def archive(
    draft: Draft,
    root: Path,
    *,
    exclude: Sequence[Path] = (),
    caps: Caps | None = None,
    modules: Mapping[str, Any] | None = None,
) -> SourceRecord:
    """Write `source/` of an incident; of code that cannot be searched for secrets only where it came from.

    exclude: folders of the recorder's own, which may lie below the root. caps: of the tree, and again of the packages
    beside it. modules: what was imported, by default all that this process has.
    """
    caps = caps or Caps()
    exclude = [*exclude, draft.path]
    listing = take(root.resolve(), exclude)
    kept, refused = listing.choose(caps)
    if unscanned := _unscanned():
        listing.left_out, kept = [f"source: no code and no patch, since {unscanned}"], []
    commit, found, origin = _origin(listing, refused, caps, with_patch=not unscanned)
    draft.file("source/patch.diff").write_bytes(found.diff)
    files, taken, redacted = _copy(draft, kept, listing, "source/tree")
    left_out = [*listing.left_out, *found.left_out]
    changed = list(redacted)
    redacted += found.redacted
    draft.write_json(
        "source/git.json",
        {
            **origin,
            "commit": commit,
            "dirty": bool(found.changed),
            "changed": _shortened(found.changed, NAMED),
            "untracked": _shortened([shown(path) for path in listing.untracked], NAMED),
            "modules": listing.modules,
            "left_out": _shortened(left_out, NAMED),
            "redacted": _shortened(redacted, NAMED),
            "files": files,
            "bytes": taken,
        },
    )
    if unscanned:
        return SourceRecord(commit=commit, left_out=left_out, redacted=[], distributions=[])
    beside = siblings.take(root.resolve(), exclude, caps, sys.modules.copy() if modules is None else modules)
    more = _write_packages(draft, beside)
    left_out = _shortened([*beside.listing.left_out, *left_out], NAMED_IN_MANIFEST)
    return SourceRecord(
        commit=commit,
        left_out=left_out,
        redacted=[*_note([*changed, *more]), *_shortened([*redacted, *more], NAMED)],
        distributions=beside.distributions,
    )


def _unscanned() -> str:
    """Why nothing can be searched for secrets, if so: then nothing that should have been is written."""
    try:
        redact.ready()
    except redact.Unscanned as reason:
        return str(reason)
    return ""


def _note(redacted: list[str]) -> list[str]:
    """What a reader must know before comparing this code with what ran."""
    lines = len({place.rpartition(": ")[0] for place in redacted})
    where = f"{lines:,} line{'s' if lines > 1 else ''}"
    return [f"source: the code was changed in {where}, where a secret became a marker of its length"] if lines else []


def find_root(file: Path) -> Path:
    """The folder that an import or a relative path of this file's project starts from.

    The top of its repository, unless that ignores the file; else the folder above its top package; else its own folder.
    Of `/`, the home folder, the folder for temporary files and `site-packages` nothing is taken as a whole: there the
    root is the package, or for a single file its folder, of which only code directly in it is then archived.
    """
    file = file.resolve()
    top = _top(file)
    if top is not None:
        return top
    package = folder = file.parent
    while (folder / "__init__.py").exists() and folder != folder.parent:
        package, folder = folder, folder.parent
    return package if is_too_much(folder) else folder


def _top(file: Path) -> Path | None:
    try:
        repository = Repository.find(file.parent)
        top = repository.top if repository is not None and repository.holds(file) else None
    except GitError:  # broken, or no git here: the folder is still the project's
        top = next((folder for folder in file.parents if (folder / ".git").exists()), None)
    return None if top is None or is_too_much(top) else top


def _origin(
    listing: Listing, refused: set[str], caps: Caps, *, with_patch: bool
) -> tuple[str | None, patch.Patch, dict[str, Any]]:
    """What git knows: the commit, the way from it to the working tree, and the rest of git.json."""
    commit, found = None, patch.Patch(diff=b"", changed=[], left_out=[], redacted=[])
    origin: dict[str, Any] = {"branch": None, "remotes": {}, "folder": "", "filters": {}}
    repository = listing.repository
    if repository is None:
        return commit, found, origin
    folder = listing.root.relative_to(repository.top).as_posix()
    prefix = "" if folder == "." else f"{folder}/"
    untracked = [prefix + name for name in listing.untracked]

    def withheld(path: str) -> bool:
        name = seen_from(listing.root, repository, path)
        return redact.is_secret_file(path) or (
            name is not None and (name in refused or listing.excluded(name))
        )

    try:
        commit = repository.commit()
        origin |= {"branch": _named(repository.branch()), "remotes": repository.remotes(), "folder": folder}
        origin["filters"] = _filters(repository, untracked, listing.left_out)
        if commit is None:
            listing.left_out.append("patch.diff: there is no commit yet, or HEAD is broken")
        elif with_patch:
            caps_of_patch = {"largest": caps.file, "total": caps.total}
            found = patch.make(repository, commit, untracked, withheld, **caps_of_patch)
    except (GitError, OSError, ValueError) as error:  # no room for temporary files, or answers that we cannot read
        listing.left_out.append(f"patch.diff: {error}")
    return commit, found, origin


def _named(branch: str | None) -> str | None:
    return redact.url(branch)[0] if branch else branch  # no credentials: names are searched for shapes alone


def _filters(repository: Repository, untracked: list[str], left_out: list[str]) -> dict[str, list[str]]:
    """Files that git stores in another form (git-lfs): here they are as they are in the working tree."""
    names = [entry.path for entry in repository.tracked()] + untracked
    found = {shown(name): [shown(path) for path in paths] for name, paths in repository.filtered(names).items()}
    for name, paths in found.items():
        left_out.append(f"filter {name}: not run, so its files ({len(paths)}) are as in the working tree")
    return {name: _shortened(paths, NAMED) for name, paths in found.items()}


def _write_packages(draft: Draft, beside: siblings.Siblings) -> list[str]:
    """Write `packages/`; where something was redacted. Nothing at all where nothing was imported from beside."""
    if not beside.packages and not beside.listing.left_out:
        return []
    files, taken, redacted = _copy(draft, beside.kept, beside.listing, "source")
    draft.write_json(
        "source/packages.json",
        {
            "packages": beside.packages,
            "left_out": _shortened(beside.listing.left_out, NAMED),
            "redacted": _shortened(redacted, NAMED),
            "files": files,
            "bytes": taken,
        },
    )
    return redacted


def _copy(draft: Draft, kept: Sequence[Found], listing: Listing, into: str) -> tuple[int, int, list[str]]:
    """Write the files; how many and how many bytes, and where something was redacted."""
    count = size = 0
    redacted: list[str] = []
    for found in kept:
        name = f"{into}/{shown(found.path)}"
        if shown(found.path) != found.path or "\\" in found.path:
            listing.left_out.append(f"{shown(found.path)}: a name that other systems cannot have")
            continue
        try:
            file = listing.root / found.file
            data, runnable = file.read_bytes(), file.stat().st_mode & 0o100
        except OSError as error:
            listing.left_out.append(f"{found.path}: {error.strerror}")
            continue
        try:
            clean, places = redact.content(data, name)
        except redact.Unscanned as reason:
            listing.left_out.append(f"{found.path}: {reason}")
            continue
        target = draft.file(name)
        target.write_bytes(clean)
        if runnable:
            target.chmod(target.stat().st_mode | 0o111)
        redacted += places
        count, size = count + 1, size + len(clean)
    return count, size, redacted


def _shortened(names: list[str], most: int) -> list[str]:
    rest = len(names) - most
    return names if rest <= 0 else [*names[:most], f"and {rest:,} more"]
