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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from reprokit import _files
from reprokit.errors import BadInput, Infrastructure, ReprokitError
from reprokit.replay.requirements import Wanted, shown

Hashes = dict[str, str]  # file name of a wheel -> sha256

_STARTS = re.compile(r"(Collecting|Processing|Building wheel for) (\S+)")
_KEPT = 400  # lines of pip's output: a failed build of a package ends with what failed
_CLONE = re.compile(r"Cannot find command '(git|hg|svn|bzr)'|(git|hg|svn|bzr) \w+.* did not run successfully")
_NOTHING = Wanted(pins=())


def names_in(wheelhouse: Path) -> set[str]:
    """Canonical names of what a folder of wheels has. Raises BadInput where there is no folder."""
    if not wheelhouse.is_dir():
        raise BadInput(f"{wheelhouse}: no such folder of wheels; check --wheelhouse")
    found = set()
    for file in wheelhouse.glob("*.whl"):
        with suppress(InvalidWheelFilename):
            found.add(str(parse_wheel_filename(file.name)[0]))
    return found


class Collection:
    """A folder of wheels: `files/HASH/NAME.whl`, and in `resolved/` what each list came to."""

    def __init__(self, folder: Path) -> None:
        self._files, self._resolved = folder / "files", folder / "resolved"

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
        if wheelhouse is not None:
            names_in(wheelhouse)
        for part in (self._files, self._resolved):  # now: somebody may have removed them while we waited for our turn
            part.mkdir(parents=True, exist_ok=True)
        own = ["--no-index", "--find-links", str(wheelhouse)] if wheelhouse else []
        own += [] if wanted.built else ["--only-binary", ":all:"]
        with tempfile.TemporaryDirectory(dir=self._files.parent, prefix="gather-") as scratch:
            try:
                made = _pip(wanted, own, (), Path(scratch), progress)
            except ReprokitError:
                if not wanted.indexes or wheelhouse:
                    raise
                made = _pip(wanted, own, wanted.indexes, Path(scratch), progress)
            hashes = {wheel.name: _digest(wheel) for wheel in made}
            for wheel, kept in zip(sorted(made), self.paths(hashes)):
                kept.parent.mkdir(exist_ok=True)
                wheel.replace(kept)
        note = self._note(wanted, wheelhouse)
        _files.write_whole(note, json.dumps(hashes, indent=1).encode())
        return hashes

    def _note(self, wanted: Wanted, wheelhouse: Path | None) -> Path:
        """Where the answer for a list is: it depends on this Python too, and on what lies in the wheelhouse."""
        here = [platform.python_version_tuple()[:2], platform.machine(), platform.libc_ver()]
        lying = sorted(wheelhouse.glob("*")) if wheelhouse else []
        stamps = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in lying]
        key = json.dumps([wanted.pins, wanted.indexes, wanted.built, here, str(wheelhouse), stamps])
        return self._resolved / f"{sha256(key.encode()).hexdigest()[:32]}.json"


def _pip(
    wanted: Wanted, own: list[str], indexes: Iterable[str], scratch: Path, progress: Callable[[str], None]
) -> list[Path]:
    pins = wanted.pins
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
        env=_environment(os.environ),
    ) as pip:
        assert pip.stdout
        for line in pip.stdout:
            said.append(line.rstrip())
            if match := _STARTS.match(line):
                started += match[1] != "Building wheel for"
                progress(f"gathering wheels: {min(started, len(pins))} of {len(pins)}, {Path(match[2]).name}")
    if pip.returncode:
        raise diagnose(list(said), wanted)
    return sorted(wheels.glob("*.whl"))


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    """pip's: what it says is read, and nobody is there to answer what git and ssh may ask."""
    silent = {"GIT_SSH_COMMAND": "ssh -o BatchMode=yes", **ours, "GIT_TERMINAL_PROMPT": "0"}
    return silent | {"LC_ALL": "C.UTF-8"}


def diagnose(said: list[str], wanted: Wanted = _NOTHING) -> ReprokitError:
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
        return BadInput(_not_there(missing[1].strip(), wanted))
    if _CLONE.search(text):
        return BadInput(_not_cloned(said, wanted))
    unbuilt = re.search(r"Failed (?:building wheel for|to build) '?([\w.-]+)", text)
    if unbuilt:
        return BadInput(f"{unbuilt[1]}: only published as source and does not build; give its wheel with --wheelhouse")
    errors = [line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")]
    return BadInput(f"requirements: pip cannot gather them: {shown(errors[0] if errors else ' '.join(said[-1:]))}")


def _not_there(pin: str, wanted: Wanted) -> str:
    """What is known of a pin that no index has."""
    name, _, version = pin.partition("==")
    build = version.partition("+")[2]
    if file := wanted.files.get(canonicalize_name(name)):
        return f"{pin}: was installed from the file {file}, and no index has it; give its folder with --wheelhouse"
    where = f"for Python {platform.python_version()} on {platform.machine()}"
    own = f"the index of the +{build} builds in PIP_EXTRA_INDEX_URL, or " if build else ""
    return f"{pin}: not in any index that pip asks here, {where}; give {own}the folder of its wheel with --wheelhouse"


def _not_cloned(said: list[str], wanted: Wanted) -> str:
    """What git said of a requirement that is a commit; pip tells last of the one that it was at."""
    at = next((line.split()[1].rstrip("@") for line in reversed(said) if line.startswith("Collecting ")), "")
    pin = next((pin for pin in wanted.pins if at and canonicalize_name(pin.split()[0]) == canonicalize_name(at)), at)
    why = next((line.strip() for line in said if re.match(r"\s*(fatal|error|remote): ", line)), "")
    why = why or next((line.removeprefix("ERROR: ") for line in said if line.startswith("ERROR: ")), "")
    return f"{shown(pin)}: its repository cannot be cloned here ({shown(why)}); give its wheel with --wheelhouse"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()
