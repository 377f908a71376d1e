"""`python -m benchmarks image`: builds images, exports them to files, and runs commands with an engine."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import docker
from docker.errors import ImageNotFound

from benchmarks.core.checks import allow
from benchmarks.core.files import writable
from benchmarks.core.programs import output_of
from benchmarks.images.build_image import DEFAULT, PACKAGES, build_image, check_builds, check_disk, make_base
from benchmarks.images.engine import ENGINES, HOST, engine
from benchmarks.launching.containers.choose import add_runtime_arguments, asked_runtime
from benchmarks.launching.containers.containers import command
from benchmarks.launching.containers.entry import (
    IMAGES,
    LOCK,
    ImageEntry,
    add_image,
    check_locks,
    image_content,
    read_images,
)
from benchmarks.launching.launch import run_python
from resireduce.errors import ConfigError, choose
from resireduce.scheme import load


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = commands.add_parser("build", help="build an image; its entry goes into containers/images.lock.json")
    build.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    base = f"an image to build from, or {PACKAGES} (default: {DEFAULT}, or {PACKAGES} where no registry answers)"
    build.add_argument("--base", metavar="IMAGE", help=base)
    build.add_argument("--toolkit", metavar="IMAGE", help="an image with the CUDA toolkit (default: from packages)")
    build.add_argument("--again", action="store_true", help="even if it is there, with today's base and packages")
    build.add_argument("--entry", metavar="FILE", type=Path, help="write its entry to a file of its own, too")
    build.add_argument("--lock", metavar="FILE", type=Path, default=LOCK, help="list of images (default: %(default)s)")
    made = commands.add_parser(
        "base", help="make a base image from Debian's packages, and see that images can be built"
    )
    made.add_argument("--again", action="store_true", help="with today's packages, even if one was made earlier")
    export = commands.add_parser("export", help="write a built image to a file")
    export.add_argument("name", metavar="NAME", help=f"one of: {', '.join(IMAGES)}")
    export.add_argument("--entry", metavar="FILE", type=Path, help="of which build (default: that of the lock)")
    export.add_argument("--oci", metavar="FILE", type=Path, help="an OCI archive")
    export.add_argument("--sif", metavar="FILE", type=Path, help="a SIF, for apptainer")
    inside = commands.add_parser("exec", help="run python in an image, as a rank is run")
    add_runtime_arguments(inside)
    text = "folder that the command may write to, under the same path; may be given again"
    inside.add_argument("--bind", metavar="DIR", type=Path, action="append", default=[], help=text)
    text = "what to run, after --: python and its arguments, with absolute paths"
    inside.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help=text)
    commands.add_parser("list", help="list the images of the lock")
    using = commands.add_parser("engine", help="run a command with a Docker Engine, started and stopped if none runs")
    using.add_argument("line", nargs="+", metavar="COMMAND", help="after --")
    for sub in (build, made, export):
        sub.add_argument("--engine", default="docker", help=f"one of: {', '.join(ENGINES)}; default: %(default)s")


def main(args: argparse.Namespace) -> int:
    """Run one action and return the exit status. A signal that ends it leaves no more behind than Ctrl-C."""
    earlier = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return int(ACTIONS[args.action](args))
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def _end(number: int, _: object) -> NoReturn:
    """Exit through all blocks, so that they clean up."""
    sys.exit(128 + number)


def _build(args: argparse.Namespace) -> int:
    choose("image", args.name, IMAGES)
    if args.toolkit and args.name == "cpu":
        raise ConfigError(f"toolkit: {args.toolkit!r} is of no use for cpu, which has no CUDA; leave it out")
    for field in ("entry", "lock"):
        if getattr(args, field):
            writable(field, getattr(args, field))
    locked = read_images(args.lock).get(args.name)
    check_locks(args.name)
    with engine(args.engine) as client:
        entry = build_image(client, args.name, args.base, args.toolkit, locked, args.again)
    add_image(entry, args.lock)
    if args.entry:
        entry.save(args.entry)
    print(_line(entry))
    return 0


def _base(args: argparse.Namespace) -> int:
    with engine(args.engine) as client:
        base = make_base(client, args.again)
        check_builds(client, base)
        check_disk("cpu", client)
    print(f"{base.name}: {base.digest}")
    return 0


def _export(args: argparse.Namespace) -> int:
    given = {form: getattr(args, form) for form in FORMS if getattr(args, form) is not None}
    if not given:
        raise ConfigError(f"export: give one or more of {', '.join(f'--{form} FILE' for form in FORMS)}")
    images = {} if args.entry else read_images()
    if args.name not in images and args.name in IMAGES and not args.entry:
        raise ConfigError(f"image: {args.name!r} is not built; build it: python -m benchmarks image build {args.name}")
    entry = ImageEntry.load(args.entry) if args.entry else images[choose("image", args.name, images)]
    if entry.name != args.name:
        raise ConfigError(
            f"entry: {args.entry} is of image {entry.name!r}, not of {args.name!r}; give that of the same"
        )
    for form, path in given.items():
        writable(form, path)
    with engine(args.engine) as client:
        check_stored(client, entry)
        for form, path in given.items():
            FORMS[form](client, entry, path)
            print(f"{path}: {path.stat().st_size / 1e6:,.1f} MB")
    return 0


def _exec(args: argparse.Namespace) -> int:
    line = args.command[1:] if args.command[:1] == ["--"] else args.command
    allowed = "one of python's: -- python -m MODULE ..."
    allow("command", " ".join(line), line[:1] == ["python"] and line[1:], allowed)
    runtime = asked_runtime(args)
    if runtime is None:
        raise ConfigError("runtime: 'none' has no image to run a command in; give --runtime and --image")
    for folder in args.bind:
        if not folder.is_dir():
            raise ConfigError(f"bind: {folder} is not a folder; make it, or give another one")
    try:
        run_python(line[1:], runtime, args.bind)
    except subprocess.CalledProcessError as error:
        if error.stderr:
            raise ConfigError(f"runtime: {runtime.name} did not start it: {error.stderr}") from None
        return int(error.returncode)
    return 0


def _list(args: argparse.Namespace) -> int:
    for name, entry in read_images().items():
        state = "" if entry.content == image_content(name) else " (of other files than those here: build it again)"
        print(_line(entry) + state)
    return 0


def _engine(args: argparse.Namespace) -> int:
    program, *rest = args.line
    is_tool = program in load("benchmarks.rig.debian:TOOLS")
    if not is_tool and shutil.which(program) is None:
        raise ConfigError(f"command: {program!r} is no program here; give one of PATH, or the path of one")
    with engine():
        line = command(program) if is_tool else [program]
        return subprocess.run([*line, *rest], check=False).returncode


def _line(entry: ImageEntry) -> str:
    parts = ", ".join(f"{name} {value}" for name, value in entry.versions.items() if value)
    return f"{entry.name}: {entry.digest}, {entry.size_bytes / 1e9:.2f} GB, {parts}"


FAST = "-comp gzip -Xcompression-level 1"
"""Readable by every installation of apptainer; made in a third of the default's time, and an eighth larger."""


