"""The base of an image: from a registry, pinned by its digest, or made here from Debian's packages."""

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import docker
from docker.errors import APIError, DockerException, ImageNotFound
from docker.utils import parse_repository_tag

from benchmarks.core.paths import cache_folder
from benchmarks.images.engine import what_engine_said
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.launching.containers.programs import command
from resireduce.errors import ConfigError

DEFAULT = "python:3.11-slim-bookworm"
"""The base that the Containerfiles name."""
PACKAGES = "packages"
"""Name of a base that is made here."""
SUITE = "bookworm"
INCLUDED = ("python3", "python3-venv", "ca-certificates")
OWN_TAG = f"resireduce/base:{SUITE}"
STRICT = ("-o", "APT::Update::Error-Mode=any")
EPOCH = "1700000000"
"""Time of every file in a base made here, so that the same packages give the same bytes."""


@dataclass(frozen=True)
class Base:
    """A base that the engine has."""

    name: str
    """Name of the base in messages and tables."""
    reference: str
    """Name of the base that the engine is given."""
    digest: str
    """sha256:...; of the registry's manifest, or, for a base made here, of its root file system as tar."""


def find_base(client: docker.DockerClient, given: str | None, locked: ImageEntry | None = None) -> Base:
    """Return the base to build from, pulled or made if the engine does not have it.

    `given` is its name; None takes the Containerfiles' own, or makes one from packages if no registry can be reached.
    If `locked`, an earlier build, has the same base, its digest is used again. Raises ConfigError, one line, if the
    base is not available.
    """
    if given == PACKAGES:
        return make_base(client)
    name = given or DEFAULT
    try:
        return _pulled(client, name, locked.base_digest if locked and locked.base == name else None)
    except DockerException as error:
        said = what_engine_said(error)
    try:
        return _described(client.images.get(name), name)
    except ImageNotFound:
        pass
    except DockerException as error:  # an invalid name
        said = what_engine_said(error)
    if given is None:
        print(f"{name} cannot be pulled here: a base is made from Debian's packages instead", file=sys.stderr)
        return make_base(client)
    raise ConfigError(f"base: {given!r} cannot be had ({said[:200]}); give one that can be pulled, or {PACKAGES!r}")


def _pulled(client: docker.DockerClient, name: str, digest: str | None) -> Base:
    repository, tag = parse_repository_tag(name)
    wanted = f"{repository}@{digest}" if digest else name
    print(f"Pulling {wanted} ...", file=sys.stderr, flush=True)
    client.images.pull(repository, tag=digest or tag or "latest")
    return _described(client.images.get(wanted), name)


def _described(image: docker.models.images.Image, name: str) -> Base:
    """Describe a pulled image by its digest, and a local one, which has none, by its ID."""
    pinned = next(iter(image.attrs.get("RepoDigests") or ()), None)
    if pinned:
        return Base(name, pinned, pinned.split("@")[1])
    return Base(name, image.id, image.id)


def make_base(client: docker.DockerClient, again: bool = False) -> Base:
    """Make a base from Debian's packages, or take the one made earlier unless `again`. About 30 s."""
    if not again:
        try:
            return _own(client)
        except ImageNotFound:
            pass
    print(f"Making a base of Debian {SUITE}'s packages (about 30 s) ...", file=sys.stderr, flush=True)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=cache_folder()) as folder:
        tar = Path(folder) / "base.tar"
        line = [*command("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={','.join(INCLUDED)}"]
        settings = {"SOURCE_DATE_EPOCH": EPOCH, "TMPDIR": folder}
        done = subprocess.run(
            [*line, SUITE, str(tar)],
            capture_output=True,
            text=True,
            errors="replace",
            env=os.environ | settings,
            check=False,
        )
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
            raise ConfigError(f"base: mmdebstrap could not make one: {said}; look at the network and the disk")
        try:
            client.api.import_image_from_file(str(tar), repository=OWN_TAG)
        except APIError as error:
            raise ConfigError(f"base: the engine does not take it: {error.explanation}") from None
    return _own(client)


def check_builds(client: docker.DockerClient, base: Base) -> None:
    """Raise ConfigError, one line, if the engine cannot do what every build does: run the base, and fetch in it."""
    for what, command_line, network in (
        ("runs no container", ["python3", "--version"], "none"),
        ("runs containers that do not reach Debian's packages", ["apt-get", "-qq", "update", *STRICT], "host"),
    ):
        try:
            client.containers.run(base.reference, command_line, network_mode=network, remove=True)
        except DockerException as error:
            said = " ".join(str(error).split())
            raise ConfigError(
                f"engine: it {what} of {base.name}: {said[-300:]}; look at its log, and the network"
            ) from None


def _own(client: docker.DockerClient) -> Base:
    image = client.images.get(OWN_TAG)
    return Base(f"Debian {SUITE} from packages", image.id, image.attrs["RootFS"]["Layers"][0])
