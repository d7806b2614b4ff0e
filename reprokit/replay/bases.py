"""Images that somebody else made: those that replay images are built on, and those that are given or were captured.

An image is asked what it has before anything is gathered for it, or run in it, since what it lacks shows much later and
not in one line. The question runs in a container without network, like all that we do not know.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from docker import DockerClient
from docker.errors import APIError, ImageNotFound
from docker.utils import parse_repository_tag

from reprokit.capture import redact
from reprokit.errors import BadInput, Infrastructure
from reprokit.replay import daemon, owners
from reprokit.replay.container import LABEL

Progress = Callable[[str], None]  # gets one short line each time that there is news

MINOR = f"{sys.version_info.major}.{sys.version_info.minor}"
OWN = "reprokit-base:bookworm-py3.11"  # what `.ci/base-image` makes, where no registry is in reach
OWN_COMPILER = f"{OWN}-compiler"  # and with --compiler
CAPTURED = "captured"  # `--image captured`: the one that training ran in, as the incident recorded it
_PATIENCE = 120  # seconds for an answer: on a cold disk a Python starts slowly
_NEEDED = ("torch", "numpy", "safetensors", "yaml")  # what an attempt imports by itself
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ASK = """
import json, platform, sys
print(json.dumps({"python": platform.python_version_tuple()[:2], "machine": platform.machine(),
    "libc": platform.libc_ver()[0]}))
"""
_ASK_BASE = "import pip, venv\n" + _ASK  # what the build calls
_ASK_GIVEN = f"needed = {_NEEDED}" + """
import importlib.util
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    raise SystemExit(f"lacks {', '.join(missing)}")
""" + _ASK
# What torch.compile does on a CPU, in small. `g++` is what it looks for.
_ASK_COMPILER = """
import subprocess, sysconfig, tempfile
code = "#include <Python.h>\\n#include <omp.h>\\nint threads() { return omp_get_max_threads(); }\\n"
with tempfile.TemporaryDirectory() as folder:
    made = subprocess.run(["g++", "-shared", "-fPIC", "-fopenmp", "-I" + sysconfig.get_paths()["include"], "-x", "c++",
        "-", "-o", folder + "/made.so"], input=code, text=True, capture_output=True)
if made.returncode:
    raise SystemExit(next((line for line in made.stderr.splitlines() if "error" in line), "does not compile"))
