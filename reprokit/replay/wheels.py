"""Wheels for a list of pins, gathered by the pip of this Python and kept by content.

pip is asked for wheels of exactly the pins, without their dependencies: the list is a whole environment, and one with a
conflict in it is wanted with that conflict. A release that is only published as source is built here. What a list came
to is remembered by file name and hash, so that the same list is the same wheels until somebody deletes the cache.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from reprokit.errors import BadInput, Infrastructure, ReprokitError

Hashes = dict[str, str]  # file name of a wheel -> sha256

_INDEX_OPTIONS = re.compile(
    r"(-i|-f|--index-url|--extra-index-url|--find-links|--trusted-host)[ =]\S+|--no-index|--pre|--prefer-binary"
)
_EXACT = re.compile(r"[\w.-]+(\[[\w,.-]+\])?==[\w.+!]+")  # what an index has under this name, and nothing else
_STARTS = re.compile(r"(Collecting|Processing|Building wheel for) (\S+)")
_KEPT = 400  # lines of pip's output: a failed build of a package ends with what failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """A list of requirements, taken apart."""

    pins: tuple[str, ...]
    indexes: tuple[str, ...] = ()  # options of pip: where to look for what its own indexes here do not have
    built: bool = True  # what is only published as source is built, by code of its own


def parse(requirements: str, *, trust: bool = True) -> Wanted:
    """Pins and index options. reprokit and editable packages are left out: they are mounted, with the source.

    trust: whoever wrote the list may name places to fetch from, and packages that run their code when they are built.
    Without it only exact pins are taken, as wheels, from the indexes that this machine asks anyway.
    """
    pins, indexes = [], []
    for line in requirements.replace("\\\n", " ").splitlines():
        line = re.sub(r"(^|\s)#.*", "", line).strip()
        if not line or re.match(r"(-e|--editable)\b", line):
            continue
        if "${" in line:  # pip would put our environment there, and send it to whom the line names
            raise BadInput(f"requirements: {line}: names a variable of this machine; write what is meant")
        if _INDEX_OPTIONS.fullmatch(line):
            indexes.append(line)
            continue
        pin = re.split(r"\s--", line)[0].strip()  # without --hash: what we gather is hashed anyway
        try:
            name = Requirement(pin).name
        except InvalidRequirement as error:
            raise BadInput(f"requirements: {line}: not a requirement that can be pinned; mend or remove it") from error
        if canonicalize_name(name) == "reprokit":
            continue
        if not trust and not _EXACT.fullmatch(pin.partition(";")[0].strip()):
            raise BadInput(
                f"requirements: {line}: would run or fetch what a stranger chose, on this machine; "
                "add --trust if you trust whoever made this bundle, or give an --image"
            )
        pins.append(pin)
    return Wanted(pins=tuple(sorted(pins, key=str.lower)), indexes=tuple(indexes) if trust else (), built=trust)


class Collection:
    """A folder of wheels: `files/HASH/NAME.whl`, and in `resolved/` what each list came to."""

    def __init__(self, folder: Path) -> None:
        self._files, self._resolved = folder / "files", folder / "resolved"
        for part in (self._files, self._resolved):
            part.mkdir(parents=True, exist_ok=True)

    def remembered(self, wanted: Wanted, wheelhouse: Path | None = None) -> Hashes | None:
        """What this list came to before, if it was ever asked for."""
        try:
            found = json.loads(self._note(wanted, wheelhouse).read_text())
        except (OSError, ValueError):
            return None
        return {str(name): str(digest) for name, digest in found.items()} if isinstance(found, dict) else None

    def complete(self, hashes: Hashes) -> bool:
        """Whether all of these wheels are still here, unaltered."""
        return all(path.is_file() and _digest(path) == hashes[path.name] for path in self.paths(hashes))

    def paths(self, hashes: Hashes) -> list[Path]:
        return [self._files / digest[:16] / name for name, digest in sorted(hashes.items())]

    def gather(self, wanted: Wanted, wheelhouse: Path | None, progress: Callable[[str], None]) -> Hashes:
        """Ask pip for all of them, first as it is set up here, then with the indexes that the list itself names: those
        may be out of reach, and where they are not needed nobody should wait for them."""
        if wheelhouse is not None and not wheelhouse.is_dir():
            raise BadInput(f"{wheelhouse}: no such folder of wheels; check --wheelhouse")
        own = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse else []
        own += [] if wanted.built else ["--only-binary", ":all:"]
        with tempfile.TemporaryDirectory(dir=self._files.parent, prefix="gather-") as scratch:
            try:
                made = _pip(wanted.pins, own, (), Path(scratch), progress)
            except ReprokitError:
                if not wanted.indexes or wheelhouse:
                    raise
                made = _pip(wanted.pins, own, wanted.indexes, Path(scratch), progress)
            hashes = {wheel.name: _digest(wheel) for wheel in made}
            for wheel, kept in zip(sorted(made), self.paths(hashes)):
                kept.parent.mkdir(exist_ok=True)
                wheel.replace(kept)
        note = self._note(wanted, wheelhouse)
        part = note.with_suffix(".part")
        part.write_text(json.dumps(hashes, indent=1))
        part.replace(note)
        return hashes

    def _note(self, wanted: Wanted, wheelhouse: Path | None) -> Path:
        """Where the answer for a list is: it depends on this Python too, and on what lies in the wheelhouse."""
        here = [platform.python_version_tuple()[:2], platform.machine(), platform.libc_ver()]
        lying = sorted(wheelhouse.glob("*")) if wheelhouse else []
        stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in lying]
        key = json.dumps([wanted.pins, wanted.indexes, wanted.built, here, str(wheelhouse), stamps])
        return self._resolved / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def _pip(
    pins: Iterable[str], own: list[str], indexes: Iterable[str], scratch: Path, progress: Callable[[str], None]
) -> list[Path]:
    pins = list(pins)
    wheels, listed = scratch / "wheels", scratch / "requirements.txt"
    wheels.mkdir(exist_ok=True)
    listed.write_text("\n".join([*indexes, *pins]) + "\n")
    command = [
        *(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-input", "--no-color", "--progress-bar", "off"),
        *("--disable-pip-version-check", "--retries", "1", "--wheel-dir", str(wheels), "--requirement", str(listed)),
        *own,
    ]
    said: deque[str] = deque(maxlen=_KEPT)
    started = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C.UTF-8"},  # what it says is read below
    ) as pip:
        assert pip.stdout
        for line in pip.stdout:
            said.append(line.rstrip())
            if match := _STARTS.match(line):
                started += match[1] != "Building wheel for"
                progress(f"gathering wheels: {min(started, len(pins))} of {len(pins)}, {Path(match[2]).name}")
    if pip.returncode:
        raise diagnose(list(said))
    return sorted(wheels.glob("*.whl"))


def diagnose(said: list[str]) -> ReprokitError:
    """The one line in what pip said that matters to whoever asked for an image."""
    text = "\n".join(said)
    if "No module named pip" in text:
        return Infrastructure(f"{sys.executable}: has no pip to gather wheels with; `python -m ensurepip` adds it")
    if os.strerror(errno.ENOSPC) in text:
        return Infrastructure("wheels: disk full; free some, or set XDG_CACHE_HOME and TMPDIR to another disk")
    missing = re.search(r"No matching distribution found for (.+?)(?: \(from .*)?$", text, re.MULTILINE)
    if re.search(r"connection broken|Failed to establish a new connection|Read timed out|ConnectionError", text):
        what = missing[1] if missing else "wheels"
        return Infrastructure(f"{what}: an index of pip's does not answer; try again, or give wheels with --wheelhouse")
    if missing:
        return BadInput(
            f"{missing[1]}: not in any index that pip asks here, for Python {platform.python_version()} on "
            f"{platform.machine()}; give the folder of its wheel with --wheelhouse"
        )
    unbuilt = re.search(r"Failed (?:building wheel for|to build) '?([\w.-]+)", text)
    if unbuilt:
        return BadInput(f"{unbuilt[1]}: only published as source and does not build; give its wheel with --wheelhouse")
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return BadInput(f"requirements: pip cannot gather them: {errors[0] if errors else ' '.join(said[-1:])}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
