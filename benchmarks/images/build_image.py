"""Builds an image with a Docker Engine, inspects it, and records what it contains."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ContainerError

from benchmarks.core.files import alone, file_hash
from benchmarks.core.paths import ROOT, cache_folder
from benchmarks.core.provenance import git
from benchmarks.images.base_image import Base, find_base
from benchmarks.images.engine import ENGINE_ERRORS, what_engine_said
from benchmarks.images.wheels import fetch_source, fetch_toolkit, fetch_wheels
from benchmarks.launching.containers.entry import ImageEntry
from benchmarks.launching.containers.image_content import (
    NEEDED_BYTES,
    check_locks,
    containerfile,
    image_content,
    write_context,
)
from resireduce.errors import ConfigError

PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STEP = re.compile(r"step \d+/\d+ ?: ", re.IGNORECASE)
MADE = re.compile(r" ?--+> ([0-9a-f]{11,12})$")
"""How Docker (Step 1/2 : RUN, ---> ID) and podman (STEP 1/2: RUN, --> ID) report a step."""
TAIL = 25
"""Lines of a failed build that are shown."""


class BuildError(ConfigError):
    """The engine could not build an image; the text ends with the build's last output."""


def build_image(
    client: docker.DockerClient,
    name: str,
    base: str | None = None,
    toolkit: str | None = None,
    locked: ImageEntry | None = None,
    again: bool = False,
) -> ImageEntry:
    """Build an image, unless it exists, and return its entry. Progress goes to the error stream.

    Args:
        client: of an engine that runs.
        name: one of IMAGES.
        base: a name that can be pulled, `packages`, or None: the Containerfile's own.
        toolkit: an image with the CUDA toolkit in /usr/local/cuda; None: the base if it has one, else from packages.
        locked: the entry of an earlier build; the same base is then used at the same digest.
        again: build it even if the engine has an image of the same files, whose Debian packages may be older.

    Raises ConfigError before the build for wrong input, BuildError if it fails; neither leaves an image behind.
    """
    content = image_content(name, base)
    check_locks(name)
    wanted = {"reference": f"resireduce/{name}:{content}", "label": "org.opencontainers.image.base.name"}
    # Two builds of the same image at once would give two digests.
    waiting = f"Waiting for another process that builds {name} ..."
    with alone(cache_folder() / f".building-{name}", waiting):
        if again or not client.images.list(filters=wanted):
            check_disk(name, client)
            _build(client, name, content, find_base(client, base, None if again else locked), toolkit, again)
        return describe(client, name, content)


def _build(client: docker.DockerClient, name: str, content: str, base: Base, toolkit: str | None, again: bool) -> None:
    with tempfile.TemporaryFile(dir=cache_folder()) as archive:
        write_context(name, _extra(name), archive)
        archive.seek(0)
        options: dict[str, Any] = {"network_mode": "host", "nocache": again, "rm": True, "forcerm": True}
        options |= {"buildargs": _arguments(base, toolkit), "labels": _labels(name, content, base)}
        options |= {"dockerfile": containerfile(name), "tag": f"resireduce/{name}:{content}"}
        follow(client, name, _messages(client, fileobj=archive, **options))


