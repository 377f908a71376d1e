"""Builds an image: its base, its packages, the build by a Docker Engine, and the record of what it contains."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError, ContainerError, DockerException, ImageNotFound
from docker.utils import parse_repository_tag

from benchmarks.core.checks import known_keys
from benchmarks.core.files import alone, file_hash, load_json
from benchmarks.core.paths import ROOT, cache_folder
from benchmarks.core.programs import output_of
from benchmarks.core.provenance import git
from benchmarks.core.requirements import read_lock
from benchmarks.images.engine import ENGINE_ERRORS, what_engine_said
from benchmarks.launching.containers.containers import command
from benchmarks.launching.containers.entry import (
    NEEDED_BYTES,
    ImageEntry,
    check_locks,
    containerfile,
    image_content,
    write_context,
)
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
        command = [sys.executable, "-m", "pip", "download", "--require-hashes", "--no-deps", "--dest", str(new)]
        command += ["--progress-bar=off", *options, "--requirement", str(lock)]
        _call(command, lock, {"PIP_CONSTRAINT": str(constraint)} if "--no-binary=:all:" in options else {})
        shutil.move(new, folder)  # last, so that an existing folder is complete
    return folder


def _call(command: list[str], lock: Path, settings: dict[str, str]) -> None:
    environment = {**os.environ, **settings}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as pip:
        assert pip.stdout is not None
        lines = []
        for line in pip.stdout:
            lines.append(line.strip())
            if line.lstrip().startswith(("Downloading", "Using cached")):
                print(f"  {line.strip()}", file=sys.stderr, flush=True)
    if pip.returncode:
        said = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "nothing")
        raise ConfigError(f"lock: {lock}: pip cannot fetch its packages: {said}; is the lock right? (make locks)")


KEYS = ("package", "version", "suite", "components", "sha256")


def fetch_toolkit(lock: Path) -> Path:
    """Return a folder with the package named in a file {package, version, suite, components, sha256}.

    Raises ConfigError, one line, if it is not available with that hash.
    """
    pin = _read(lock)
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


def _read(lock: Path) -> dict[str, str]:
    try:
        pin = known_keys(str(lock), load_json(lock), KEYS)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{lock}: {error}; it is part of the project: git checkout brings it back") from None
    if missing := [key for key in KEYS if not isinstance(pin.get(key), str)]:
        raise ConfigError(f"{lock}: {', '.join(missing)}: missing or no text; git checkout brings it back")
    return pin


# --- The base ---


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
    repository, tag = parse_repository_tag(name)
    digest = locked.base_digest if locked and locked.base == name else None
    wanted = f"{repository}@{digest}" if digest else name
    print(f"Pulling {wanted} ...", file=sys.stderr, flush=True)
    try:
        client.images.pull(repository, tag=digest or tag or "latest")
        return _described(client.images.get(wanted), name)
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
        output_of([*line, SUITE, str(tar)], name="base: mmdebstrap could not make one", env=os.environ | settings)
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
        # pip needs no network: all packages are in the context.
        arguments = {key: os.environ[key] for key in PROXIES if key in os.environ}
        arguments |= {"BASE": base.reference, "PIP_NO_INDEX": "1"} | ({"TOOLKIT": toolkit} if toolkit else {})
        options |= {"buildargs": arguments, "labels": _labels(name, content, base)}
        options |= {"dockerfile": containerfile(name), "tag": f"resireduce/{name}:{content}"}
        follow(client, name, lambda: client.api.build(fileobj=archive, custom_context=True, decode=True, **options))


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
        "org.resireduce.lock": file_hash((ROOT / containerfile(name)).with_name("requirements.lock")),
    }


def follow(client: docker.DockerClient, name: str, build: Callable[[], Iterable[Mapping[str, Any]]]) -> None:
    """Show the steps of a build as they come. If one fails, remove what was built and raise BuildError."""
    started, made, lines = time.monotonic(), list[str](), list[str]()
    try:
        for message in build():
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