def check_stored(client: docker.DockerClient, entry: ImageEntry) -> None:
    """Raise ConfigError if the engine does not have exactly this image: its tag may belong to a later build."""
    try:
        found = client.images.get(entry.tag).id
    except ImageNotFound:
        found = None
    if found != entry.digest:
        there = "is not in the engine's store" if found is None else f"is another build in the engine's store, {found}"
        raise ConfigError(
            f"image: {entry.tag} of {entry.digest[:19]}... {there}; python -m benchmarks image build {entry.name}, "
            "with the same --entry if there was one"
        )


def export_oci(client: docker.DockerClient, entry: ImageEntry, output: Path) -> None:
    """Write an image of the engine that DOCKER_HOST names as an OCI archive. Raises ConfigError."""
    line = [*command("skopeo"), "--insecure-policy", "copy", "--quiet", "--src-daemon-host", os.environ[HOST]]
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output.parent.absolute()) as folder:
        new = Path(folder) / "image.tar"
        # Called in the folder, since a colon in a path would end it.
        _call([*line, f"docker-daemon:{entry.tag}", f"oci-archive:{new.name}:{entry.tag}"], folder, output)
        os.replace(new, output)


def export_sif(client: docker.DockerClient, entry: ImageEntry, output: Path) -> None:
    """Write an image of the engine that DOCKER_HOST names as a SIF. Raises ConfigError."""
    with tempfile.TemporaryDirectory(prefix=".export-", dir=output.parent.absolute()) as folder:
        archive, new = Path(folder) / "image.tar", Path(folder) / "image.sif"
        _call([*command("docker"), "save", "--output", str(archive), entry.tag], folder, output)
        build = [*command("apptainer", wrapped=False), "build", "--mksquashfs-args", FAST]
        _call([*build, new.name, f"docker-archive:{archive.name}"], folder, output)
        os.replace(new, output)  # last, so that an existing file is complete


def _call(line: Sequence[str], folder: str, output: Path) -> None:
    # The system's folder for temporary files is often too small for an image.
    places = dict.fromkeys(("TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR"), folder)
    output_of(line, name=f"{output} could not be written", cwd=folder, env=os.environ | places, stdout=sys.stderr)


FORMS = {"oci": export_oci, "sif": export_sif}
"""Export formats by option."""
ACTIONS = {"build": _build, "base": _base, "export": _export, "exec": _exec, "list": _list, "engine": _engine}
