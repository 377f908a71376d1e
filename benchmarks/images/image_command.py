"""`python -m benchmarks image`: builds images by a Docker Engine, exports them to files, and runs commands with one."""

import argparse
import json
import os
import re
import shutil
import signal
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

from benchmarks.core.checks import allow
from benchmarks.core.files import alone, file_hash, load_json, writable
from benchmarks.core.paths import ROOT, cache_folder
from benchmarks.core.programs import output_of
from benchmarks.core.provenance import git
from benchmarks.images.engine import engine
from benchmarks.launching.containers.choose import add_runtime_arguments, asked_runtime
from benchmarks.launching.containers.entry import (
    IMAGES,
    LOCK,
    ImageEntry,
    add_image,
    check_locks,
    containerfile,
    image_content,
    read_images,
    read_lock,
    write_context,
)
from benchmarks.launching.containers.runtime import command
from benchmarks.launching.launch import run_python
from resireduce.errors import ConfigError, choose
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
    pinned = next(iter(image.attrs.get("RepoDigests") or ()), image.id)  # a local one has none
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
    """Build an image, one of IMAGES, unless it exists, and return its entry. Progress goes to the error stream.

    locked: the entry of an earlier build; the same base is then used at the same digest. again: build it even if the
    engine has an image of the same files, whose Debian packages may be older. Raises ConfigError if it cannot be built;
    the layers of steps before stay in the engine: the next build has them.
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = commands.add_parser("build", help="build an image; its entry goes into containers/images.lock.json")
    build.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    build.add_argument("--again", action="store_true", help="even if it is there, with today's base and packages")
    build.add_argument("--entry", metavar="FILE", type=Path, help="write its entry to a file of its own, too")
    build.add_argument("--lock", metavar="FILE", type=Path, default=LOCK, help="list of images (default: %(default)s)")
    commands.add_parser("base", help="get the base of all images, and run a container of it: can images be built here?")
    export = commands.add_parser("export", help="write a built image to a file, for apptainer")
    export.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    export.add_argument("--entry", metavar="FILE", type=Path, help="of which build (default: that of the lock)")
    export.add_argument("--sif", metavar="FILE", type=Path, required=True, help="the file")
    inside = commands.add_parser("exec", help="run python in an image, as a rank is run")
    add_runtime_arguments(inside)
    text = "folder that the command may write to, under the same path; may be given again"
    inside.add_argument("--bind", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "what to run, after --: python and its arguments, with absolute paths"
    inside.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)
    using = commands.add_parser("engine", help="run a command with a Docker Engine, started and stopped if none runs")
    using.add_argument("line", nargs="+", metavar="COMMAND", help="after --")


def main(args: argparse.Namespace) -> int:
    """Run one action and return the exit status. A signal that ends it leaves no more behind than Ctrl-C."""
    numbers = (signal.SIGTERM, signal.SIGHUP)  # exit through all blocks, so that they clean up
    earlier = {number: signal.signal(number, lambda number, _: sys.exit(128 + number)) for number in numbers}
    try:
        return int(ACTIONS[args.action](args))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _build(args: argparse.Namespace) -> int:
    choose("image", args.name, IMAGES)
    for field in ("entry", "lock"):
        if getattr(args, field):
            writable(field, getattr(args, field))
    locked = read_images(args.lock).get(args.name)
    with engine() as client:
        entry = build_image(client, args.name, locked, args.again)
    add_image(entry, args.lock)
    if args.entry:
        entry.save(args.entry)
    parts = ", ".join(f"{name} {value}" for name, value in entry.versions.items() if value)
    print(f"{entry.name}: {entry.digest}, {entry.size_bytes / 1e9:.2f} GB, {parts}")
    return 0


def _base(_: argparse.Namespace) -> int:
    with engine() as client:
        base = find_base(client)
        update = ["apt-get", "-qq", "update", "-o", "APT::Update::Error-Mode=any"]  # as every build does
        for line, network in ((["python3", "--version"], "none"), (update, "host")):
            client.containers.run(base.reference, line, network_mode=network, remove=True)
    print(f"{base.name}: {base.digest}")
    return 0


FAST = "-comp gzip -Xcompression-level 1"
"""Readable by every installation of apptainer; made in a third of the default's time, and an eighth larger."""


def _export(args: argparse.Namespace) -> int:
    images = {} if args.entry else read_images()
    if args.name not in images and args.name in IMAGES and not args.entry:
        raise ConfigError(f"image: {args.name!r} is not built; build it: python -m benchmarks image build {args.name}")
    entry = ImageEntry.load(args.entry) if args.entry else images[choose("image", args.name, images)]
    writable("sif", args.sif)
    with engine(), tempfile.TemporaryDirectory(prefix=".export-", dir=args.sif.parent.absolute()) as folder:
        archive, new = Path(folder) / "image.tar", Path(folder) / "image.sif"
        # By its digest: the tag may belong to a later build.
        save = [*command("docker"), "save", "--output", str(archive), entry.digest]
        build = [*command("apptainer", wrapped=False), "build", "--mksquashfs-args", FAST]
        # The system's folder for temporary files is often too small for an image.
        places = dict.fromkeys(("TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"), folder)
        for line in (save, [*build, new.name, f"docker-archive:{archive.name}"]):
            name = f"{args.sif} could not be written"
            output_of(line, name=name, cwd=folder, env=os.environ | places, stdout=sys.stderr)
        os.replace(new, args.sif)  # last, so that an existing file is complete
    print(f"{args.sif}: {args.sif.stat().st_size / 1e6:,.1f} MB")
    return 0


def _exec(args: argparse.Namespace) -> int:
    line = args.command[1:] if args.command[:1] == ["--"] else args.command
    allowed = "one of python's: -- python -m MODULE ..."
    allow("command", " ".join(line), line[:1] == ["python"] and line[1:], allowed)
    runtime = asked_runtime(args)
    if runtime is None:
        raise ConfigError("runtime: 'none' has no image to run a command in; give --runtime and --image")
    try:
        run_python(line[1:], runtime, args.bind)
    except subprocess.CalledProcessError as error:
        if error.stderr:
            raise ConfigError(f"runtime: {runtime.name} did not start it: {error.stderr}") from None
        return int(error.returncode)
    return 0


def _engine(args: argparse.Namespace) -> int:
    program, *rest = args.line
    with engine():
        return subprocess.run([*command(program), *rest], check=False).returncode


ACTIONS = {"build": _build, "base": _base, "export": _export, "exec": _exec, "engine": _engine}
