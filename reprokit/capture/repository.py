"""A git repository, read without leaving a trace in it and without running anything that it asks for.

What the user has staged, and whether another git is at work there, is none of our business: nothing in `.git` is
written, not the index (git likes to refresh it), no lock, no object. And configuration can make git run programs (file
system monitor, hooks, filters, lazy fetches); whatever can is switched off for each call.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from reprokit.capture import redact

TIMEOUT = 60  # seconds for one call of git: enough for a million files, while a dead network disk never answers
GITLINK, LINK = "160000", "120000"  # modes of a submodule and of a symbolic link
_SAFE = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.untrackedCache": "false",
    "core.splitIndex": "false",  # a shared index would be written beside the user's
    "core.safecrlf": "false",  # or git refuses files whose line ends it would change
    "index.sparse": "false",
    "safe.directory": "*",  # training has run this folder's code: another owner is no reason to lose its commit
}
_QUIET = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}


class GitError(Exception):
    """Git is missing, too slow, or cannot read this repository; the message is one line for the record."""


class _Refused(GitError):
    """Git ran, and said no."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tracked:
    path: str  # relative to the top; bytes that are not UTF-8 are surrogates in it, as in every name from the system
    mode: str
    blob: str  # of a submodule: its commit
    tag: str  # of `git ls-files -v`: S skips the working tree, a lower-case letter is assumed unchanged


class Repository:
    """One working tree and what git knows of it. Every method may raise GitError."""

    def __init__(self, top: Path, algorithm: str, filters: Sequence[str] = ()) -> None:
        self.top = top
        self.algorithm = algorithm  # of object names: sha1 or sha256
        self._tracked: list[Tracked] | None = None
        self._safe = dict(_SAFE)
        for name in filters:  # those that some configuration defines; none is ever run
            off = {"clean": "", "smudge": "", "process": "", "required": "false"}
            self._safe |= {f"filter.{name}.{key}": value for key, value in off.items()}

    @classmethod
    def find(cls, folder: Path) -> Repository | None:
        """The repository whose working tree holds this folder, if any."""
        try:
            answer = git(folder, "rev-parse", "--show-toplevel", "--show-object-format", options=_SAFE)
        except _Refused as refusal:
            if any((parent / ".git").exists() for parent in (folder, *folder.parents)):
                raise GitError(f"git cannot read this repository ({refusal})") from refusal
            return None
        top, _, algorithm = os.fsdecode(answer).removesuffix("\n").rpartition("\n")
        wanted = "config", "-z", "--name-only", "--get-regexp", r"^filter\."
        defined = git(folder, *wanted, options=_SAFE, tolerant=True)
        names = {os.fsdecode(key).removeprefix("filter.").rpartition(".")[0] for key in defined.split(b"\0") if key}
        if any("=" in name for name in names):
            raise GitError("a filter with = in its name cannot be switched off, so git is not run here")
        return cls(Path(top), algorithm, sorted(names))

    def commit(self) -> str | None:
        """None before the first commit, and where HEAD is broken."""
        return self._ask("rev-parse", "--verify", "--quiet", "HEAD^{commit}")

    def branch(self) -> str | None:
        return self._ask("symbolic-ref", "--quiet", "--short", "HEAD")

    def remotes(self) -> dict[str, str]:
        """Addresses by name, without credentials."""
        answer = self.run("config", "-z", "--get-regexp", r"^remote\..*\.url$", tolerant=True)
        pairs = (os.fsdecode(line).partition("\n") for line in answer.split(b"\0") if line)
        named = [(key.removeprefix("remote.").removesuffix(".url"), url) for key, _, url in pairs]
        return {redact.url(name)[0]: redact.url(url)[0] for name, url in named}

    def tracked(self) -> list[Tracked]:
        """The index as it was when first asked for."""
        if self._tracked is None:
            self._tracked = self._read_index()
        return self._tracked

    def untracked(self) -> list[str]:
        """What git would offer to add; another repository inside this one ends in a slash."""
        return [os.fsdecode(path) for path in self._records("ls-files", "-z", "--others", "--exclude-standard")]

    def holds(self, path: Path) -> bool:
        """Whether a file, or anything in a folder, is tracked or would be offered: not ignored."""
        names = [] if path == self.top else [f":(top,literal){path.relative_to(self.top)}"]
        return bool(self.run("ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *names))

    def filtered(self, paths: Iterable[str]) -> dict[str, list[str]]:
        """Paths by the filter that their attributes name (git-lfs, for one), whether it is defined or not."""
        answer = self.run("check-attr", "-z", "--stdin", "filter", stdin=joined(paths)).split(b"\0")
        found: dict[str, list[str]] = {}
        for path, value in zip(answer[0::3], answer[2::3]):
            if value not in (b"unspecified", b"unset", b"set"):
                found.setdefault(os.fsdecode(value), []).append(os.fsdecode(path))
        return found

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        tolerant: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> bytes:
        return git(self.top, *arguments, options=self._safe, stdin=stdin, tolerant=tolerant, variables=variables)

    def _read_index(self) -> list[Tracked]:
        found = {}  # by path: in a conflict there are up to three sides of one
        for record in self._records("ls-files", "-z", "--stage", "-v"):
            head, _, path = record.partition(b"\t")
            tag, mode, blob, _ = head.decode().split(" ")
            found[path] = Tracked(path=os.fsdecode(path), mode=mode, blob=blob, tag=tag)
        return list(found.values())

    def _records(self, *arguments: str) -> list[bytes]:
        return [record for record in self.run(*arguments).split(b"\0") if record]

    def _ask(self, *arguments: str) -> str | None:
        return os.fsdecode(self.run(*arguments, tolerant=True)).strip() or None


def git(
    folder: Path,
    *arguments: str,
    options: Mapping[str, str] | None = None,
    variables: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    tolerant: bool = False,
) -> bytes:
    """What git prints. Its own variables are not inherited: a hook or a rebase around us has set them for another git.

    tolerant: an empty answer where git says no, which is how it answers some questions.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    settings = [word for key, value in (options or {}).items() for word in ("-c", f"{key}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env={**inherited, **_QUIET, **(variables or {})},
            input=stdin,
            capture_output=True,
            timeout=TIMEOUT,
        )
    except OSError as error:
        raise GitError(f"git cannot be run ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise GitError(f"git {arguments[0]} took over {TIMEOUT} seconds") from error
    if done.returncode and not tolerant:
        reason = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise _Refused(f"git {arguments[0]}: {reason[-1] if reason else f'exit code {done.returncode}'}")
    return b"" if done.returncode else done.stdout


def joined(paths: Iterable[str]) -> bytes:
    """Paths as git reads them from its standard input with -z."""
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def shown(path: str) -> str:
    """A name from the file system as text that can be written anywhere."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