def _messages(client: docker.DockerClient, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the engine's messages about a build, which begins when the first one is requested."""
    yield from client.api.build(custom_context=True, decode=True, **options)


def describe(client: docker.DockerClient, name: str, content: str) -> ImageEntry:
    """Return the entry of a built image, with the versions that it reports. Raises BuildError if it cannot be run."""
    image, engine = client.images.get(f"resireduce/{name}:{content}"), client.version()
    try:
        said = client.containers.run(
            image.id, ["python", "-m", "benchmarks.images.image_facts"], network_mode="none", remove=True
        )
    except (ContainerError, APIError) as error:
        raise BuildError(f"image: {name} was built and does not run: {error}") from None
    parts = " ".join(str(part.get("Name", "")).lower() for part in engine.get("Components") or ())
    return ImageEntry(
        name=name,
        digest=image.id,
        content=content,
        base=image.labels["org.opencontainers.image.base.name"],
        base_digest=image.labels["org.opencontainers.image.base.digest"],
        versions=json.loads(said),
        size_bytes=image.attrs["Size"],
        engine=f"{'podman' if 'podman' in parts else 'docker'} {engine['Version']}",
        built_at=image.labels["org.opencontainers.image.created"],
    )


def check_disk(name: str, client: docker.DockerClient) -> None:
    """Raise ConfigError, one line, if the disk has no room for a build from scratch."""
    store = Path(client.info().get("DockerRootDir") or "/")
    for folder in (cache_folder(), store):
        there = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(there).free
        if free < NEEDED_BYTES[name]:
            raise ConfigError(
                f"disk: {there} has {free / 1e9:.1f} GB free, building {name} takes up to "
                f"{NEEDED_BYTES[name] / 1e9:.0f} GB; make room, or set XDG_CACHE_HOME to another disk"
            )


def _extra(name: str) -> Iterator[tuple[str, Path]]:
    folder = ROOT / containerfile(name)
    yield "wheels", fetch_wheels(folder.parent / "requirements.lock")
    yield "wheels", fetch_wheels(ROOT / "containers/build-tools.lock")
    yield "wheels", fetch_source(ROOT / "containers/horovod.lock")
    if (folder.parent / "toolkit.lock").exists():
        yield "toolkit", fetch_wheels(folder.parent / "toolkit.lock")
        yield "toolkit", fetch_toolkit(folder.parent / "toolkit.deb.json")


def _arguments(base: Base, toolkit: str | None) -> dict[str, str]:
    """Return the Containerfile's arguments. pip needs no network: all packages are in the context."""
    proxies = {key: os.environ[key] for key in PROXIES if key in os.environ}
    return proxies | {"BASE": base.reference, "PIP_NO_INDEX": "1"} | ({"TOOLKIT": toolkit} if toolkit else {})


def _labels(name: str, content: str, base: Base) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"resireduce {name}",
        "org.opencontainers.image.revision": (git("rev-parse", "HEAD") or "unknown").strip(),
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
        "org.opencontainers.image.created": datetime.now(UTC).isoformat(timespec="seconds"),
        "org.resireduce.content": content,
        "org.resireduce.lock": file_hash((ROOT / containerfile(name)).with_name("requirements.lock")),
    }


def follow(client: docker.DockerClient, name: str, messages: Iterator[Mapping[str, Any]]) -> None:
    """Show the steps of a build as they come. If one fails, remove what was built and raise BuildError."""
    started, made, lines = time.monotonic(), list[str](), list[str]()
    try:
        for message in messages:
            if "error" in message:
                said = "\n  ".join([*lines[-TAIL:], str(message["error"])])
                raise BuildError(f"image: {name} could not be built; the end of what the build said:\n  {said}")
            for line in str(message.get("stream", "")).splitlines():
                lines.append(line)
                if STEP.match(line):
                    print(f"  {time.monotonic() - started:5.0f} s  {line[:110]}", file=sys.stderr, flush=True)
                made += new_image(lines)
    except BaseException as error:
        for image in reversed(made):
            with suppress(*ENGINE_ERRORS):
                client.images.remove(image, noprune=True)
        if isinstance(error, ENGINE_ERRORS):
            raise BuildError(f"image: the engine gave up building {name}: {what_engine_said(error)}") from None
        raise


def new_image(lines: Sequence[str]) -> list[str]:
    """Return the image that the last line reports; none if it comes from FROM or from an earlier build."""
    made = MADE.match(lines[-1])
    step = next((line for line in reversed(lines) if STEP.match(line)), "")
    taken = ": FROM " in step or (len(lines) > 1 and "Using cache" in lines[-2])
    return [made[1]] if made and not taken else []
