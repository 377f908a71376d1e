"""Builds an image: its base, its packages, the build by a Docker Engine, and the record of what it contains."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException, ImageNotFound
from docker.utils import parse_repository_tag

from benchmarks.core.files import alone, file_hash, load_json
from benchmarks.core.paths import ROOT, cache_folder
from benchmarks.core.programs import output_of
from benchmarks.core.provenance import git
from benchmarks.core.requirements import read_lock
from benchmarks.launching.containers.entry import ImageEntry, check_locks, containerfile, image_content, write_context
from benchmarks.launching.containers.runtime import command
from resireduce.errors import ConfigError
from resireduce.scheme import load

# --- Packages, by this machine's pip and apt ---


GLIBC = (36, 35, 34, 33, 32, 31, 28, 27, 26, 24, 17, 12, 5)
"""Minor versions of glibc 2 that wheels for Debian 12, and older systems, are made for."""
OLD_NAMES = ("manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64")
BUILD_CONSTRAINT = "setuptools<81\n"
"""pip runs Horovod's setup.py to learn its name, and that file imports pkg_resources."""


def fetch_wheels(lock: Path) -> Path:
    """Return a folder with exactly the wheels of a lock file, for CPython 3.11 on Linux x86-64.

    Raises ConfigError if the lock does not pin its packages, or if one is not available with these hashes.
    """
    platforms = [*(f"manylinux_2_{minor}_x86_64" for minor in GLIBC), *OLD_NAMES]
    target = ["--only-binary=:all:", "--implementation=cp", "--python-version=3.11"]
    target += [f"--abi={abi}" for abi in ("cp311", "abi3", "none")]
    return _fetch(lock, [*target, *(f"--platform={name}" for name in platforms)])


def _fetch(lock: Path, options: Sequence[str]) -> Path:
    pins = read_lock(lock)
    folder = cache_folder() / "wheels" / f"{lock.parent.name}-{lock.stem}-{file_hash(lock)[:12]}"
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    print(f"Fetching the {len(pins)} packages of {lock}, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        constraint, new = Path(temporary) / "constraint.txt", Path(temporary) / "wheels"
        constraint.write_text(BUILD_CONSTRAINT, encoding="utf-8")
        line = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--dest", str(new)]
        line += ["--progress-bar=off", *options, "--requirement", str(lock)]
        settings = {"PIP_CONSTRAINT": str(constraint)} if "--no-binary=:all:" in options else {}
        if subprocess.run(line, stdout=sys.stderr, env=os.environ | settings, check=False).returncode:
            raise ConfigError(f"lock: {lock}: pip cannot fetch its packages, for the reason above")
        shutil.move(new, folder)  # last, so that an existing folder is complete
    return folder


def fetch_toolkit(lock: Path) -> Path:
    """Return a folder with the package named in a file {package, version, suite, components, sha256}.

    Raises ConfigError, one line, if it is not available with that hash.
    """
    pin = load_json(lock)
    folder = cache_folder() / "wheels" / f"{pin['package']}-{pin['sha256'][:12]}"
    if folder.exists():
        return folder
    print(f"Fetching {pin['package']} {pin['version']} (the CUDA compiler), once ...", file=sys.stderr, flush=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder.parent) as temporary:
        apt = load("benchmarks.rig.debian:Apt")(Path(temporary) / "apt", pin["suite"], pin["components"])
        (file,) = apt.fetch([f"{pin['package']}={pin['version']}"], dependencies=False)
        if (found := file_hash(file)) != pin["sha256"]:
            raise ConfigError(f"{lock}: {file.name} has the hash {found}, not {pin['sha256']}; see that file's version")
        new = Path(temporary) / "new"
        new.mkdir()
        shutil.move(file, new / file.name)
        shutil.move(new, folder)
    return folder


# --- The base ---


DEFAULT = "python:3.11-slim-bookworm"
"""The base that the Containerfiles name."""
SUITE = "bookworm"
INCLUDED = ("python3", "python3-venv", "ca-certificates")
OWN_TAG = f"resireduce/base:{SUITE}"
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


def find_base(client: docker.DockerClient, locked: ImageEntry | None = None) -> Base:
    """Return the base to build from: pulled, or what the engine has, or made if no registry can be reached.

    If `locked`, an earlier build, has the same base, its digest is used again.
    """
    repository, tag = parse_repository_tag(DEFAULT)
    digest = locked.base_digest if locked and locked.base == DEFAULT else None
    print(f"Pulling {DEFAULT} {digest or ''} ...", file=sys.stderr, flush=True)
    with suppress(DockerException):
        client.images.pull(repository, tag=digest or tag)
        return _described(client.images.get(f"{repository}@{digest}" if digest else DEFAULT))
    with suppress(ImageNotFound):
        return _described(client.images.get(DEFAULT))
    print(f"{DEFAULT} cannot be pulled here: a base is made from Debian's packages instead", file=sys.stderr)
    with suppress(ImageNotFound):
        return _own(client)
    return make_base(client)


def _described(image: docker.models.images.Image) -> Base:
    """Describe a pulled image by its digest, and a local one, which has none, by its ID."""
    pinned = next(iter(image.attrs.get("RepoDigests") or ()), image.id)
    return Base(DEFAULT, pinned, pinned.split("@")[-1])


def make_base(client: docker.DockerClient) -> Base:
    """Make a base from Debian's packages. About 30 s."""
    print(f"Making a base of Debian {SUITE}'s packages (about 30 s) ...", file=sys.stderr, flush=True)
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".base-", dir=cache_folder()) as folder:
        tar = Path(folder) / "base.tar"
        line = [*command("mmdebstrap"), "--quiet", "--variant=minbase", f"--include={','.join(INCLUDED)}"]
        settings = {"SOURCE_DATE_EPOCH": EPOCH, "TMPDIR": folder}
        output_of([*line, SUITE, str(tar)], name="base: mmdebstrap could not make one", env=os.environ | settings)
        client.api.import_image_from_file(str(tar), repository=OWN_TAG)
    return _own(client)


