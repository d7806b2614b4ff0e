"""The way from a commit to the working tree, as a patch that applies and tells no secret.

Git must write to make it: an index that has the working tree, and blobs. It gets a copy of the user's index and an
object store of ours, with the user's as its alternate; the diff itself is made in a bare repository of ours, which has
no configuration, attributes or working tree that could change it.

The new side is made of cleaned files, so it holds no secret. Where the old side does, a text diff would show it, and
masking it there would make the patch refuse. Such a file goes in as a binary patch, and so does a deleted one; the
half of it that leads back, with the old content, is not needed to apply it and is cut off.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from reprokit._scratch import Scratch
from reprokit.capture import redact
from reprokit.capture.repository import GITLINK, LINK, Repository, git, joined, shown

_PLAIN = ("--binary", "--full-index", "--no-renames", "--no-color", "--no-ext-diff", "--no-textconv",
          "--src-prefix=a/", "--dst-prefix=b/")  # fmt: skip
Withheld = Callable[[str], bool]
"""Whether a path stays out, whatever its change; deletions tell nothing and are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    diff: bytes
    changed: list[str]  # "M path" against the commit; untracked files are not counted
    left_out: list[str]  # "path: reason": changed, but not in the diff
    redacted: list[str]  # places


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    old_mode: str
    new_mode: str
    old: str
    new: str
    status: str  # A, D, M, or T where a file became a link
    path: str


def make(
    repository: Repository, commit: str, untracked: Sequence[str], withheld: Withheld, *, largest: int, total: int
) -> Patch:
    """Staged, unstaged, binary and deleted files, and these untracked ones.

    largest, total: bytes of one new version, and of all of them. Raises GitError.
    """
    with Scratch("git") as scratch:
        offered = set(untracked)
        workshop = _Workshop(repository, commit, Path(scratch))
        left_out = workshop.stage(untracked, withheld, largest)
        changes = workshop.changes()
        kept = []
        sizes = workshop.sizes(change.new for change in changes)
        for change in changes:
            size = sizes.get(change.new, 0)
            if change.status != "D" and (withheld(change.path) or change.path in left_out):
                continue
            if size > min(largest, total):
                left_out[change.path] = f"its change, {size:,} bytes, is not in patch.diff"
            else:
                total -= size
                kept.append(change)
        cleaned, redacted, unscanned = workshop.clean(kept)
        left_out |= unscanned
        closed, revealing = workshop.closed(cleaned, largest)
        whole = [change for change in cleaned if change.path in closed]
        lines = [change for change in cleaned if change.path not in closed]
        return Patch(
            diff=workshop.diff(whole, binary=True) + workshop.diff(lines, binary=False),
            changed=[f"{c.status} {shown(c.path)}" for c in changes if c.status != "A" or c.path not in offered],
            left_out=[f"{shown(path)}: {reason}" for path, reason in left_out.items()],
            redacted=[f"source/patch.diff: {place}" for place in (*redacted, *revealing)],
        )


