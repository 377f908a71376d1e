"""A Docker Engine to build and run images: the running one, or one of our own for as long as it is needed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from resireduce.errors import ConfigError
from resireduce.scheme import load

HOST = "DOCKER_HOST"
BUILD_SECONDS = 3600
"""How long the engine may take for one answer: a step of a build may print nothing for long."""
ENGINE_ERRORS = (DockerException, RequestException, HTTPError)
"""Errors of the SDK if the engine refuses a request or goes away; the last one occurs within a stream."""


@contextmanager
def engine() -> Iterator[docker.DockerClient]:
    """Yield a client of the running engine, or of our own if none runs.

    Within the block DOCKER_HOST names the engine for child processes. Raises ConfigError, one line with the cure.
    """
    if (address := find_running()) is not None:
        with _at(address) as client:
            yield client
        return
    if os.geteuid() != 0:
        raise ConfigError("engine: no Docker Engine runs, and only root can start one; start one, or set DOCKER_HOST")
    with load("benchmarks.rig.own_engine:own_engine")() as address, _at(address) as client:
        yield client


def find_running() -> str | None:
    """Return the address of an engine that answers: DOCKER_HOST, or one of its usual sockets; None if none does."""
    if given := os.environ.get(HOST):
        if not answers(given):
            raise ConfigError(f"{HOST}: no engine answers at {given!r}; start it, or unset {HOST}")
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = ("unix:///var/run/docker.sock", f"unix://{runtime}/docker.sock")
    return next((address for address in usual if answers(address)), None)


@contextmanager
def _at(address: str) -> Iterator[docker.DockerClient]:
    """Yield a client, and turn the engine's refusals, and its disappearance, into ConfigError with its own words."""
    earlier = os.environ.get(HOST)
    client = docker.DockerClient(base_url=address, timeout=BUILD_SECONDS)
    os.environ[HOST] = address
    try:
        yield client
    except ENGINE_ERRORS as error:
        said = " ".join(str(getattr(error, "explanation", None) or error).split())[:300]
        raise ConfigError(f"engine: {said}; look at its log, and give the same command again") from None
    finally:
        client.close()
        os.environ.pop(HOST)
        os.environ.update({HOST: earlier} if earlier is not None else {})


def answers(address: str) -> bool:
    """Say whether an engine answers at an address."""
    try:
        client = docker.DockerClient(base_url=address, timeout=10)
    except (DockerException, ValueError):  # ValueError: an invalid port or IPv6 address
        return False
    try:
        return bool(client.ping())
    except (DockerException, OSError):
        return False
    finally:
        client.close()
