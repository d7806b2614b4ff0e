"""The Docker engine of this machine, if one answers. Podman's socket speaks the same language (DOCKER_HOST)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException

from reprokit.errors import Infrastructure

Silent = (DockerException, RequestException, OSError)  # what docker-py lets through when an engine does not answer
_PATIENCE = 60  # seconds that one request may take: a busy engine needs several to make a container
_SOON = 20  # seconds for a first answer: where one does not come, the user's code runs unconfined


def connect(*, timeout: int = _PATIENCE, connections: int = 10) -> docker.DockerClient:
    """A client whose engine has just answered. The endpoint is DOCKER_HOST's, else that of `docker context`."""
    try:
        client = docker.from_env(timeout=timeout, max_pool_size=connections)
        client.ping()
    except (*Silent, ValueError) as error:  # the latter for a DOCKER_HOST that is no address
        where = os.environ.get("DOCKER_HOST", "its usual socket")
        denied = "Permission denied" in str(error)
        what, remedy = ("refuses you", "join its group") if denied else ("does not answer", "start it")
        raise Infrastructure(f"Docker {what} at {where}; {remedy}, or use --engine process") from error
    return client


def answers() -> bool:
    """Whether an engine can be used, asked without waiting long for one that hangs."""
    try:
        connect(timeout=_SOON).close()
    except Infrastructure:
        return False
    return True


def one_line(error: BaseException) -> str:
    """What an engine said, without its layers of wrapping."""
    said = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(said).split())


@contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Whatever an engine says or fails to say becomes an Infrastructure."""
    try:
        yield
    except Silent as error:
        raise Infrastructure(f"{what}: {one_line(error)}") from error
