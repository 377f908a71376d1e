"""A Docker Engine to build and run images: the running one, or one of our own for as long as it is needed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import docker
from docker.errors import DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from resireduce.errors import ConfigError, choose
from resireduce.scheme import load

ENGINES = ("docker", "podman")
HOST = "DOCKER_HOST"
BUILD_SECONDS = 3600
"""How long the engine may take for one answer: a step of a build may print nothing for long."""


@contextmanager
def engine(kind: str = "docker") -> Iterator[docker.DockerClient]:
    """Yield a client of the running engine, or of our own if none runs and kind is docker.

    Within the block DOCKER_HOST names the engine for child processes. Raises ConfigError, one line with the cure.
    """
    choose("engine", kind, ENGINES)
    if (address := find_running(kind)) is not None:
        with _at(address) as client, _one_line():
            yield client
        return
    if kind != "docker":
        raise ConfigError(
            f"engine: {kind!r} does not answer; start its service: podman system service --time 0 {podman_socket()}"
        )
    if os.geteuid() != 0:
        raise ConfigError(
            "engine: no Docker Engine runs, and only root can start one; start one, or give --engine podman"
        )
    with load("benchmarks.rig.own_engine:own_engine")() as address, _at(address) as client, _one_line():
        yield client


@contextmanager
def _one_line() -> Iterator[None]:
    """Turn the engine's refusals, and its disappearance, into ConfigError."""
    try:
        yield
    except ENGINE_ERRORS as error:
        raise ConfigError(
            f"engine: {what_engine_said(error)}; look at its log, and give the same command again"
        ) from None


def what_engine_said(error: BaseException) -> str:
    """Return one line: the engine's own words, without the request that it refused."""
    said = getattr(error, "explanation", None) or error
    return " ".join(str(said).split())[:300]


def find_running(kind: str) -> str | None:
    """Return the address of an engine that answers: DOCKER_HOST, or one of its usual sockets; None if none does."""
    if kind == "docker" and (given := os.environ.get(HOST)):
        if not answers(given):
            raise ConfigError(f"{HOST}: no engine answers at {given!r}; start it, or unset {HOST}")
        return given
    runtime = os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    usual = ["unix:///var/run/docker.sock", f"unix://{runtime}/docker.sock"] if kind == "docker" else [podman_socket()]
    return next((address for address in usual if answers(address)), None)


def podman_socket() -> str:
    """Return the address of this user's podman service: PODMAN_HOST, else its usual socket."""
    runtime = "/run" if os.geteuid() == 0 else os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")
    return os.environ.get("PODMAN_HOST") or f"unix://{runtime}/podman/podman.sock"


@contextmanager
def _at(address: str) -> Iterator[docker.DockerClient]:
    earlier = os.environ.get(HOST)
    client = docker.DockerClient(base_url=address, timeout=BUILD_SECONDS)
    os.environ[HOST] = address
    try:
        yield client
    finally:
        client.close()
        os.environ.pop(HOST)
        os.environ.update({HOST: earlier} if earlier is not None else {})


ENGINE_ERRORS = (DockerException, RequestException, HTTPError)
"""Errors of the SDK if the engine refuses a request or goes away; the last one occurs within a stream."""


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