def _own(client: docker.DockerClient) -> Base:
    image = client.images.get(OWN_TAG)
    return Base(f"Debian {SUITE} from packages", image.id, image.attrs["RootFS"]["Layers"][0])


# --- The build ---


PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
STEP = re.compile(r"step \d+/\d+ ?: ", re.IGNORECASE)
"""How an engine reports a step."""
TAIL = 25
"""Lines of a failed build that are shown."""


def build_image(
    client: docker.DockerClient, name: str, locked: ImageEntry | None = None, again: bool = False
) -> ImageEntry:
    """Build an image, unless it exists, and return its entry. Progress goes to the error stream.

    Args:
        client: of an engine that runs.
        name: one of IMAGES.
        locked: the entry of an earlier build; the same base is then used at the same digest.
        again: build it even if the engine has an image of the same files, whose Debian packages may be older.

    Raises ConfigError if it cannot be built. The layers of steps before stay in the engine: the next build has them.
    """
    content = image_content(name)
    check_locks(name)
    # Two builds of the same image at once would give two digests.
    with alone(cache_folder() / f".building-{name}", f"Waiting for another process that builds {name} ..."):
        if again or not client.images.list(filters={"reference": f"resireduce/{name}:{content}"}):
            base = find_base(client, None if again else locked)
            with tempfile.TemporaryFile(dir=cache_folder()) as archive:
                write_context(name, _extra(name), archive)
                archive.seek(0)
                # pip needs no network: all packages are in the context.
                arguments = {key: os.environ[key] for key in PROXIES if key in os.environ}
                arguments |= {"BASE": base.reference, "PIP_NO_INDEX": "1"}
                options: dict[str, Any] = {"network_mode": "host", "nocache": again, "rm": True, "forcerm": True}
                options |= {"buildargs": arguments, "labels": _labels(name, content, base), "decode": True}
                options |= {"dockerfile": containerfile(name), "tag": f"resireduce/{name}:{content}"}
                follow(name, client.api.build(fileobj=archive, custom_context=True, **options))
        return describe(client, name, content)


def describe(client: docker.DockerClient, name: str, content: str) -> ImageEntry:
    """Return the entry of a built image, with the versions that it reports."""
    image, line = client.images.get(f"resireduce/{name}:{content}"), ["python", "-m", "benchmarks.images.image_facts"]
    said = client.containers.run(image.id, line, network_mode="none", remove=True)
    return ImageEntry(
        name=name,
        digest=image.id,
        content=content,
        base=image.labels["org.opencontainers.image.base.name"],
        base_digest=image.labels["org.opencontainers.image.base.digest"],
        versions=json.loads(said),
        size_bytes=image.attrs["Size"],
        engine=f"docker {client.version()['Version']}",
        built_at=image.labels["org.opencontainers.image.created"],
    )


def _extra(name: str) -> Iterator[tuple[str, Path]]:
    folder = ROOT / containerfile(name)
    yield "wheels", fetch_wheels(folder.parent / "requirements.lock")
    yield "wheels", fetch_wheels(ROOT / "containers/build-tools.lock")
    yield "wheels", _fetch(ROOT / "containers/horovod.lock", ["--no-binary=:all:"])  # as source
    if (folder.parent / "toolkit.lock").exists():
        yield "toolkit", fetch_wheels(folder.parent / "toolkit.lock")
        yield "toolkit", fetch_toolkit(folder.parent / "toolkit.deb.json")


def _labels(name: str, content: str, base: Base) -> dict[str, str]:
    return {
        "org.opencontainers.image.title": f"resireduce {name}",
        "org.opencontainers.image.revision": (git("rev-parse", "HEAD") or "unknown").strip(),
        "org.opencontainers.image.base.name": base.name,
        "org.opencontainers.image.base.digest": base.digest,
        "org.opencontainers.image.created": datetime.now(UTC).isoformat(timespec="seconds"),
        "org.resireduce.content": content,
    }


def follow(name: str, messages: Iterable[Mapping[str, Any]]) -> None:
    """Show the steps of a build as they come. Raises ConfigError, with the last lines, if one fails."""
    started, lines = time.monotonic(), list[str]()
    for message in messages:
        if "error" in message:
            said = "\n  ".join([*lines[-TAIL:], str(message["error"])])
            raise ConfigError(f"image: {name} could not be built; the end of what the build said:\n  {said}")
        for line in str(message.get("stream", "")).splitlines():
            lines.append(line)
            if STEP.match(line):
                print(f"  {time.monotonic() - started:5.0f} s  {line[:110]}", file=sys.stderr, flush=True)