print("compiled")
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Of the Python in an image."""

    python: str  # major.minor
    machine: str
    libc: str


def exists(client: DockerClient, name: str) -> bool:
    try:
        client.images.get(name)
    except ImageNotFound:
        return False
    return True


def default(client: DockerClient, *, compiler: bool) -> str:
    """The name of the base where nobody chose one."""
    own = OWN_COMPILER if compiler else OWN
    if exists(client, own):
        return own
    return f"python:{MINOR}" if compiler else f"python:{MINOR}-slim"  # of these the full one has a compiler


def fetched(client: DockerClient, name: str, progress: Progress, remedy: str = "") -> str:
    """The id of an image, pulled where it is missing. remedy: what to do where that cannot be."""
    try:
        there = exists(client, name)
    except APIError as error:
        if error.status_code != 400:  # that it is no name is all that can be wrong with the question
            raise
        raise BadInput(f"{name}: no name of an image ({daemon.one_line(error)}); mend it") from error
    if not there:
        if _DIGEST.fullmatch(name):
            raise BadInput(f"{name}: no image of this machine, and a digest alone has no place; give NAME@{name}")
        progress(f"pulling {name}")
        repository, tag = parse_repository_tag(name)
        try:
            client.images.pull(repository, tag=tag or "latest")
        except daemon.Silent as error:
            raise Infrastructure(
                f"{name}: not on this machine and not to be pulled ({daemon.one_line(error)}); "
                + (remedy or f"without a registry, reprokit's .ci/base-image makes {OWN}")
            ) from error
    return str(client.images.get(name).id)


def check_base(client: DockerClient, name: str, *, compiler: bool) -> Facts:
    """Wheels are gathered for the Python, the machine and the libc of out here: those of the base must be the same."""
    like = f"choose one like python:{MINOR}-slim"
    refusal = lambda why: f"no base for replays: its python3, with venv and pip, does not run ({why}); {like}"
    found = _asked(client, name, _ASK_BASE, refusal)
    if found.python != MINOR:
        raise BadInput(
            f"{name}: has Python {found.python}, and wheels are gathered here for {MINOR}; choose a base image with "
            f"{MINOR}, such as python:{MINOR}-slim, or run reprokit with Python {found.python}"
        )
    theirs, ours = f"{found.libc or 'another libc'} on {found.machine}", f"{_libc()} on {platform.machine()}"
    if theirs != ours:
        raise BadInput(f"{name}: is {theirs}, and this machine {ours}; choose a base image like python:{MINOR}-slim")
    if compiler:
        remedy = f"choose a base image with g++ and Python's headers, such as python:{MINOR}"
        own = f"`.ci/base-image --compiler` makes {OWN_COMPILER}"
        _said(client, name, _ASK_COMPILER, lambda why: f"no compiler for torch.compile ({why}); {remedy}, or {own}")
    return found


def given(name: str, progress: Progress = lambda line: None) -> str:
    """An image to run attempts in as it is: fetched where it is missing, and asked whether it has what they import."""
    with daemon.in_one_line("image"), closing(daemon.connect(timeout=600)) as client:
        fetched(client, name, progress, "check the name, or leave out --image to build one")
        if LABEL not in (client.images.get(name).labels or {}):  # ours has been asked when it was built
            remedy = "choose one with torch, numpy, safetensors and PyYAML, or leave out --image to build one"
            _asked(client, name, _ASK_GIVEN, lambda why: f"attempts cannot run in it: its python3 {why}; {remedy}")
    return name


def captured(environment: Mapping[str, Any], *, trust: bool) -> str:
    """The image that training ran in, by what its job said of it. Raises BadInput where it did not, or not enough."""
    container = environment.get("container")
    image = container.get("image") if isinstance(container, dict) else None
    if not isinstance(image, str) or not image.strip():
        raise BadInput(
            "--image captured: training did not say which image it ran in (REPROKIT_IMAGE names it to a capture); "
            "leave out --image to build one, or give a name"
        )
    image = redact.url(" ".join(image.split()))[0]
    if not trust:
        raise BadInput(
            f"--image captured: {image} would be fetched because a stranger named it; add --trust if you trust whoever "
            "made this bundle, or give its name yourself"
        )
    return image


def moves(name: str) -> bool:
    """Whether a name may be of another image tomorrow: one that is no digest."""
    return not _DIGEST.fullmatch(name.rpartition("@")[2])


def _asked(client: DockerClient, name: str, script: str, refusal: Callable[[str], str]) -> Facts:
    lines = _said(client, name, script, refusal).splitlines()
    try:
        said = json.loads(lines[-1])
        major, minor = said["python"]
        return Facts(python=f"{major}.{minor}", machine=str(said["machine"]), libc=str(said["libc"]))
    except (ValueError, LookupError, TypeError) as error:
        raise BadInput(f"{name}: {refusal('answers nonsense')}") from error


def _said(client: DockerClient, name: str, script: str, refusal: Callable[[str], str]) -> str:
    """What a script prints in an image. Raises BadInput with the last that it said where it does not end well."""
    container = client.containers.create(
        name,
        entrypoint=["python3", "-c", script],
        network_mode="none",
        labels={LABEL: "1", **owners.mark(_PATIENCE)},
        cap_drop=["ALL"],
        use_config_proxy=False,
    )
    said = ""
    try:
        container.start()
        code = container.wait(timeout=_PATIENCE)["StatusCode"]
        said = container.logs().decode(errors="replace").strip()
        if code == 0:
            return said
    except daemon.Silent as error:
        said = daemon.one_line(error)
    finally:
        container.remove(force=True)
    why = "".join(c for c in said.splitlines()[-1][-200:] if c.isprintable()) if said else "says nothing"
    raise BadInput(f"{name}: {refusal(why)}")


def _libc() -> str:
    return platform.libc_ver()[0]