class _Workshop:
    """A bare repository of ours beside the user's, whose objects it can read."""

    def __init__(self, repository: Repository, commit: str, scratch: Path) -> None:
        self.repository, self.commit, self.scratch = repository, commit, scratch
        self.bare = scratch / "bare"
        self.alone = {"HOME": str(scratch), "XDG_CONFIG_HOME": str(scratch), "GIT_CONFIG_NOSYSTEM": "1"}
        self.alone |= {"GIT_ATTR_NOSYSTEM": "1", "GIT_DIR": str(self.bare)}
        form = [] if repository.algorithm == "sha1" else [f"--object-format={repository.algorithm}"]
        git(scratch, "init", "--bare", "--quiet", "--template=", *form, str(self.bare), variables=self.alone)
        for folder in ("info", "objects/info"):
            (self.bare / folder).mkdir(exist_ok=True)
        quoted = str(self._theirs("objects")).replace("\\", "\\\\").replace('"', '\\"')
        (self.bare / "objects/info/alternates").write_bytes(os.fsencode(f'"{quoted}"\n'))

    def stage(self, untracked: Sequence[str], withheld: Withheld, largest: int) -> dict[str, str]:
        """Bring our copy of the index to the state of the working tree; returns what had to stay as it was, and why."""
        index, theirs = self.scratch / "index", self._theirs("index")
        if theirs.exists():
            shutil.copy2(theirs, index)  # with its time: git distrusts files that are younger than the index
        ours = {"GIT_INDEX_FILE": str(index), "GIT_OBJECT_DIRECTORY": str(self.bare / "objects")}
        tracked = self.repository.tracked()
        assumed = [entry.path for entry in tracked if entry.tag.islower()]
        skipped = [entry.path for entry in tracked if entry.tag in "Ss" and self._is_there(entry.path)]
        for flag, names in (("--no-assume-unchanged", assumed), ("--no-skip-worktree", skipped)):
            if names:  # promised to git, for speed or to keep a local change out of sight
                self.repository.run("update-index", "-z", flag, "--stdin", stdin=joined(names), variables=ours)
        modules = {entry.path for entry in tracked if entry.mode == GITLINK}
        modified = self.repository.run("ls-files", "-z", "--modified", variables=ours).split(b"\0")
        paths, left_out = [], {}
        for path in dict.fromkeys([*(os.fsdecode(path) for path in modified if path), *untracked]):
            if path not in modules and not withheld(path):
                if obstacle := self._obstacle(path, largest):
                    left_out[path] = obstacle
                else:
                    paths.append(path)
        self.repository.run(
            "update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=joined(paths), variables=ours
        )
        return left_out

    def changes(self) -> list[_Change]:
        form = "--cached", "--raw", "-z", "--no-abbrev", "--no-renames"
        fields = self._run("diff-index", *form, self.commit, index="index").split(b"\0")
        found = []
        for head, path in zip(fields[0::2], fields[1::2]):
            old_mode, new_mode, old, new, status = head.decode().removeprefix(":").split(" ")
            modes = {"old_mode": old_mode, "new_mode": new_mode}
            if GITLINK not in modes.values():  # recorded by its commit: `git apply` could do nothing with it
                found.append(_Change(**modes, old=old, new=new, status=status, path=os.fsdecode(path)))
        return found

    def clean(self, changes: Sequence[_Change]) -> tuple[list[_Change], list[str], dict[str, str]]:
        """The same changes, to new versions without secrets; where there were some; and what could not be searched."""
        contents = self._contents(change.new for change in changes if change.new_mode != LINK)
        cleaned, redacted, unscanned = [], [], {}
        for change in changes:
            try:
                data, found = redact.content(contents.get(change.new, b""), change.path)
            except redact.Unscanned as reason:
                unscanned[change.path] = str(reason)
                continue
            if found:
                blob = self._run("hash-object", "-w", "--stdin", stdin=data).decode().strip()
                redacted += found
            cleaned.append(replace(change, new=blob) if found else change)
        return cleaned, redacted, unscanned

    def closed(self, changes: Sequence[_Change], largest: int) -> tuple[set[str], list[str]]:
        """Paths whose old version a patch must not show, and where secrets are in them."""
        contents = self._contents((change.old for change in changes if change.status in "MT"), largest)
        paths, revealing = {change.path for change in changes if change.status == "D"}, []
        for change in changes:
            if change.status in "MT":
                data = contents.get(change.old)  # None: too large to look into
                try:
                    found = redact.content(data, change.path)[1] if data is not None else []
                except redact.Unscanned:
                    data, found = None, []
                revealing += [f"at the commit, {place}" for place in found]
                if found or data is None:
                    paths.add(change.path)
        return paths, revealing

    def diff(self, changes: Sequence[_Change], *, binary: bool) -> bytes:
        """A patch with these changes alone; binary: with nothing of the old versions."""
        if not changes:
            return b""
        (self.bare / "info/attributes").write_text("* -diff\n" if binary else "")
        self._run("read-tree", self.commit, index="partial")
        ordered = sorted(changes, key=lambda change: change.status != "D")  # a file may make room for a folder
        entries = joined(f"{'0' if c.status == 'D' else c.new_mode} {c.new}\t{c.path}" for c in ordered)
        self._run("update-index", "-z", "--index-info", stdin=entries, index="partial")
        form = [*_PLAIN, *([] if binary else ["--diff-filter=d"])]
        return _forward_only(self._run("diff-index", "--cached", "-p", *form, self.commit, index="partial"))

    def sizes(self, blobs: Iterable[str]) -> dict[str, int]:
        """Bytes of those that there are: a partial clone lacks some, and nothing is fetched."""
        names = "".join(f"{name}\n" for name in dict.fromkeys(blobs) if name.strip("0"))
        answers = (line.split() for line in self._run("cat-file", "--batch-check", stdin=names.encode()).splitlines())
        return {name.decode(): int(rest[-1]) for name, *rest in answers if len(rest) == 2}

    def _contents(self, blobs: Iterable[str], largest: int | None = None) -> dict[str, bytes]:
        sizes = {name: size for name, size in self.sizes(blobs).items() if largest is None or size <= largest}
        stream = self._run("cat-file", "--batch", stdin="".join(f"{name}\n" for name in sizes).encode())
        contents, position = {}, 0
        for name, size in sizes.items():
            start = stream.index(b"\n", position) + 1
            contents[name] = stream[start : start + size]
            position = start + size + 1
        return contents

    def _run(self, *arguments: str, stdin: bytes = b"", index: str = "") -> bytes:
        chosen = {"GIT_INDEX_FILE": str(self.scratch / index)} if index else {}
        options = {"core.attributesFile": os.devnull, "core.quotePath": "true"}
        return git(self.scratch, *arguments, options=options, variables=self.alone | chosen, stdin=stdin)

    def _theirs(self, name: str) -> Path:
        """Where the user's objects or index are: a linked working tree has its own index."""
        answer = os.fsdecode(self.repository.run("rev-parse", "--git-path", name))
        return self.repository.top / answer.removesuffix("\n")

    def _is_there(self, path: str) -> bool:
        return os.path.lexists(self.repository.top / path)

    def _obstacle(self, path: str, largest: int) -> str:
        """Why git cannot be given this path as it is now, if so. What is gone or became a folder is a deletion."""
        file = self.repository.top / path
        try:
            status = file.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if stat.S_ISDIR(status.st_mode) or stat.S_ISLNK(status.st_mode):
            return ""
        if not stat.S_ISREG(status.st_mode):
            return "is no file"
        if status.st_size > largest:
            return f"its change, {status.st_size:,} bytes, is not in patch.diff"
        return "" if os.access(file, os.R_OK) else "cannot be read"


def _forward_only(diff: bytes) -> bytes:
    """Binary patches without their way back, which holds the old content. Lines of a text hunk begin with a sign."""
    kept: list[bytes] = []
    blocks = 2  # how many blocks of a binary patch have ended: it has two, each ends with an empty line
    for line in diff.splitlines(keepends=True):
        if line == b"GIT binary patch\n":
            blocks = 0
        if blocks != 1:
            kept.append(line)
        if blocks < 2 and line == b"\n":
            blocks += 1
    return b"".join(kept)
